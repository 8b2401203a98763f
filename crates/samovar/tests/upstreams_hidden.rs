//! A path of an upstream that a policy hides cannot be told apart from one that does not exist:
//! while the upstream answers, while it is down, and when the path is kept.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_upstreams;

use std::sync::LazyLock;

use support_upstreams::{Act, FileCache, Relay, Upstream, field, kept_count};
use testkit::eventually;
use testkit::http1::{Connection, Response};
use testkit::nix::hash_part;

/// The cache that all tests of this file read.
static CACHE: LazyLock<FileCache> = LazyLock::new(|| FileCache::new("xz"));

/// A path that nobody has, with a hash part for each purpose.
fn nowhere(number: usize) -> String {
    format!("/nix/store/{number:0>32}-nowhere")
}

/// Returns what a client sees of a response.
fn seen(response: &Response) -> (u16, Vec<String>, String) {
    let fields = response.head_without_date();
    let fields = fields.into_iter().map(str::to_owned).collect();
    (response.status, fields, response.text())
}

/// A server with an open cache, and one that denies `low`.
struct Denied {
    upstream: Upstream,
    relay: Relay,
    dir: tempfile::TempDir,
}

impl Denied {
    fn new(options: &str) -> Self {
        let upstream = Upstream::start(&CACHE.root(), |_| Act::Serve);
        let dir = tempfile::tempdir().unwrap();
        let (url, key) = (upstream.url(), &CACHE.public_key);
        let storage = dir.path().join("storage");
        let relay = Relay::with(&format!(
            "storage = {storage:?}\n[upstreams.up]\nurl = {url:?}\npublic-keys = [{key:?}]\n\
             [caches.main]\nprefix = \"/\"\nnegative-ttl = \"60 s\"\n{options}\
             policy.deny = [{{ names = [\"low\"] }}]\n[caches.open]\n"
        ));
        Self {
            upstream,
            relay,
            dir,
        }
    }

    /// Asserts that clients of the main cache see the same of `low` and of a path that nobody has.
    #[track_caller]
    fn assert_hidden(&self, number: usize) {
        let absent = nowhere(number);
        let narinfo = |path: &str| seen(&self.relay.narinfo(path).0);
        assert_eq!(narinfo(&CACHE.low), narinfo(&absent));
        let nar_hash = field(&CACHE.narinfo(&CACHE.low), "NarHash")
            .trim_start_matches("sha256:")
            .to_owned();
        let nar = |path: &str| {
            let target = format!("/nar/{}-{nar_hash}.nar.xz", hash_part(path));
            seen(&self.relay.get(&target))
        };
        assert_eq!(nar(&CACHE.low), nar(&nowhere(number + 100)));
        // Another NAR than the one that the path has.
        let other = |path: &str| {
            let target = format!("/nar/{}-{:0>52}.nar.xz", hash_part(path), 0);
            seen(&self.relay.get(&target))
        };
        assert_eq!(other(&CACHE.low), other(&nowhere(number + 300)));
        let bulk = |path: &str| {
            let body = format!("{}\n", hash_part(path));
            let mut client = Connection::connect(self.relay.address);
            client.send(format!(
                "POST /narinfos HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ));
            let response = client.response(false);
            let text = response.text().replace(hash_part(path), "HASH");
            (response.status, text)
        };
        assert_eq!(bulk(&CACHE.low), bulk(&nowhere(number + 200)));
    }

    fn make_down(&self) {
        self.upstream.follow(|_| Act::Close);
        for number in 0..3 {
            self.relay.narinfo(&nowhere(1000 + number));
        }
        self.relay.server.wait_for("is not asked until");
    }
}

#[test]
fn a_hidden_path_is_like_an_absent_one_in_all_states() {
    for when_down in ["miss", "error"] {
        let options = format!("upstream-down = \"{when_down}\"\n");
        Denied::new(&options).assert_hidden(1);
        let denied = Denied::new(&options);
        let open = denied
            .relay
            .get(&format!("/open/{}.narinfo", hash_part(&CACHE.low)));
        assert_eq!(open.status, 200);
        denied.make_down();
        // The server knows the narinfo.
        denied.assert_hidden(2);
    }
}

#[test]
fn a_hidden_path_that_is_kept_is_like_an_absent_one() {
    for when_down in ["miss", "error"] {
        let denied = Denied::new(&format!("upstream-down = \"{when_down}\"\n"));
        let narinfo = format!("/open/{}.narinfo", hash_part(&CACHE.low));
        let narinfo = denied.relay.get(&narinfo).text();
        let nar = denied
            .relay
            .get(&format!("/open/{}", field(&narinfo, "URL")));
        assert_eq!(nar.body, CACHE.nar(&CACHE.low));
        let storage = denied.dir.path().join("storage");
        eventually("it is kept", || kept_count(&storage) == 1);
        if when_down == "miss" {
            denied.assert_hidden(3);
            denied.make_down();
            // Both are remembered as absent.
            denied.assert_hidden(3);
        } else {
            denied.make_down();
            denied.assert_hidden(4);
        }
    }
}
