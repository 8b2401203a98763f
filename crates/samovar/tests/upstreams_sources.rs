//! A cache serves what its option `sources` names, and nothing else: a mirror neither has nor shows
//! paths of the Nix store, and a cache without the storage neither has nor takes uploads.

mod support;
mod support_uploads;
mod support_upstreams;

use std::fs;
use std::sync::LazyLock;

use support_uploads::{MadePath, Site};
use support_upstreams::{Act, Client, FileCache, Relay, Upstream, field, try_build};
use testkit::http1::Connection;
use testkit::nix::{OwnStore, hash_part, local};

/// The cache that the mirrors of this file have as their upstream.
static CACHE: LazyLock<FileCache> = LazyLock::new(|| FileCache::new("xz"));

/// Returns the table of an upstream with the key of [`CACHE`].
fn table(upstream: &Upstream) -> String {
    let (url, key) = (upstream.url(), &CACHE.public_key);
    format!("[upstreams.up]\nurl = {url:?}\npublic-keys = [{key:?}]\n")
}

/// Returns all URLs about a path of the store, and what is sent to each.
fn requests(path: &str, nar_hash: &str) -> Vec<(&'static str, String, String)> {
    let (hash_part, base) = (hash_part(path), path.trim_start_matches("/nix/store/"));
    let get = |url: String| ("GET", url, String::new());
    vec![
        get(format!("/{hash_part}.narinfo")),
        get(format!("/{hash_part}.ls")),
        get(format!("/nar/{hash_part}-{nar_hash}.nar")),
        get(format!("/nar/{hash_part}-{nar_hash}.nar.zst")),
        get(format!("/nar/{hash_part}.nar")),
        get(format!("/log/{base}")),
        get(format!("/closure/{hash_part}")),
        get(format!("/{base}")),
        get(format!("/{base}/")),
        ("POST", "/narinfos".to_owned(), format!("{hash_part}\n")),
        get("/?q=here".to_owned()),
        get("/".to_owned()),
        get("/search?q=here".to_owned()),
    ]
}

#[test]
fn a_mirror_has_nothing_of_the_nix_store() {
    let upstream = Upstream::start(&CACHE.root(), |_| Act::Serve);
    let tables = table(&upstream);
    let relay = Relay::with(&format!("sources = [\"upstreams\"]\n{tables}"));
    let path = relay.store.add_file("here", b"a text of the store");
    let query = ["-q", "--hash", &path];
    let nar_hash = relay.store.run("nix-store", &query);
    let nar_hash = nar_hash.trim().trim_start_matches("sha256:");
    let shows_path = |(method, target, body): &(&str, String, String)| {
        let mut connection = Connection::connect(relay.address);
        let len = format!("Content-Length: {}", body.len());
        connection.send(format!(
            "{method} {target} HTTP/1.1\r\nHost: a\r\n{len}\r\n\r\n{body}"
        ));
        let response = connection.response(false);
        let text = String::from_utf8_lossy(&response.body).into_owned();
        let is_echo = target.contains("?q=") || *method == "POST";
        text.contains("-here") || (response.status == 200 && !is_echo && target.len() > 1)
    };
    for request in requests(&path, nar_hash) {
        assert!(!shows_path(&request), "{request:?}");
    }
    // With the store among the sources, most of these requests have an answer.
    relay.reload(&tables);
    let found = requests(&path, nar_hash);
    let found = found.iter().filter(|request| shows_path(request)).count();
    assert!(found >= 7, "{found}");
    relay.reload(&format!("sources = [\"upstreams\"]\n{tables}"));
    for request in requests(&path, nar_hash) {
        assert!(!shows_path(&request), "{request:?}");
    }
}

#[test]
fn a_mirror_serves_what_upstreams_have_although_the_store_has_it() {
    let upstream = Upstream::start(&CACHE.root(), |_| Act::Serve);
    let relay = Relay::with(&format!("sources = [\"upstreams\"]\n{}", table(&upstream)));
    // The store of the server gets the paths, too.
    let built = Client::new().build(&relay, &CACHE.public_key);
    assert!(!built.has_built("top"), "{}", built.messages);
    let url = relay.url();
    let options = [
        ("substituters", &*url),
        ("trusted-public-keys", &*CACHE.public_key),
    ];
    let (_, messages, is_built) = try_build(&relay.store, &options);
    assert!(is_built, "{messages}");
    let narinfo = relay.narinfo(&CACHE.top).0.text();
    assert!(field(&narinfo, "URL").ends_with(".nar.xz"), "{narinfo}");
    let nar = relay.get(&format!("/{}", field(&narinfo, "URL")));
    assert!(nar.status == 200 && nar.body == CACHE.nar(&CACHE.top));
    // What upstream lacks, a client does not get, although the store has it.
    let path = relay.store.add_file("here", b"a text of the store");
    let client = OwnStore::new();
    let mut copy = client.command("nix");
    copy.args(["copy", "--from", &url, "--no-check-sigs", &path]);
    copy.args(["--to", &local(client.root())]);
    assert!(!copy.output().unwrap().status.success());
}

#[test]
fn a_cache_without_the_storage_neither_has_nor_takes_uploads() {
    let site = Site::new();
    site.configure_empty("");
    let server = site.start();
    let token = site.token(&[]);
    let path = MadePath::new("0");
    server.publish(&token, &path);
    server.assert_serves(&path);
    let config = fs::read_to_string(site.config()).unwrap();
    let without = "sources = [\"nix-store\", \"upstreams\"]\n";
    fs::write(site.config(), format!("{without}{config}")).unwrap();
    server.process.signal("HUP");
    let lines = server.process.lines_to("the configuration was ");
    let warning = "1 path of the cache \"default\", which are not served: to serve them, add \
                   \"storage\" to its sources";
    let is_warning = |line: &String| line.contains(warning);
    assert!(lines.iter().any(is_warning), "{lines:?}");
    server.assert_lacks(&path);
    assert_eq!(server.get("/uploads").status, 404);
    assert_eq!(server.get("/upload/nix-cache-info").status, 405);
    let other = MadePath::new("1");
    let put = server.put(
        &token,
        &format!("/upload{}", other.target()),
        other.narinfo(),
    );
    assert!((400..500).contains(&put.status), "{}", put.status);
    // Uploads are still there.
    fs::write(site.config(), config).unwrap();
    server.process.signal("HUP");
    server.process.wait_for("the configuration was reloaded");
    server.assert_serves(&path);
}
