//! What clients and servers send to each other in pushes, about pins and in bulk queries stays the
//! same to the byte: clients and servers of other versions parse it.
//!
//! `docs/push-protocol.md` and `docs/bulk-queries.md` specify it.

mod support;
mod support_pins;
mod support_protocol;
mod support_push;
mod support_uploads;

use std::fs;

use samovar_nix::nixbase32;
use sha2::{Digest as _, Sha256};
use support::{samovar, secret_file};
use support_pins::Pins;
use support_protocol::{Push, hex, narinfo_records, open_line, pack_of};
use support_push::proxy::{Action, Exchange, Proxy};
use support_push::{Pusher, noise};
use support_uploads::{MadePath, Running, Site, hash, nar_of_file};
use testkit::nix::{OwnStore, local};
use testkit::process::output;
use testkit::sqlite::run as sqlite;

/// Length of a part, in bytes: the minimum.
const PART_LEN: usize = 65_536;

fn opened(push: &Push<'_>, lines: &str) -> (String, String) {
    let response = push.send("POST", "open", lines);
    assert_eq!(response.header("content-type"), Some("text/plain"));
    let text = response.text();
    let id = text.split(' ').nth(2).expect("a push id").to_owned();
    (text.replace(&id, "ID"), id)
}

/// Replaces the sentences after `refused`, which are for people.
fn without_reasons(text: &str) -> String {
    let line = |line: &str| match line.strip_prefix("refused ") {
        Some(rest) => {
            let (of, reason) = rest.split_once(' ').expect("a reason");
            assert!(!reason.trim().is_empty(), "{line}");
            format!("refused {of} REASON\n")
        }
        None => format!("{line}\n"),
    };
    text.split_terminator('\n').map(line).collect()
}

#[test]
fn answers_to_pushes() {
    let (_site, server, token) = Site::serving();
    let push = Push::new(&server, &token);
    let [one, two, three] = ["one", "two", "three"].map(MadePath::new);
    server.publish(&token, &one);
    let (text, id) = opened(&push, "");
    assert_eq!(text, "push 1 ID 0 33554432 33554432\nend 0 0 0\n");

    let bad = hash(b"bad");
    let records = [
        (hash(&two.nar), "none", &two.file[..]),
        (bad.clone(), "none", &three.file[..]),
    ];
    let response = push.send("PUT", &format!("{id}/pack"), pack_of(&records));
    let expected = format!("kept {}\nrefused {bad} REASON\nend 1 1\n", hash(&two.nar));
    let text = without_reasons(&response.text());
    assert_eq!((response.status, text), (200, expected));

    let other = open_line(&one).replace('\n', " other\n");
    let lines = [&one, &two, &three].map(open_line).concat() + &other;
    let (text, _) = opened(&push, &lines);
    let [have, link, need] = [&one, &two, &three].map(|path| path.hash_part().to_owned());
    let expected = format!(
        "push 1 ID 4 33554432 33554432\nhave {have}\nlink {link}\nneed {need}\nrefused {have} \
         REASON\nend 1 1 1 1\n"
    );
    assert_eq!(without_reasons(&text), expected);
    let (text, _) = opened(&push, &open_line(&three).replace('\n', " three\n"));
    let expected = format!("push 1 ID 1 33554432 33554432\nneed {need}\nend 0 0 1\n");
    assert_eq!(text, expected);

    let path = MadePath::new("large").containing(&noise(1, PART_LEN));
    let nar = &*hash(&path.nar);
    let list = || push.send("GET", &format!("{id}/part/{nar}"), "").text();
    assert_eq!(list(), "end 0\n");
    let (first, second) = path.file.split_at(PART_LEN);
    for (number, part) in [(1, first), (2, second)] {
        let response = push.part(&id, nar, number, part);
        assert_eq!((response.status, response.text()), (200, String::new()));
    }
    let expected = format!(
        "part 1 {} {}\npart 2 {} {}\nend 2\n",
        first.len(),
        hex(&Sha256::digest(first)),
        second.len(),
        hex(&Sha256::digest(second))
    );
    assert_eq!(list(), expected);
    let response = push.join(&id, nar, 2);
    assert_eq!((response.status, response.text()), (200, String::new()));

    let recipe = format!(
        "samovar-recipe 1\ncopy 0 {len}\nend {len}\n",
        len = path.nar.len()
    );
    let recipe = zstd::encode_all(recipe.as_bytes(), 3).expect("compresses");
    let response = push.send("POST", &format!("{id}/assemble?base={nar}"), recipe);
    let expected = format!("kept {nar} {}\nend 1\n", path.nar.len());
    assert_eq!((response.status, response.text()), (200, expected));

    let unknown = push.publish(&id, &[&two, &three]);
    let expected = format!("need {need}\nend 1\n");
    assert_eq!((unknown.status, unknown.text()), (409, expected));
    let two = two.referring_to(&three.store_path);
    let missing = push.publish(&id, &[&two]);
    let expected = format!("missing {need} {link}\nend 1\n");
    assert_eq!((missing.status, missing.text()), (409, expected));
    let published = push.publish(&id, &[&path, &one]);
    let expected = "published 2\nend 2\n".to_owned();
    assert_eq!((published.status, published.text()), (200, expected));
    let end = push.send("DELETE", &id, "");
    assert_eq!((end.status, end.text()), (200, String::new()));
}

#[test]
fn answers_about_pins() {
    let pins = Pins::new(&["one", "two"]);
    let [one, two] = &pins.paths[..] else {
        unreachable!("two paths");
    };
    let pinned = pins.request("PUT", "mr%2Fa%20b", "", one);
    assert_eq!(pinned.text(), format!("pinned 1 {one}\nend 1\n"));
    pins.site
        .sql("update pin set created_at = 7, lineage = x'0102030405060708090a0b0c0d0e0f10'");
    let body = format!("{two}\nhost -\nmessage a%20%C3%A4%0Ab\n");
    let pinned = pins.request("PUT", "mr%2Fa%20b?expires=60", "If-Match: \"1\"\r\n", &body);
    assert_eq!(pinned.text(), format!("pinned 2 {two}\nend 1\n"));
    let tag = |number| format!("\"{number}-0102030405060708090a0b0c0d0e0f10\"");
    assert_eq!(pinned.header("etag"), Some(&*tag(2)));
    let created = "update pin set created_at = 8, expires_at = 9999999999 where generation = 2";
    pins.site.sql(created);
    let read = pins.get("mr%2Fa%20b");
    assert_eq!(read.header("etag"), Some(&*tag(2)));
    assert_eq!(read.header("samovar-lineages"), Some(&*tag(1)));
    let text = read.text();
    let signed = text.find("sig cache-1:").expect("a signature");
    let end = text.find("end ").expect("an end");
    let expected = format!(
        "generation 2 {two} 8 9999999999 ci-1 %2D a%20%C3%A4%0Ab\ngeneration 1 {one} 7 - ci-1 - -\n"
    );
    assert_eq!((&text[..signed], &text[end..]), (&*expected, "end 2\n"));
    let list = pins.get("").text();
    assert_eq!(list, format!("pin mr%2Fa%20b 2 {two} 8\nend 1\n"));
    let removed = pins.request("DELETE", "mr%2Fa%20b?generation=1", "", "");
    assert_eq!(removed.text(), "removed 1\nend 1\n");
}

#[test]
fn answers_to_bulk_queries() {
    let (_site, server, token) = Site::serving();
    let [one, two] = ["one", "two"].map(MadePath::new);
    server.publish(&token, &one);
    let query = format!("{}\n{}\n", one.hash_part(), two.store_path);
    let response = server.send("POST", "/narinfos", "", query);
    assert_eq!(response.header("content-type"), Some("text/x-nix-narinfos"));
    let narinfo = server.get(&one.target()).text();
    let expected = format!(
        "narinfos 1 2\npath {} {}\n{narinfo}absent {}\nend 1 1 0\n",
        one.hash_part(),
        narinfo.len(),
        two.hash_part()
    );
    assert_eq!((response.status, response.text()), (200, expected));
    let closure = server.get(&format!("/closure/{}", one.hash_part())).text();
    let expected = format!(
        "narinfos 1 1\npath {} {}\n{narinfo}end 1 0 0\n",
        one.hash_part(),
        narinfo.len()
    );
    assert_eq!(closure, expected);
}

/// Returns the id of the push that a client opened.
fn push_id(proxy: &Proxy) -> String {
    let deleted = proxy.exchanges("DELETE /upload/push/1/");
    let [.., last] = &deleted[..] else {
        unreachable!("a push was ended");
    };
    let id = last.line.rsplit('/').next().expect("an id");
    assert_eq!(last.line, format!("DELETE /upload/push/1/{id}"));
    id.to_owned()
}

/// Returns the only exchange with this text in its method and target.
#[track_caller]
fn only(proxy: &Proxy, part: &str) -> Exchange {
    let mut exchanges = proxy.exchanges(part);
    assert_eq!(exchanges.len(), 1, "{part}: {exchanges:?}");
    exchanges.remove(0)
}

fn forwarding(server: &Running) -> Proxy {
    Proxy::start(server.address, |_| Action::Forward)
}

#[test]
fn requests_of_a_push() {
    let site = Site::new();
    let server = site.start();
    let proxy = forwarding(&server);
    let token = site.token(&["--rights", "read,push,pin"]);
    let store = OwnStore::new();
    let small = store.add_file("small", b"small");
    let large_content = noise(1, 33 << 20);
    let large = store.add_file("large", &large_content);
    let pusher = Pusher::new(&local(store.root()), &token);
    pusher.report(&proxy.url(), &[&small, &large]);
    let id = push_id(&proxy);

    let (small_nar, large_nar) = (nar_of_file(b"small"), nar_of_file(&large_content));
    let line = |path: &str, nar: &[u8]| {
        let (hash_part, name) = path[11..].split_once('-').expect("a name");
        format!("{hash_part} {} {} {name}\n", hash(nar), nar.len())
    };
    let open = only(&proxy, "open");
    assert_eq!(open.line, "POST /upload/push/1/open");
    let mut lines = [line(&small, &small_nar), line(&large, &large_nar)];
    lines.sort_unstable();
    let text = String::from_utf8(open.body).expect("is text");
    let mut found: Vec<&str> = text.split_inclusive('\n').collect();
    found.sort_unstable();
    assert_eq!(found, lines);

    let pack = only(
        &proxy,
        "PUT /upload/push/1/ID/pack".replace("ID", &id).as_str(),
    );
    let start = format!("nar {} zstd ", hash(&small_nar));
    let (file, end) = record(&pack.body, &start);
    assert_eq!(zstd::decode_all(file).expect("is compressed"), small_nar);
    assert_eq!(end, b"end 1\n");

    let nar = hash(&large_nar);
    for number in [1, 2] {
        let part = only(
            &proxy,
            &format!("PUT /upload/push/1/{id}/part/{nar}/{number}?"),
        );
        let sha256 = hex(&Sha256::digest(&part.body));
        let target = format!("/upload/push/1/{id}/part/{nar}/{number}?sha256={sha256}");
        assert_eq!(part.line, format!("PUT {target}"));
    }
    let join = only(&proxy, "/join/");
    let target = format!("/upload/push/1/{id}/join/{nar}?parts=2&compression=zstd");
    assert_eq!(
        (join.line, join.body),
        (format!("POST {target}"), Vec::new())
    );

    let publish = only(&proxy, "/publish");
    assert_eq!(publish.line, format!("POST /upload/push/1/{id}/publish"));
    let narinfo = |path: &str, nar: &[u8]| {
        let (hash, len) = (hash(nar), nar.len());
        let signatures = sqlite(
            &store.database(),
            &format!("select ca from ValidPaths where path = '{path}'"),
        );
        let ca = match signatures.trim() {
            "" => String::new(),
            ca => format!("CA: {ca}\n"),
        };
        format!(
            "StorePath: {path}\nURL: -\nCompression: zstd\nNarHash: sha256:{hash}\nNarSize: \
             {len}\nReferences: \n{ca}"
        )
    };
    let narinfos = [narinfo(&small, &small_nar), narinfo(&large, &large_nar)];
    let [one, two] = &narinfos;
    let either = [
        narinfo_records(&narinfos),
        narinfo_records(&[two.clone(), one.clone()]),
    ];
    let body = String::from_utf8(publish.body).expect("is text");
    assert!(either.contains(&body), "{body}\n{}", either[0]);

    pusher.report(&proxy.url(), &["--pin", "mr/a b", "--keep", "5", &small]);
    let pin = only(&proxy, "PUT /upload/pin/");
    assert_eq!(pin.line, "PUT /upload/pin/mr%2Fa%20b?keep=5");
    assert!(has(&pin, "if-none-match: *"), "{}", pin.head);
    assert_eq!(pin.body, small.as_bytes()[11..]);
}

/// Splits a record of a pack, whose line begins with `start`. Returns its bytes, and what follows.
fn record<'a>(body: &'a [u8], start: &str) -> (&'a [u8], &'a [u8]) {
    let rest = body.strip_prefix(start.as_bytes()).expect("a record");
    let end = rest.iter().position(|byte| *byte == b'\n').expect("a line");
    let len = std::str::from_utf8(&rest[..end]).expect("is text");
    rest[end + 1..].split_at(len.parse().expect("is a number"))
}

/// Returns whether the request has this header field, in lower case.
fn has(exchange: &Exchange, field: &str) -> bool {
    let mut lines = exchange.head.lines();
    lines.any(|line| line.to_ascii_lowercase() == field)
}

#[test]
fn requests_of_a_snapshot() {
    let site = Site::new();
    let server = site.start();
    let proxy = forwarding(&server);
    let token = site.token(&["--rights", "read,push,pin"]);
    let token = secret_file(site.dir(), "token", &token);
    let tree = site.dir().join("tree");
    fs::create_dir(&tree).expect("is new");
    fs::write(tree.join("large"), noise(1, 1 << 20)).expect("is written");
    let push = || {
        let mut command = samovar();
        command
            .arg("push")
            .arg(&tree)
            .arg(format!("{}#mr/app", proxy.url()));
        command.args(["--public", "--message", "a \u{e4}", "--keep", "3"]);
        command.arg("--token-file").arg(&token);
        output(command.env("HOME", site.dir()))
    };
    push();
    let host = machine();
    let pin = only(&proxy, "PUT /upload/pin/");
    assert_eq!(pin.line, "PUT /upload/pin/mr%2Fapp?keep=3");
    assert!(has(&pin, "if-none-match: *"), "{}", pin.head);
    let body = String::from_utf8(pin.body).expect("is text");
    let (path, rest) = body.split_once('\n').expect("a line");
    assert_eq!(path.split_once('-').expect("a name").1, "mr-app.manifest");
    assert_eq!(rest, format!("host {host}\nmessage a%20%C3%A4\n"));

    fs::write(tree.join("small"), b"small").expect("is written");
    push();
    // The first recipe is that of the tree, the second that of the manifest.
    let assemble = proxy.exchanges("/assemble?").swap_remove(0);
    let (_, base) = assemble
        .line
        .rsplit_once("/assemble?base=")
        .expect("a base");
    nixbase32::decode_array::<32>(base.as_bytes()).expect("a NAR hash");
    let recipe = zstd::decode_all(&*assemble.body).expect("is compressed");
    let recipe = String::from_utf8_lossy(&recipe).into_owned();
    assert!(
        recipe.starts_with("samovar-recipe 1\ncopy 0 "),
        "{recipe:?}"
    );
    let (_, end) = recipe.rsplit_once("end ").expect("an end");
    let end = end.strip_suffix('\n').expect("a line end");
    assert!(
        end.parse::<u64>().is_ok() && recipe.contains("\ndata "),
        "{recipe:?}"
    );
    let pins = proxy.exchanges("PUT /upload/pin/");
    let lineage = site.sql("select lower(hex(lineage)) from pin where generation = 1");
    let condition = format!("if-match: \"1-{}\"", lineage.trim());
    assert!(has(&pins[1], &condition), "{}", pins[1].head);
}

/// Returns the name of this machine, as clients state it.
fn machine() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/hostname").expect("is readable");
    text.trim().to_owned()
}
