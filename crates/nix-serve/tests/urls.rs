//! Every URL of nix-serve, nix-serve-ng and harmonia is supported, with nix-serve's texts where it
//! has some. HEAD has the header fields of GET.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_process;

use std::net::SocketAddr;

use support::{hash_part, local, nix, output, sample, sample_root};
use support_process::{Connection, once, serve_sample};

const NO_PATH: &str = "No such path.\n";
const NOT_FOUND: &str = "File not found.\n";
const WRONG_HASH: &str = "Incorrect NAR hash. Maybe the path has been recreated.\n";
const INFO: &str = "StoreDir: /nix/store\nWantMassQuery: 1\nPriority: 30\n";
/// A hash part that no path has.
const ABSENT: &str = "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz";

/// A path of the sample store, as strings from which URLs are built.
struct Subject {
    store_path: String,
    hash: String,
    nar_hash: String,
    nar_size: u64,
}

impl Subject {
    fn of(addr: SocketAddr, key: &str) -> Self {
        let store_path = sample(key);
        let hash = hash_part(&store_path).to_owned();
        let narinfo = once(addr, &format!("/{hash}.narinfo")).text();
        let field = |name: &str| {
            let line = narinfo.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().to_owned()
        };
        Self {
            nar_hash: field("NarHash: sha256:"),
            nar_size: field("NarSize: ").parse().unwrap(),
            store_path,
            hash,
        }
    }

    /// Replaces `{H}` by the hash part, `{N}` by the NAR hash, `{Z}` by a hash part that no path
    /// has, and `{M}` by another NAR hash.
    fn fill(&self, pattern: &str) -> String {
        let mut other: Vec<char> = self.nar_hash.chars().collect();
        other[51] = if other[51] == '0' { '1' } else { '0' };
        pattern
            .replace("{H}", &self.hash)
            .replace("{N}", &self.nar_hash)
            .replace("{M}", &other.into_iter().collect::<String>())
            .replace("{Z}", ABSENT)
    }

    /// Makes the NAR with the real Nix.
    fn nar(&self) -> Vec<u8> {
        let real = sample_root().join(self.store_path.trim_start_matches('/'));
        let mut command = nix("nix-store", &sample_root());
        let output = command.arg("--dump").arg(real).output().unwrap();
        assert!(output.status.success());
        assert_eq!(output.stdout.len() as u64, self.nar_size);
        output.stdout
    }
}

#[test]
fn errors_have_the_texts_of_nix_serve() {
    let (_server, addr) = serve_sample(&[]);
    let tree = Subject::of(addr, "tree");
    let mut connection = Connection::connect(addr);
    let rows: &[(u16, &str, &[&str])] = &[
        (200, INFO, &["/nix-cache-info", "/nix-cache-info?x=1"]),
        (
            404,
            NO_PATH,
            &[
                "/{Z}.narinfo",
                "/{Z}.narinfo?x=1",
                "/abc.narinfo",
                "/{H}0.narinfo",
                // 32 characters, one of which is not in the base-32 alphabet.
                "/ezzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz.narinfo",
                "/nar/{Z}-{N}.nar",
                "/nar/{Z}.nar",
                "/nar/{Z}-123.nar",
                "/nar/abc.nar",
                "/nar/{N}.nar",
                "/nar/{N}.nar?hash={Z}",
                "/nar/{N}.nar?hash=x",
                "/{Z}.ls",
                "/log/{Z}-nope.drv",
                "/log/{Z}-nope",
                "/log/{Z}-nope.drv?x=1",
            ],
        ),
        (
            404,
            WRONG_HASH,
            &[
                "/nar/{H}-{M}.nar",
                "/nar/{H}-123.nar",
                "/nar/{M}.nar?hash={H}",
                "/nar/{M}.nar?a=b&hash={H}",
            ],
        ),
        (
            404,
            NOT_FOUND,
            &[
                "/",
                "/.narinfo",
                "/x/{H}.narinfo",
                "//{H}.narinfo",
                "/{H}-name.narinfo",
                "/{H}.narinfo/",
                "/{H}",
                "/nar/{H}-{N}.nar.xz",
                "/nar/{H}-{N}",
                "/nar/{H}-.nar",
                "/nar/",
                "/nar",
                "/log/",
                "/log/{H}",
                "/log/{H}-a.drv/foo",
                "/serve/{H}/",
                "/version",
                "/health",
                "/metrics",
                "/debuginfo/abc",
                "/realisations/",
                "/realisations/x.doi",
                "/realisations/sha256:{M}!out.doi",
                "/build-trace-v2/{Z}-nope.drv/out.doi",
                "/build-trace-v2/{Z}-nope/out.doi",
                "/nix-cache-info/",
                "/NIX-CACHE-INFO",
            ],
        ),
    ];
    for (status, body, patterns) in rows {
        for pattern in *patterns {
            connection.check_text(&tree.fill(pattern), *status, body);
        }
    }
    let upper = tree.hash.to_uppercase();
    connection.check_text(&format!("/{upper}.narinfo"), 404, NOT_FOUND);
}

#[test]
fn a_narinfo_has_the_fields_of_nix_serve_in_their_order() {
    let (_server, addr) = serve_sample(&[]);
    let mut connection = Connection::connect(addr);
    for key in [
        "built",
        "empty",
        "signed",
        "multi_out",
        "self_reference",
        "deriver_gone",
    ] {
        let subject = Subject::of(addr, key);
        let narinfo = connection.get_and_head(&subject.fill("/{H}.narinfo"), &[]);
        assert_eq!(narinfo.status, 200);
        assert_eq!(narinfo.header("content-type"), Some("text/x-nix-narinfo"));
        let text = narinfo.text();
        let len = text.len().to_string();
        assert_eq!(narinfo.header("content-length"), Some(len.as_str()));
        let names: Vec<_> = text
            .lines()
            .map(|line| line.split_once(": ").unwrap().0)
            .collect();
        let order = [
            "StorePath",
            "URL",
            "Compression",
            "NarHash",
            "NarSize",
            "References",
            "Deriver",
            "Sig",
        ];
        let places: Vec<_> = names
            .iter()
            .map(|name| order.iter().position(|known| known == name).unwrap())
            .collect();
        assert!(places.is_sorted(), "{text}");
        let begin = subject.fill("URL: nar/{H}-{N}.nar\nCompression: none\nNarHash: sha256:{N}\n");
        let store_path = &subject.store_path;
        assert!(
            text.starts_with(&format!("StorePath: {store_path}\n{begin}")),
            "{text}"
        );
        let query = |what: &str| {
            let mut command = nix("nix-store", &sample_root());
            command.args(["--store", &local(&sample_root()), "--query", what]);
            output(command.arg(store_path))
        };
        let mut references: Vec<String> = query("--references")
            .lines()
            .map(|path| path[11..].to_owned())
            .collect();
        references.sort();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("References: "));
        assert_eq!(line.unwrap_or_default(), references.join(" "));
        assert_eq!(line.is_some(), !references.is_empty());
        // The query string is not part of the name.
        let same = connection.get(&subject.fill("/{H}.narinfo?x=1"));
        assert_eq!(same.body, narinfo.body);
    }
}

#[test]
fn a_nar_is_served_at_each_of_its_urls() {
    let (_server, addr) = serve_sample(&[]);
    let mut connection = Connection::connect(addr);
    for key in ["tree", "kinds", "single_file", "odd"] {
        let subject = Subject::of(addr, key);
        let nar = subject.nar();
        for pattern in [
            "/nar/{H}-{N}.nar",
            "/nar/{H}.nar",
            "/nar/{N}.nar?hash={H}",
            "/nar/{N}.nar?a=b&hash={H}&c",
            "/nar/{H}-{N}.nar?x=1",
            "/nar/{H}.nar?hash=x",
        ] {
            let reply = connection.get_and_head(&subject.fill(pattern), &[]);
            assert_eq!(reply.status, 200, "{pattern}");
            assert!(reply.body == nar, "{key} {pattern}");
            let len = subject.nar_size.to_string();
            assert_eq!(reply.header("content-length"), Some(len.as_str()));
            assert_eq!(reply.header("accept-ranges"), Some("bytes"));
            assert_eq!(reply.header("content-encoding"), None);
            // As a text type, proxies would compress the NAR, which breaks resumption.
            assert_eq!(reply.header("content-type"), Some("application/x-nix-nar"));
        }
    }
}

#[test]
fn other_methods_get_405_with_allow() {
    let (_server, addr) = serve_sample(&[]);
    let tree = Subject::of(addr, "tree");
    let mut connection = Connection::connect(addr);
    for path in [
        "/nix-cache-info",
        "/{H}.narinfo",
        "/nar/{H}-{N}.nar",
        "/nowhere",
    ] {
        for method in [
            "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "PROPFIND", "get",
        ] {
            let reply = connection.request(method, &tree.fill(path), &["Content-Length: 0"]);
            assert_eq!(reply.status, 405, "{method} {path}");
            assert_eq!(reply.header("allow"), Some("GET, HEAD"));
            assert_eq!(reply.header("content-type"), Some("text/plain"));
        }
    }
    connection.send(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(connection.response(false).status, 405);
    connection.check_text("/nix-cache-info", 200, INFO);
}

/// The body of a refused upload is not parsed as the next request.
#[test]
fn the_body_of_a_refused_upload_is_not_parsed_as_a_request() {
    let (_server, addr) = serve_sample(&[]);
    let inner = "GET /nix-cache-info HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut connection = Connection::connect(addr);
    let len = inner.len();
    connection.send(
        format!("PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n{inner}").as_bytes(),
    );
    connection.send(b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let (bytes, _) = connection.rest();
    let text = String::from_utf8(bytes).unwrap();
    assert!(text.starts_with("HTTP/1.1 405 "), "{text}");
    assert!(!text.contains("WantMassQuery"), "{text}");
}

#[test]
fn percent_encoding_is_decoded_once() {
    let (_server, addr) = serve_sample(&[]);
    let tree = Subject::of(addr, "tree");
    let mut connection = Connection::connect(addr);
    let narinfo = connection.get(&tree.fill("/{H}.narinfo"));
    let every_byte =
        |text: &str| -> String { text.bytes().map(|byte| format!("%{byte:02X}")).collect() };
    let first = tree.fill("{H}");
    let (first, rest) = (first.as_bytes()[0], &first[1..]);
    for path in [
        format!("/%{first:02x}{rest}.narinfo"),
        format!("/{}", every_byte(&tree.fill("{H}.narinfo"))),
        tree.fill("/{H}%2enarinfo"),
    ] {
        let reply = connection.get_and_head(&path, &[]);
        assert_eq!((reply.status, &reply.body), (200, &narinfo.body), "{path}");
    }
    connection.check_text("/%6eix-cache-info", 200, INFO);
    for path in [
        "/%256eix-cache-info",
        "/nix-cache-info%00",
        "/nix-cache-info%",
        "/nix-cache-info%2",
        "/nix-cache-info%zz",
        "/%2fnix-cache-info",
        "/nar%2f{H}-{N}.nar",
        "/{H}%00.narinfo",
        "/%ff%fe",
    ] {
        connection.check_text(&tree.fill(path), 404, NOT_FOUND);
    }
}

#[test]
fn no_url_leads_out_of_the_store() {
    let (_server, addr) = serve_sample(&[]);
    let tree = Subject::of(addr, "tree");
    let mut connection = Connection::connect(addr);
    for path in [
        "/../nix-cache-info",
        "/./nix-cache-info",
        "/../../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/log/../../../../etc/passwd",
        "/log/..%2f..%2fetc%2fpasswd",
        "/log/{H}-..%2f..%2fx.drv",
        "/log/{H}-a%00.drv",
        "/nar/../nix-cache-info",
        "/nar/{H}-{N}.nar/../../../nix-cache-info",
        "/nar/..%2f{H}.nar",
        "/build-trace-v2/../x.doi",
        "/build-trace-v2/{H}-a.drv%2fout.doi",
        "/realisations/..%2f..%2fetc%2fpasswd.doi",
        "/etc/passwd",
        "/nix/store/{H}-x",
    ] {
        connection.check_text(&tree.fill(path), 404, NOT_FOUND);
    }
}

#[test]
fn absolute_targets_are_served_by_their_path() {
    let (_server, addr) = serve_sample(&[]);
    let mut connection = Connection::connect(addr);
    // The absolute form is valid with the host of these requests.
    assert_eq!(connection.get("http://a/nix-cache-info").text(), INFO);
}

#[test]
fn a_cache_with_a_prefix_answers_only_below_it() {
    for given in ["/cache", "/cache/"] {
        let (_server, addr) = serve_sample(&["--path", given]);
        let mut connection = Connection::connect(addr);
        connection.check_text("/cache/nix-cache-info", 200, INFO);
        let hash = hash_part(&sample("tree")).to_owned();
        let reply = connection.get_and_head(&format!("/cache/{hash}.narinfo"), &[]);
        assert_eq!(reply.status, 200);
        let url = reply.text().lines().nth(1).unwrap()[5..].to_owned();
        assert_eq!(connection.get(&format!("/cache/{url}")).status, 200);
        for path in [
            "/nix-cache-info".to_owned(),
            "/cachenix-cache-info".to_owned(),
            "/cache".to_owned(),
            "/cache/".to_owned(),
            "/Cache/nix-cache-info".to_owned(),
            "/cache/cache/nix-cache-info".to_owned(),
            format!("/{hash}.narinfo"),
            format!("/{url}"),
        ] {
            connection.check_text(&path, 404, NOT_FOUND);
        }
    }
}

#[test]
fn nix_cache_info_has_the_configured_priority() {
    for (arguments, expected) in [
        (&["--priority", "100"][..], 100),
        (&["--priority=0"], 0),
        (&["-priority", "2147483647"], 2_147_483_647),
        (&[], 30),
    ] {
        let (_server, addr) = serve_sample(arguments);
        let expected = format!("StoreDir: /nix/store\nWantMassQuery: 1\nPriority: {expected}\n");
        Connection::connect(addr).check_text("/nix-cache-info", 200, &expected);
    }
}
