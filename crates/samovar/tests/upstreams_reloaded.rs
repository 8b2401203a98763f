//! A reload (HUP) adds and removes upstreams, and changes their options and logins. Requests in
//! flight get right answers, and a reload that is refused changes nothing.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_upstreams;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex};

use support_upstreams::{Act, FileCache, Relay, Seen, Upstream, field};
use testkit::eventually;
use testkit::http1::Connection;
use testkit::nix::{OwnStore, hash_part, key_pair, local};
use testkit::process::output;

/// The cache that all tests of this file read.
static CACHE: LazyLock<FileCache> = LazyLock::new(|| FileCache::new("none"));

/// Time within which a busy machine answers.
const PATIENT: &str = "upstream-budget = \"60 s\"\n";

/// The end of the line about a reload that is refused.
const REFUSED: &str = "the configuration was not changed";

/// Returns the options of an upstream.
fn table(url: &str, key: &str, more: &str) -> String {
    format!(
        "{PATIENT}[upstreams.up]\nurl = {url:?}\npublic-keys = [{key:?}]\ntimeout = \"60 s\"\n\
         {more}"
    )
}

fn status(relay: &Relay) -> u16 {
    relay.narinfo(&CACHE.top).0.status
}

#[track_caller]
fn reload(relay: &Relay, tables: &str) -> String {
    let line = relay.reload(tables);
    assert!(line.contains("the configuration was reloaded"), "{line}");
    line
}

#[test]
fn a_reload_adds_removes_and_changes_upstreams() {
    let upstream = Upstream::start(&CACHE.root(), |_| Act::Serve);
    let key = &*CACHE.public_key;
    let relay = Relay::with(PATIENT);
    assert_eq!(status(&relay), 404);
    let right = table(&upstream.url(), key, "");
    let line = reload(&relay, &right);
    assert!(line.ends_with("changed: upstreams.up (new)"), "{line}");
    assert_eq!(status(&relay), 200);
    // Another key of the same name: what was found with the old one is forgotten.
    let (_, other) = key_pair(relay.store.root(), "up-1");
    reload(&relay, &table(&upstream.url(), &other, ""));
    assert_eq!(status(&relay), 404);
    reload(&relay, &right);
    assert_eq!(status(&relay), 200);
    let line = reload(&relay, &format!("upstream-memory = \"2 MiB\"\n{right}"));
    assert!(line.ends_with("changed: upstream-memory"), "{line}");
    assert_eq!(status(&relay), 200);
    // The server keeps what it knows if nothing concerns the upstreams.
    let target = format!("/{}.narinfo", hash_part(&CACHE.top));
    let count = upstream.count(&target);
    reload(
        &relay,
        &format!("priority = 31\nupstream-memory = \"2 MiB\"\n{right}"),
    );
    assert_eq!(status(&relay), 200);
    assert_eq!(upstream.count(&target), count, "{:?}", upstream.seen());
    reload(&relay, PATIENT);
    assert_eq!(status(&relay), 404);
}

#[test]
fn a_reload_reads_the_login_again() {
    // "ci:new" in base64.
    let upstream = Upstream::start(&CACHE.root(), |seen: &Seen| {
        match seen.header("Authorization") {
            Some("Basic Y2k6bmV3") => Act::Serve,
            _ => Act::Answer("401 Unauthorized", String::new(), Vec::new()),
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let netrc = dir.path().join("netrc");
    let login = |password: &str| {
        fs::write(
            &netrc,
            format!("machine 127.0.0.1 login ci password {password}\n"),
        )
        .unwrap();
    };
    login("old");
    let more = format!("netrc-file = {netrc:?}\n");
    let tables = table(&upstream.url(), &CACHE.public_key, &more);
    let relay = Relay::with(&tables);
    assert_eq!(status(&relay), 404);
    login("new");
    reload(&relay, &tables);
    assert_eq!(status(&relay), 200);
    // Without the file, nothing is changed, neither the login nor other options.
    fs::remove_file(&netrc).unwrap();
    let (_, other) = key_pair(dir.path(), "up-1");
    let changed = table(&upstream.url(), &other, &more);
    let line = relay.reload(&changed);
    let fault = format!(
        "the upstream \"up\": netrc-file {netrc:?} cannot be read: No such file or directory"
    );
    assert!(line.contains(&fault) && line.ends_with(REFUSED), "{line}");
    assert_eq!(status(&relay), 200);
    assert_eq!(relay.narinfo(&CACHE.low).0.status, 200);
    let line = relay.reload(&table("http://127.0.0.1:1?x", &other, ""));
    assert!(line.ends_with(REFUSED), "{line}");
    assert_eq!(status(&relay), 200);
    login("new");
    reload(&relay, &changed);
    assert_eq!(status(&relay), 404);
}

/// Lets requests to an upstream wait.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn pass(&self) {
        let is_open = self.is_open.lock().unwrap();
        drop(
            self.opened
                .wait_while(is_open, |is_open| !*is_open)
                .unwrap(),
        );
    }

    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

#[test]
fn requests_in_flight_are_answered_by_the_upstream_that_was_asked() {
    let gate = Arc::new(Gate::default());
    let held = Arc::clone(&gate);
    let top = hash_part(&CACHE.top);
    let upstream = Upstream::start(&CACHE.root(), move |seen: &Seen| {
        if seen.target.contains(top) || seen.is_nar() {
            held.pass();
        }
        Act::Serve
    });
    let relay = Relay::with(&table(&upstream.url(), &CACHE.public_key, ""));
    // The narinfo of `low` is answered, its NAR and the narinfo of `top` are waited for.
    let narinfo = relay.narinfo(&CACHE.low).0.text();
    let target = format!("/{}", field(&narinfo, "URL"));
    std::thread::scope(|scope| {
        let nar = scope.spawn(|| relay.get(&target));
        let narinfo = scope.spawn(|| relay.narinfo(&CACHE.top).0);
        eventually("both requests are sent upstream", || {
            upstream.count("/nar/") == 1 && upstream.count(top) == 1
        });
        reload(&relay, PATIENT);
        // New requests are answered without the upstream.
        assert_eq!(status(&relay), 404);
        assert_eq!(relay.get(&target).status, 404);
        gate.open();
        let (nar, narinfo) = (nar.join().unwrap(), narinfo.join().unwrap());
        assert_eq!((nar.status, narinfo.status), (200, 200));
        assert_eq!(nar.body, CACHE.nar(&CACHE.low));
        assert_eq!(field(&narinfo.text(), "StorePath"), CACHE.top);
    });
    assert_eq!(status(&relay), 404);
}

/// A cache with the NAR of a file of some megabytes.
struct Large {
    dir: tempfile::TempDir,
    key: String,
    path: String,
    nar: Vec<u8>,
}

impl Large {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = OwnStore::new();
        let file = dir.path().join("large");
        let numbers =
            (0_u32..2 << 20).flat_map(|number| number.wrapping_mul(2_654_435_761).to_be_bytes());
        fs::write(&file, numbers.collect::<Vec<u8>>()).unwrap();
        let path = store.add(&file);
        let (secret, key) = key_pair(dir.path(), "large-1");
        let to = format!(
            "file://{}?compression=none&secret-key={}",
            dir.path().join("cache").display(),
            secret.display()
        );
        let mut copy = store.nix.command("nix", store.root());
        output(copy.args(["copy", "--from", &local(store.root()), "--to", &to, &path]));
        let nar = store.dump(&store.real(&path));
        Self {
            dir,
            key,
            path,
            nar,
        }
    }

    fn root(&self) -> PathBuf {
        Path::new(self.dir.path()).join("cache")
    }
}

#[test]
fn a_nar_that_is_being_sent_is_sent_to_its_end() {
    let large = Large::new();
    let upstream = Upstream::start(&large.root(), |_| Act::Serve);
    let relay = Relay::with(&table(&upstream.url(), &large.key, ""));
    let narinfo = relay.narinfo(&large.path).0.text();
    let target = format!("/{}", field(&narinfo, "URL"));
    let mut connection = Connection::connect(relay.address);
    let head = connection.begin("GET", &target, &["Connection: close"]);
    assert_eq!(head.status, 200);
    reload(&relay, PATIENT);
    assert_eq!(relay.get(&target).status, 404);
    let (body, is_complete) = connection.rest();
    assert!(is_complete && body == large.nar, "{} bytes", body.len());
}

#[test]
fn no_request_fails_while_the_configuration_is_reloaded_again_and_again() {
    let upstream = Upstream::start(&CACHE.root(), |_| Act::Serve);
    let tables = |priority: u32| {
        let more = format!("priority = {priority}\n");
        table(&upstream.url(), &CACHE.public_key, &more)
    };
    let relay = Relay::with(&tables(0));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = [&CACHE.top, &CACHE.low]
            .into_iter()
            .map(|path| {
                let (relay, is_over) = (&relay, &is_over);
                scope.spawn(move || {
                    let nar = CACHE.nar(path);
                    // On a busy machine, the reloads may be over before the first response.
                    loop {
                        let narinfo = relay.narinfo(path).0;
                        assert_eq!(narinfo.status, 200, "{}", narinfo.text());
                        let sent = relay.get(&format!("/{}", field(&narinfo.text(), "URL")));
                        assert_eq!(sent.status, 200, "{}", sent.text());
                        assert!(sent.body == nar, "{} bytes", sent.body.len());
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                })
            })
            .collect();
        for round in 1..20 {
            reload(&relay, &tables(round));
        }
        is_over.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap();
        }
    });
}
