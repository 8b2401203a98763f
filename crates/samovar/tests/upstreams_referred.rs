//! Pushes leave out what an upstream has, and the server keeps it as long as an upload needs it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_upstreams;

use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use support::samovar;
use support_upstreams::{Act, Client, FileCache, Relay, Seen, Upstream, kept_count};
use testkit::eventually;
use testkit::nix::{hash_part, key_pair, local};
use testkit::process::{finish, output};

/// The cache that all tests of this file read, and the store that has built its paths.
static CACHE: LazyLock<FileCache> = LazyLock::new(|| FileCache::new("xz"));

/// A server with uploads, whose upstream has `low` alone.
struct Pushed {
    upstream: Upstream,
    relay: Relay,
    dir: tempfile::TempDir,
    token: String,
    public_key: String,
}

/// Whether a request is about a path of [`CACHE`].
fn is_about(seen: &Seen, path: &str) -> bool {
    let nar = CACHE.nar_url(path);
    seen.target.contains(hash_part(path)) || seen.target.ends_with(&nar)
}

fn lacks_top(seen: &Seen) -> Act {
    match is_about(seen, &CACHE.top) {
        true => Act::Answer("404 Not Found", String::new(), Vec::new()),
        false => Act::Serve,
    }
}

impl Pushed {
    fn new(options: &str) -> Self {
        let upstream = Upstream::start(&CACHE.root(), lacks_top);
        let dir = tempfile::tempdir().unwrap();
        let (secret, public_key) = key_pair(dir.path(), "own-1");
        let (url, key) = (upstream.url(), &CACHE.public_key);
        let storage = dir.path().join("storage");
        let relay = Relay::with(&format!(
            "storage = {storage:?}\nsecret-key-files = [{secret:?}]\n\
             [upstreams.up]\nurl = {url:?}\npublic-keys = [{key:?}]\n{options}"
        ));
        let create = ["token", "create", "--name", "ci", "--storage"];
        let token = output(samovar().args(create).arg(&storage));
        Self {
            upstream,
            relay,
            dir,
            token: token.lines().next().unwrap().trim().to_owned(),
            public_key,
        }
    }

    /// Returns a file with the token, in netrc format.
    fn netrc(&self) -> PathBuf {
        let file = self.dir.path().join("netrc");
        let text = format!("machine 127.0.0.1 login ci password {}\n", self.token);
        std::fs::write(&file, text).unwrap();
        file
    }

    /// Pushes `top` with its closure by an unmodified Nix.
    fn nix_copy(&self) -> std::process::Output {
        let to = format!("{}/upload?compression=none", self.relay.url());
        let mut copy = CACHE.builder.nix.command("nix", CACHE.builder.root());
        copy.arg("--option").arg("netrc-file").arg(self.netrc());
        let from = local(CACHE.builder.root());
        finish(copy.args(["copy", "--from", &from, "--to", &to, &CACHE.top]))
    }

    fn push(&self) -> Command {
        let mut push = samovar();
        push.args(["push", "--store", &local(CACHE.builder.root())]);
        push.arg("--netrc-file").arg(self.netrc());
        push.arg(self.relay.url()).arg(&CACHE.top);
        push
    }

    /// Builds with a new client and the server alone.
    #[track_caller]
    fn assert_substitutes(&self) {
        let keys = format!("{} {}", self.public_key, CACHE.public_key);
        let end = Client::new().build(&self.relay, &keys);
        assert!(!end.has_built("top") && !end.has_built("low"), "{end:?}");
    }

    /// Waits until the server keeps `low`.
    fn await_kept(&self) {
        eventually("low is kept", || kept_count(&self.storage()) == 1);
    }

    fn storage(&self) -> PathBuf {
        self.dir.path().join("storage")
    }

    /// Whether a path is among the uploads of the cache itself.
    fn is_uploaded(&self, path: &str) -> bool {
        // The directory has the narinfos of all uploads.
        let narinfo = format!("{}.narinfo", hash_part(path));
        self.storage().join(narinfo).exists()
    }
}

#[test]
fn nix_copy_leaves_out_what_the_upstream_has() {
    let pushed = Pushed::new("references = true\n");
    let copied = pushed.nix_copy();
    assert!(copied.status.success(), "{copied:?}");
    assert!(pushed.is_uploaded(&CACHE.top) && !pushed.is_uploaded(&CACHE.low));
    // The server keeps it without a client.
    pushed.await_kept();
    let relay = pushed.relay.killed();
    let pushed = Pushed { relay, ..pushed };
    pushed.upstream.follow(|_| Act::Close);
    pushed.assert_substitutes();
}

#[test]
fn without_references_nix_copy_sends_all() {
    let pushed = Pushed::new("");
    let copied = pushed.nix_copy();
    assert!(copied.status.success(), "{copied:?}");
    assert!(pushed.is_uploaded(&CACHE.top) && pushed.is_uploaded(&CACHE.low));
    assert_eq!(pushed.upstream.seen().len(), 0);
}

#[test]
fn while_the_upstream_is_down_all_is_pushed() {
    let pushed = Pushed::new("references = true\n");
    pushed.upstream.follow(|_| Act::Close);
    let copied = pushed.nix_copy();
    assert!(copied.status.success(), "{copied:?}");
    assert!(pushed.is_uploaded(&CACHE.top) && pushed.is_uploaded(&CACHE.low));
}

#[test]
fn what_an_upstream_that_is_down_had_before_is_pushed() {
    let pushed = Pushed::new("references = true\n");
    // The server knows the narinfo, and keeps nothing.
    assert_eq!(pushed.relay.narinfo(&CACHE.low).0.status, 200);
    pushed.upstream.follow(|_| Act::Close);
    for number in 0..3 {
        let path = format!("/nix/store/{number:0>32}-nowhere");
        assert_eq!(pushed.relay.narinfo(&path).0.status, 404);
    }
    pushed.relay.server.wait_for("is not asked until");
    let line = output(&mut pushed.push());
    assert!(line.contains("pushed 2 paths"), "{line}");
    assert!(pushed.is_uploaded(&CACHE.top) && pushed.is_uploaded(&CACHE.low));
    pushed.assert_substitutes();
}

#[test]
fn what_an_upload_needs_is_kept_whatever_the_size() {
    let pushed = Pushed::new("references = true\nkeep-size = 1\n");
    assert!(pushed.nix_copy().status.success());
    pushed.await_kept();
    pushed.upstream.follow(|_| Act::Close);
    pushed.assert_substitutes();
}

#[test]
fn a_lost_upload_is_pushed_although_the_upstream_has_it() {
    let pushed = Pushed::new("references = true\n");
    pushed.upstream.follow(|_| Act::Close);
    assert!(pushed.nix_copy().status.success());
    pushed.upstream.follow(|_| Act::Serve);
    for file in std::fs::read_dir(pushed.storage().join("nar")).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    eventually("the loss is noticed", || {
        output(&mut pushed.push()).contains("pushed 2 paths")
    });
    pushed.upstream.follow(|_| Act::Close);
    pushed.assert_substitutes();
}

#[test]
fn samovar_push_says_what_the_upstream_has() {
    let pushed = Pushed::new("references = true\n");
    let line = output(&mut pushed.push());
    assert!(line.contains("pushed 1 path"), "{line}");
    assert!(line.contains(", 1 at upstreams of the cache ("), "{line}");
    assert!(!line.contains("already in the cache"), "{line}");
    assert!(pushed.is_uploaded(&CACHE.top) && !pushed.is_uploaded(&CACHE.low));
    pushed.await_kept();
    pushed.upstream.follow(|_| Act::Close);
    pushed.assert_substitutes();
    let json = output(pushed.push().arg("--json"));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["pushed"].as_array().unwrap().len(), 0);
    assert_eq!(json["ofUpstreams"], 1);
}

#[test]
fn what_could_not_be_kept_is_kept_later() {
    let pushed = Pushed::new("references = true\n");
    // The narinfo is there, and the NAR is not.
    pushed.upstream.follow(|seen: &Seen| match seen.is_nar() {
        true => Act::Close,
        false => lacks_top(seen),
    });
    let copied = pushed.nix_copy();
    assert!(copied.status.success(), "{copied:?}");
    assert!(!pushed.is_uploaded(&CACHE.low));
    pushed.upstream.follow(lacks_top);
    // The server looks for what it lacks when it starts.
    let relay = pushed.relay.restarted();
    let pushed = Pushed { relay, ..pushed };
    pushed.await_kept();
    pushed.upstream.follow(|_| Act::Close);
    pushed.assert_substitutes();
}

#[test]
fn a_policy_hides_what_it_denies_from_pushes_too() {
    let cache = "[caches.default]\nprefix = \"/\"\npolicy.deny = [{ names = [\"low\"] }]\n";
    let pushed = Pushed::new(&format!("references = true\n{cache}"));
    let copied = pushed.nix_copy();
    assert!(copied.status.success(), "{copied:?}");
    assert!(pushed.is_uploaded(&CACHE.low));
}
