//! Clients read and remove pins, and change a pin only if nobody else has changed it since they
//! read it.

mod support;
mod support_pins;
mod support_uploads;

use std::sync::Barrier;
use std::thread;

use samovar_nix::{PublicKey, Signature};
use support::samovar;
use support_pins::Pins;
use support_uploads::{MadePath, Site, assert_refused};
use testkit::http1::{Connection, Response};
use testkit::process::output;

/// The host and the message of a generation: the longest ones, with control characters.
const BODY_LINES: &str = "\nhost box-1\nmessage two%0Alines%1B%5Bm\n";

impl Pins {
    /// Returns the words of each line of a pin's log without creation times, and asserts that its
    /// entity tag is that of the newest generation.
    #[track_caller]
    fn log(&self, name: &str) -> Vec<Vec<String>> {
        let response = self.get(name);
        let text = response.text();
        assert_eq!(response.status, 200, "{text}");
        let lines = text.lines().map(|line| {
            let words = line.split(' ').map(str::to_owned);
            words.collect::<Vec<String>>()
        });
        let mut lines: Vec<Vec<String>> = lines.collect();
        let count = lines
            .iter()
            .filter(|words| words[0] == "generation")
            .count();
        assert_eq!(
            lines.pop().expect("an end").join(" "),
            format!("end {count}")
        );
        assert_eq!(number_of(&response), lines[0][1]);
        lines.retain(|words| words[0] == "generation");
        for words in &mut lines {
            assert!(words.remove(3).parse::<u64>().is_ok(), "{text}");
        }
        lines
    }
}

/// Returns the number in the entity tag of a response. A lineage follows it.
#[track_caller]
fn number_of(response: &Response) -> &str {
    let tag = response.header("etag").expect("a tag");
    let tag = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
    let (number, lineage) = tag.and_then(|tag| tag.split_once('-')).expect("a lineage");
    assert_eq!(lineage.len(), 32, "{tag:?}");
    number
}

/// Returns the line of a generation without its creation time, as [`Pins::log`] does.
fn line(generation: u64, path: &str, rest: &str) -> Vec<String> {
    let line = format!("generation {generation} {path} {rest}");
    line.split(' ').map(str::to_owned).collect()
}

#[test]
fn a_condition_decides_whether_a_pin_changes() {
    let pins = Pins::new(&["one", "two", "three"]);
    let paths = &pins.paths;
    let none = "If-None-Match: *\r\n";
    let refused = pins.request("PUT", "main", "If-Match: \"1\"\r\n", &paths[0]);
    assert_refused(&refused, 412, &["\"main\" does not exist"]);
    assert_eq!(refused.header("etag"), None);
    assert_eq!(pins.get("main").status, 404);

    assert_eq!(pins.put("main", none, &paths[0]), 1);
    // The repetition of a request whose response was lost succeeds, and changes nothing.
    assert_eq!(pins.put("main", none, &paths[0]), 1);
    let refused = pins.request("PUT", "main", none, &paths[1]);
    assert_refused(&refused, 412, &["newest generation", "\"main\" is 1"]);
    assert_eq!(number_of(&refused), "1");

    assert_eq!(pins.put("main", "If-Match: \"1\"\r\n", &paths[1]), 2);
    assert_eq!(pins.put("main", "If-Match: \"1\"\r\n", &paths[1]), 2);
    for stale in ["\"1\"", "\"3\"", "\"a\"", "W/\"2\""] {
        let refused = pins.request("PUT", "main", &format!("If-Match: {stale}\r\n"), &paths[2]);
        assert_refused(&refused, 412, &["\"main\" is 2"]);
    }
    assert_eq!(pins.log("main").len(), 2);
    let listed = "If-Match: , \"a,b\" ,\"7\",\"2\",\r\n";
    assert_eq!(pins.put("main", listed, &paths[2]), 3);
    assert_eq!(pins.put("main", "If-Match: *\r\n", &paths[0]), 4);
    assert_eq!(pins.put("main", "If-None-Match: \"3\"\r\n", &paths[1]), 5);
    // Both conditions must hold; several lines of a field are one list.
    for both in [
        "If-Match: \"5\"\r\nIf-None-Match: *\r\n",
        "If-None-Match: \"4\"\r\nIf-None-Match: \"5\"\r\n",
    ] {
        assert_eq!(pins.request("PUT", "main", both, &paths[0]).status, 412);
    }
    for wrong in ["1", "\"1", "", "\"1\" \"2\""] {
        for field in ["If-Match", "If-None-Match"] {
            let fields = format!("{field}: {wrong}\r\n");
            for method in ["PUT", "DELETE", "GET"] {
                let refused = pins.request(method, "main", &fields, &paths[0]);
                assert_refused(&refused, 400, &[field, "in quotes"]);
            }
        }
    }
    assert_eq!(pins.put("main", "", &paths[0]), 6, "without a condition");
}

#[test]
fn one_of_two_clients_wins_each_round() {
    const ROUND_COUNT: u64 = 100;
    let pins = Pins::new(&["a0", "a1", "b0", "b1", "start"]);
    let paths = &pins.paths;
    assert_eq!(pins.put("main", "If-None-Match: *\r\n", &paths[4]), 1);
    let barrier = Barrier::new(2);
    // Sends a change of generation `round`. The path differs from that of the round before.
    let client = |own: &[String]| {
        let mut connection = Connection::connect(pins.server.address);
        let rounds = (1..=ROUND_COUNT).map(|round| {
            let path = &own[usize::from(round % 2 == 0)];
            barrier.wait();
            connection.send(format!(
                "PUT /upload/pin/main HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\n\
                 If-Match: \"{round}\"\r\nContent-Length: {}\r\n\r\n{path}",
                pins.token,
                path.len()
            ));
            let response = connection.response(false);
            let is_won = match response.status {
                200 => true,
                412 => false,
                _ => panic!("{}: {}", response.head, response.text()),
            };
            let expected = format!("pinned {} {path}\nend 1\n", round + 1);
            assert!(
                !is_won || response.text() == expected,
                "{}",
                response.text()
            );
            // The next round begins when both clients have their response.
            barrier.wait();
            is_won
        });
        rounds.collect::<Vec<bool>>()
    };
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(|| client(&paths[..2]));
        let second = client(&paths[2..4]);
        (first.join().expect("no panic"), second)
    });
    for (round, (first, second)) in first.iter().zip(&second).enumerate() {
        assert!(first != second, "round {round}: {first} and {second}");
    }
    assert_eq!(pins.log("main").len() as u64, ROUND_COUNT + 1);
}

#[test]
fn a_log_has_all_generations_and_signatures() {
    let pins = Pins::new(&["one", "two"]);
    let paths = &pins.paths;
    let name = "mr%2Fapp%20%C3%A4";
    pins.put(name, "", &paths[0]);
    let body = format!("{}{BODY_LINES}", paths[1]);
    pins.put(&format!("{name}?expires=90000"), "", &body);
    let log = pins.log(name);
    let expires = log[0][3].clone();
    assert!(expires.parse::<u64>().is_ok(), "{expires}");
    let stated = "ci-1 box-1 two%0Alines%1B%5Bm";
    assert_eq!(
        log,
        [
            line(2, &paths[1], &format!("{expires} {stated}")),
            line(1, &paths[0], "- ci-1 - -"),
        ]
    );

    // The same path with another host is the same generation, and keeps its host.
    pins.put(name, "", &format!("{}\nhost other", paths[1]));
    assert_eq!(
        pins.log(name)[0],
        line(2, &paths[1], &format!("- {stated}"))
    );

    let text = pins.get(name).text();
    let created = text.split(' ').nth(3).expect("a time");
    let fingerprint = format!("samovar-ref;1;/nix/store;{name};2;{};{created}", paths[1]);
    let key = PublicKey::parse(&pins.site.public_key).expect("is a key");
    let lines = text.lines().filter_map(|line| line.strip_prefix("sig "));
    let signatures: Vec<Signature> = lines
        .map(|line| Signature::parse(line).expect("is a signature"))
        .collect();
    assert_eq!(signatures.len(), 1, "{text}");
    assert!(key.verify(fingerprint.as_bytes(), &signatures[0]), "{text}");

    let response = pins.get(name);
    assert_eq!(response.header("cache-control"), Some("no-store"));
    let mut connection = Connection::connect(pins.server.address);
    let authorization = format!("Authorization: Bearer {}", pins.token);
    let target = format!("/upload/pin/{name}");
    let head = connection.request("HEAD", &target, &[&authorization]);
    assert_eq!(head.status, 200);
    assert_eq!(number_of(&head), "2");
    let exact = head.header("etag").expect("a tag").to_owned();
    let other = format!("\"2-{}\"", "0a".repeat(16));
    assert_eq!(head.content_length(), response.body.len() as u64);
    for (tags, status) in [
        ("\"2\"", 304),
        (&exact, 304),
        (&other, 200),
        ("W/\"2\"", 304),
        ("\"1\", \"2\"", 304),
        ("*", 304),
        ("\"1\"", 200),
        ("\"3\"", 200),
    ] {
        let response = pins.request("GET", name, &format!("If-None-Match: {tags}\r\n"), "");
        assert_eq!(response.status, status, "{tags}");
        assert_eq!(response.header("etag"), Some(&*exact), "{tags}");
    }

    // The operator's list shows what clients have stated, without control characters.
    let mut list = samovar();
    let list = output(
        list.args(["pin", "list", "--storage"])
            .arg(pins.site.storage()),
    );
    let expected = "host \"box-1\"  message \"two\\nlines\\u{1b}[m\"";
    assert!(list.contains(expected), "{list}");
}

#[test]
fn long_logs_are_complete() {
    let pins = Pins::new(&["one"]);
    let paths = &pins.paths;
    pins.put("main", "", &paths[0]);
    // The server reads 256 generations at a time.
    for count in [255, 256, 257, 512, 513] {
        pins.site.sql(&format!(
            "with recursive numbers(n) as \
                 (select 2 union all select n + 1 from numbers where n < {count}) \
             insert or ignore into pin (cache_id, name, generation, path_id, created_at) \
             select cache_id, name, n, path_id, 7 from numbers, pin where generation = 1"
        ));
        let log = pins.log("main");
        let numbers: Vec<u32> = log
            .iter()
            .map(|words| words[1].parse().expect("is a number"))
            .collect();
        let expected: Vec<u32> = (1..=count).rev().collect();
        assert_eq!(numbers, expected);
        assert_eq!(pins.request("HEAD", "main", "", "").status, 200);
    }
    let text = pins.get("main").text();
    let signature = text.lines().nth(513).expect("a signature");
    assert!(signature.starts_with("sig cache-1:"), "{signature}");
}

#[test]
fn the_list_has_the_newest_generation_of_each_pin() {
    let pins = Pins::new(&["one", "two"]);
    let paths = &pins.paths;
    assert_eq!(pins.get("").text(), "end 0\n");
    for (name, path) in [("b", 0), ("a%2F1", 0), ("c%20d", 1), ("b", 1)] {
        pins.put(name, "", &paths[path]);
    }
    pins.put("gone?expires=5", "", &paths[0]);
    pins.put("short", "", &paths[0]);
    pins.put("short?expires=5", "", &paths[1]);
    pins.site
        .sql("update pin set created_at = 7, expires_at = expires_at - 1000000");
    let (one, two) = (&paths[0], &paths[1]);
    let expected = format!(
        "pin a%2F1 1 {one} 7\npin b 2 {two} 7\npin c%20d 1 {two} 7\npin short 1 {one} 7\nend 4\n"
    );
    let list = pins.get("");
    assert_eq!((list.status, list.text()), (200, expected));
    assert_eq!(list.header("cache-control"), Some("no-store"));
    assert_eq!(pins.get("gone").status, 404);
    assert_eq!(pins.log("short"), [line(1, one, "- ci-1 - -")]);
    // The number of an expired generation is not used again.
    assert_eq!(pins.put("gone", "If-None-Match: *\r\n", two), 2);
    assert_eq!(pins.put("short", "If-Match: \"1\"\r\n", two), 3);

    // A deleted cache has no pins.
    let mut delete = samovar();
    delete.args(["cache", "delete", "--yes", "default", "--storage"]);
    output(delete.arg(pins.site.storage()));
    assert_eq!(
        (pins.get("").text(), pins.get("b").status),
        ("end 0\n".to_owned(), 404)
    );
}

#[test]
fn pins_and_generations_are_removed() {
    let pins = Pins::new(&["one", "two", "three"]);
    let paths = &pins.paths;
    let fill = || {
        for path in paths {
            pins.put("main", "", path);
        }
    };
    let delete = |rest: &str, fields: &str| {
        let response = pins.request("DELETE", rest, fields, "");
        (response.status, response.text())
    };
    let removed = |count: u32| (200, format!("removed {count}\nend 1\n"));
    let generations = || {
        let log = pins.log("main");
        log.iter().map(|words| words[1].clone()).collect::<Vec<_>>()
    };
    fill();
    let refused = pins.request("DELETE", "main", "If-Match: \"2\"\r\n", "");
    assert_refused(&refused, 412, &["\"main\" is 3"]);
    assert_eq!(
        delete("main?generation=2", "If-Match: \"3\"\r\n"),
        removed(1)
    );
    assert_eq!(
        delete("main?generation=2", "If-Match: \"3\"\r\n"),
        removed(0)
    );
    assert_eq!(generations(), ["3", "1"]);
    // The number of a removed generation is not used again: a client that has read it would take
    // the new generation for the one that it knows.
    assert_eq!(delete("main?generation=3", ""), removed(1));
    assert_eq!(generations(), ["1"]);
    assert_eq!(pins.put("main", "If-Match: \"1\"\r\n", &paths[1]), 4);
    assert_eq!(delete("main", "If-Match: \"4\"\r\n"), removed(2));
    assert_eq!(delete("main", "If-Match: \"4\"\r\n"), removed(0));
    assert_eq!(pins.get("main").status, 404);
    assert_eq!(pins.put("main", "If-None-Match: *\r\n", &paths[0]), 5);
    // `keep` counts generations, whatever their numbers are.
    assert_eq!(pins.put("main?keep=2", "", &paths[1]), 6);
    assert_eq!(generations(), ["6", "5"]);
    let mut remove = samovar();
    remove.args(["pin", "remove", "main", "--storage"]);
    output(remove.arg(pins.site.storage()));
    assert_eq!(pins.put("main", "", &paths[0]), 7);

    for wrong in [
        "main?generation=0",
        "main?generation=x",
        "main?generations=1",
        "",
    ] {
        assert_eq!(delete(wrong, "").0, 400, "{wrong}");
    }
}

#[test]
fn changes_of_pins_are_logged() {
    let pins = Pins::new(&["one", "two"]);
    let paths = &pins.paths;
    pins.put("main", "", &paths[0]);
    let process = &pins.server.process;
    process.wait_for("-one was pinned as \"main\" with the token \"ci-1\"");
    pins.put("main", "", &paths[1]);
    assert_eq!(pins.request("DELETE", "main", "", "").status, 200);
    process.wait_for("2 generations of the pin \"main\" were removed with the token \"ci-1\"");
}

#[test]
fn pins_are_private_even_in_a_public_cache() {
    let pins = Pins::new(&["mr-app", "main"]);
    let paths = &pins.paths;
    let (site, server) = (&pins.site, &pins.server);
    pins.put("main", "", &paths[0]);
    let revoked = site.token(&["--rights", "read", "--name", "left"]);
    site.revoke("left");
    let expired = site.expired_token();
    let pusher = site.token(&["--rights", "push"]);
    for target in ["/upload/pin/main", "/upload/pin/", "/upload/pin/absent"] {
        for token in ["", "smv1_unknown", expired, &revoked] {
            assert_refused(&server.request("GET", target, token), 401, &["token"]);
        }
        let refused = server.request("GET", target, &pusher);
        assert_refused(&refused, 403, &["may not read pins", "read or pin"]);
    }
    let reader = site.token(&["--rights", "read"]);
    let limited = site.token(&["--rights", "pin", "--names", "mr-*"]);
    for token in [&reader, &limited] {
        for target in ["/upload/pin/main", "/upload/pin/"] {
            assert_eq!(server.request("GET", target, token).status, 200);
            assert_eq!(server.request("HEAD", target, token).status, 200);
        }
    }
    for token in [&reader, &pusher] {
        let refused = server.request("DELETE", "/upload/pin/main", token);
        assert_refused(&refused, 403, &["may not pin"]);
    }
    // In the name of a pin, `/` counts as `-`.
    let refused = server.put(&limited, "/upload/pin/ma%2Fapp", &paths[0]);
    assert_refused(&refused, 403, &["\"ma/app\"", "\"mr-*\""]);
    let response = server.put(&limited, "/upload/pin/mr%2Fapp", &paths[0]);
    assert_eq!(response.status, 200, "{}", response.text());
    let refused = server.request("DELETE", "/upload/pin/main", &limited);
    assert_refused(&refused, 403, &["\"main\"", "\"mr-*\""]);
    let response = server.request("DELETE", "/upload/pin/mr%2Fapp", &limited);
    assert_eq!(
        (response.status, response.text()),
        (200, "removed 1\nend 1\n".to_owned())
    );
    assert_eq!(pins.log("main").len(), 1);

    for method in ["POST", "PATCH"] {
        let refused = pins.request(method, "main", "", "");
        assert_refused(&refused, 405, &["GET, HEAD, PUT, DELETE"]);
        assert_eq!(refused.header("allow"), Some("GET, HEAD, PUT, DELETE"));
    }
    for (rest, part) in [
        ("main?x=1", "\"x\""),
        ("main?wait=1&wait=2", "wait occurs twice"),
        ("a%0Ab", "1 to 255"),
        ("?x=1", "\"x\""),
    ] {
        assert_refused(&pins.get(rest), 400, &[part]);
    }
}

#[test]
fn a_token_with_the_right_to_pin_reads_pins_of_a_private_cache() {
    let site = Site::new();
    site.configure_empty("[access]\nnetworks = [\"192.0.2.0/24\"]\n");
    let pins = Pins::of(site, &["one"]);
    let paths = &pins.paths;
    let (site, server) = (&pins.site, &pins.server);
    pins.put("main", "", &paths[0]);
    for rights in ["pin", "read"] {
        let token = site.token(&["--rights", rights]);
        for target in ["/upload/pin/main", "/upload/pin/"] {
            assert_eq!(
                server.request("GET", target, &token).status,
                200,
                "{rights}"
            );
        }
    }
    let pusher = site.token(&["--rights", "push"]);
    let narinfo = MadePath::new("one").target();
    let refused = server.request("GET", "/upload/pin/main", &pusher);
    assert_refused(&refused, 403, &["may not read pins", "read or pin"]);
    assert_refused(&server.get("/upload/pin/main"), 401, &["needs a token"]);
    let pinner = site.token(&["--rights", "pin"]);
    assert_eq!(server.request("GET", &narinfo, &pinner).status, 403);
    assert_eq!(
        server.request("DELETE", "/upload/pin/main", &pinner).status,
        200
    );
}

/// All encodings of a name are the same pin (RFC 3986, 6.2.2), and a token is limited by the
/// decoded name.
#[test]
fn a_pin_has_one_name_in_all_encodings() {
    let pins = Pins::new(&["mr-app", "main"]);
    let paths = &pins.paths;
    let same = ["mr%2Fapp", "mr%2fapp", "%6dr%2F%61pp", "%6D%72%2F%61%70%70"];
    let none = "If-None-Match: *\r\n";
    assert_eq!(pins.put(same[0], none, &paths[0]), 1);
    for name in same {
        let refused = pins.request("PUT", name, none, &paths[1]);
        assert_refused(&refused, 412, &["\"mr/app\" is 1"]);
        assert_eq!(pins.log(name), pins.log(same[0]));
    }
    // A name is decoded once.
    pins.put("mr%252Fapp", none, &paths[1]);
    pins.put("main", none, &paths[1]);
    let list = pins.get("").text();
    for name in ["main", "mr%252Fapp", "mr%2Fapp"] {
        assert!(list.contains(&format!("pin {name} 1 ")), "{list}");
    }
    let token = pins.site.token(&["--rights", "pin", "--names", "mr-*"]);
    for name in [
        "main",
        "m%61in",
        "%6d%61%69%6e",
        "mr%252Fapp",
        "%6dr%252fapp",
    ] {
        let target = format!("/upload/pin/{name}");
        for response in [
            pins.server.put(&token, &target, &paths[0]),
            pins.server.request("DELETE", &target, &token),
        ] {
            assert_refused(&response, 403, &["\"mr-*\""]);
        }
    }
    for name in same {
        let target = format!("/upload/pin/{name}");
        let response = pins.server.put(&token, &target, &paths[0]);
        assert_eq!(response.text(), format!("pinned 1 {}\nend 1\n", paths[0]));
    }
    // Other parts of a URL are decoded too, but have no encoded slashes.
    for (target, status) in [
        ("/upload/p%69n/main", 200),
        ("/%75pload/pin/main", 200),
        ("/upload%2Fpin/main", 404),
        ("/upload/pin%2Fmain", 404),
    ] {
        let response = pins.server.request("GET", target, &pins.token);
        assert_eq!(response.status, status, "{target}");
    }
    for name in ["mr/app", "mr%2Fapp/", "mr%2", "mr%zz", "mr%00", "mr%FF"] {
        let refused = pins.request("GET", name, "", "");
        assert_refused(&refused, 400, &["percent-encoded", "also its slashes"]);
    }
}

#[test]
fn bodies_have_limits() {
    let pins = Pins::new(&["one"]);
    let paths = &pins.paths;
    let longest = "%61".repeat(1024);
    let body = format!("{}\nhost {longest}\nmessage {longest}\n", paths[0]);
    assert_eq!(pins.put("main", "", &body), 1);
    let decoded = "a".repeat(1024);
    assert_eq!(
        pins.log("main"),
        [line(1, &paths[0], &format!("- ci-1 {decoded} {decoded}"))]
    );
    for (rest, part) in [
        (format!("\nhost {longest}a"), "1 to 1024 bytes"),
        (format!("\nmessage {longest}a"), "1 to 1024 bytes"),
        ("\nhost ".to_owned(), "1 to 1024 bytes"),
        ("\nhost a\nhost b".to_owned(), "two lines host"),
        ("\nuser a".to_owned(), "\"user\""),
        ("\nmessage a b".to_owned(), "percent-encoded"),
    ] {
        let refused = pins.request("PUT", "main", "", &format!("{}{rest}", paths[0]));
        assert_refused(&refused, 400, &[part]);
    }
    let refused = pins.request("PUT", "main", "", &"a".repeat(8000));
    assert_refused(&refused, 413, &["more than"]);
}

#[test]
fn names_that_look_like_other_paths_are_not_given_to_new_pins() {
    use samovar_protocol::pins::Condition;
    use samovar_storage::metadata::{NewPin, pins};

    let pins = Pins::new(&["one"]);
    let sentence = "no part between slashes may be empty, \".\" or \"..\"";
    let metadata = samovar_storage::open_database(&pins.site.storage()).unwrap();
    let path = samovar_nix::StorePath::from_base_name(&pins.paths[0]).unwrap();
    for (name, url) in [
        ("..", "%2E%2E"),
        ("a//b", "a%2F%2Fb"),
        ("/a", "%2Fa"),
        ("a/", "a%2F"),
    ] {
        assert_refused(
            &pins.request("PUT", url, "", &pins.paths[0]),
            400,
            &[sentence],
        );
        let mut add = samovar();
        add.args(["pin", "add", "--storage"])
            .arg(pins.site.storage())
            .args([name, &format!("/nix/store/{}", pins.paths[0])]);
        assert!(testkit::process::fails(&mut add).contains(sentence));
        // Such a pin of an earlier version can be read and removed.
        let new = NewPin {
            cache: "default".to_owned(),
            name: name.parse().unwrap(),
            hash_part: path.hash_part(),
            keep: None,
            expires_at: None,
            token: None,
            host: None,
            message: None,
            condition: Condition::default(),
        };
        pins::add(&metadata, &new).unwrap();
        assert_eq!(pins.log(url).len(), 1);
        let mut remove = samovar();
        remove.args(["ref", "remove", &format!("{}#{name}", pins.server.url())]);
        output(remove.env("SAMOVAR_TOKEN", &pins.token));
        assert_eq!(pins.get(url).status, 404);
    }
}
