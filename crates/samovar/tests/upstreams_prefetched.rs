//! `samovar prefetch` makes a server keep the closures of paths that only its upstreams have,
//! fetches nothing twice, and names each path that the server does not have afterwards.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_upstreams;

use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::sync::LazyLock;

use serde_json::Value;
use support::{samovar, secret_file, user};
use support_upstreams::{Act, Client, FileCache, Large, Relay, Upstream, field};
use testkit::http1::Connection;

/// The cache that all tests of this file read.
static CACHE: LazyLock<FileCache> = LazyLock::new(|| FileCache::new("xz"));

/// A server with an upstream, and a directory for its storage.
struct Setup {
    upstream: Upstream,
    relay: Relay,
    dir: tempfile::TempDir,
}

impl Setup {
    /// `head`: options of the server. `tail`: further ones of the upstream.
    fn new(head: &str, tail: &str) -> Self {
        let upstream = Upstream::start(&CACHE.root(), |_| Act::Serve);
        let dir = tempfile::tempdir().unwrap();
        let relay = Relay::with(&Self::tables(&upstream, head, tail));
        Self {
            upstream,
            relay,
            dir,
        }
    }

    /// As [`new`](Self::new), with a storage.
    fn keeping(tail: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let upstream = Upstream::start(&CACHE.root(), |_| Act::Serve);
        let relay = Relay::with(&Self::tables(&upstream, &storage(&dir), tail));
        Self {
            upstream,
            relay,
            dir,
        }
    }

    fn tables(upstream: &Upstream, head: &str, tail: &str) -> String {
        let (url, key) = (upstream.url(), &CACHE.public_key);
        format!("{head}[upstreams.up]\nurl = {url:?}\npublic-keys = [{key:?}]\n{tail}")
    }

    fn reload(&self, tail: &str) {
        let tables = Self::tables(&self.upstream, &storage(&self.dir), tail);
        self.relay.reload(&tables);
    }

    /// Returns the number of requests for NARs at the upstream.
    fn nar_count(&self) -> usize {
        self.upstream.count("/nar/")
    }
}

fn storage(dir: &tempfile::TempDir) -> String {
    let storage: PathBuf = dir.path().join("storage");
    format!("storage = {storage:?}\n")
}

/// Runs `samovar prefetch`.
fn prefetch(url: &str, words: &[&str]) -> Output {
    let mut command = samovar();
    command.args(["prefetch", url]).args(words);
    command.output().unwrap()
}

/// Runs `samovar prefetch`. Returns its output.
#[track_caller]
fn prefetched(relay: &Relay, code: i32, words: &[&str]) -> String {
    let output = prefetch(&relay.url(), words);
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn contains(text: &str, part: &str) {
    assert!(text.contains(part), "{text}");
}

#[test]
fn a_closure_is_kept_and_not_fetched_twice() {
    let setup = Setup::keeping("");
    let text = prefetched(&setup.relay, 0, &["--json", &CACHE.top]);
    let found: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        found["kept"],
        serde_json::json!([CACHE.low, CACHE.top]),
        "{text}"
    );
    let len = CACHE.nar(&CACHE.low).len() + CACHE.nar(&CACHE.top).len();
    assert_eq!(found["downloadSize"], len);
    assert_eq!(setup.nar_count(), 2);
    let text = prefetched(&setup.relay, 0, &[&CACHE.top]);
    contains(
        &text,
        "kept 0 paths, 0 B from upstreams, 2 already on the server; ",
    );
    assert_eq!(setup.nar_count(), 2);
    setup.upstream.follow(|_| Act::Close);
    let relay = setup.relay.restarted();
    let end = Client::new().build(&relay, &CACHE.public_key);
    assert!(!end.has_built("top") && !end.has_built("low"), "{end:?}");
    contains(
        &prefetched(&relay, 0, &[&CACHE.top]),
        "2 already on the server",
    );
}

#[test]
fn paths_that_nobody_has_are_named_and_the_others_are_kept() {
    let setup = Setup::keeping("");
    let file = setup.dir.path().join("own");
    fs::write(&file, "own").unwrap();
    let own = setup.relay.store.add(&file);
    let absent = "/nix/store/00000000000000000000000000000000-absent";
    let words = [&*CACHE.low, absent, &own];
    let text = prefetched(&setup.relay, 1, &words);
    contains(&text, &format!("missing {absent}\nkept 1 path, "));
    contains(&text, ", 1 already on the server, 1 missing; ");
    let usage = prefetch(&setup.relay.url(), &["nonsense"]);
    assert_eq!(usage.status.code(), Some(2), "{usage:?}");
}

#[test]
fn a_path_whose_nar_cannot_be_received_is_named_and_fetched_by_the_next_run() {
    let setup = Setup::keeping("");
    let low = format!("/{}", CACHE.nar_url(&CACHE.low));
    setup.upstream.follow(move |seen| match seen.target == low {
        true => Act::Cut(1000),
        false => Act::Serve,
    });
    let text = prefetched(&setup.relay, 1, &[&CACHE.top]);
    contains(&text, &format!("failed {}: 404 Not Found: ", CACHE.low));
    contains(&text, "up ");
    contains(&text, "kept 1 path, ");
    setup.upstream.follow(|_| Act::Serve);
    let count = setup.nar_count();
    let text = prefetched(&setup.relay, 0, &[&CACHE.top]);
    contains(&text, "kept 1 path, ");
    assert_eq!(setup.nar_count(), count + 1);
}

#[test]
fn a_server_that_keeps_nothing_says_so_and_fetches_nothing() {
    let reason = "not kept 2 paths: the server keeps no paths of this upstream: it needs the \
                  option storage, and keep must not be false\n";
    let setup = Setup::new("", "");
    contains(&prefetched(&setup.relay, 1, &[&CACHE.top]), reason);
    assert_eq!(setup.nar_count(), 0);
    let setup = Setup::keeping("keep = false\n");
    contains(&prefetched(&setup.relay, 1, &[&CACHE.top]), reason);
    assert_eq!(setup.nar_count(), 0);
}

#[test]
fn what_the_storage_had_no_room_for_is_kept_later() {
    let small = format!("keep-size = {}\n", CACHE.nar(&CACHE.low).len() / 2);
    let setup = Setup::keeping(&small);
    // A copy is in the NAR cache.
    let narinfo = setup.relay.narinfo(&CACHE.low).0.text();
    let target = format!("/{}", field(&narinfo, "URL"));
    assert_eq!(setup.relay.get(&target).body, CACHE.nar(&CACHE.low));
    let count = setup.nar_count();
    let text = prefetched(&setup.relay, 1, &[&CACHE.low]);
    contains(
        &text,
        "not kept 1 path: the server has no room: keep-size of this upstream",
    );
    assert_eq!(setup.nar_count(), count);
    setup.reload("");
    contains(&prefetched(&setup.relay, 0, &[&CACHE.low]), "kept 1 path, ");
    let head = Connection::connect(setup.relay.address).request("HEAD", &target, &[]);
    assert_eq!((head.status, head.header("Samovar-Kept")), (200, None));
}

#[test]
fn a_nar_of_many_megabytes_is_kept_and_a_wrong_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let large = Large::new(&storage(&dir));
    let hash = &large.target["/nar/".len()..][..32];
    let mut wrong = large.nar.clone();
    let last = wrong.len() - 100;
    wrong[last] ^= 1;
    large.upstream.follow(move |seen| match seen.is_nar() {
        true => Act::Answer("200 OK", String::new(), wrong.clone()),
        false => Act::Serve,
    });
    let text = prefetched(&large.relay, 1, &[hash]);
    contains(&text, ": the server has aborted its NAR: ");
    large.upstream.follow(|_| Act::Serve);
    // The path counts as absent for ten minutes, or until a restart.
    let relay = large.relay.restarted();
    contains(
        &prefetched(&relay, 0, &[hash]),
        "kept 1 path, 48.0 MiB from upstreams; ",
    );
    large.upstream.follow(|_| Act::Close);
    assert_eq!(relay.get(&large.target).body, large.nar);
}

#[test]
fn a_private_server_needs_a_login() {
    let upstream = Upstream::start(&CACHE.root(), |_| Act::Serve);
    let dir = tempfile::tempdir().unwrap();
    let users = secret_file(dir.path(), "users", &user("reader", "word"));
    let head = format!("{}access.users-file = {users:?}\n", storage(&dir));
    let relay = Relay::with(&Setup::tables(&upstream, &head, ""));
    let refused = prefetch(&relay.url(), &[&CACHE.top]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert_eq!(upstream.seen().len(), 0);
    let url = format!("http://reader:word@{}", relay.address);
    let kept = prefetch(&url, &[&CACHE.top]);
    assert_eq!(kept.status.code(), Some(0), "{kept:?}");
}
