//! An excluded path looks like an absent one; a path without a decision gets 503.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::{Answer, TestServer};
use crate::{CacheConfig, PolicyConfig, Rule};

fn server(policy: PolicyConfig) -> TestServer {
    TestServer::new(CacheConfig {
        policy,
        ..CacheConfig::default()
    })
}

fn named(pattern: &str) -> Rule {
    Rule {
        names: vec![pattern.to_owned()],
        ..Rule::default()
    }
}

fn rooted(root: PathBuf) -> Rule {
    Rule {
        roots: vec![root],
        ..Rule::default()
    }
}

/// Requests every form of URL about a path, and returns the responses.
fn answers(server: &TestServer, hash_part: &str) -> Vec<Answer> {
    let urls = ["/{}.narinfo", "/{}.ls", "/nar/{}.nar", "/closure/{}"];
    let urls = urls.iter().map(|url| url.replace("{}", hash_part));
    urls.map(|url| server.get(&url)).collect()
}

#[test]
fn an_excluded_path_is_answered_as_an_absent_one() {
    let deny = PolicyConfig {
        deny: vec![named("secret*")],
        ..PolicyConfig::default()
    };
    let allow = PolicyConfig {
        allow: vec![named("public*")],
        ..PolicyConfig::default()
    };
    for policy in [deny, allow] {
        let server = server(policy);
        let secret = server.store.add_file("secret-1", b"secret");
        let public = server.store.add_file("public-1", b"public");
        let absent = answers(&server, &"1".repeat(32));
        assert!(absent.iter().all(|answer| answer.status == 404));
        let excluded = answers(&server, &secret.path.hash_part().to_string());
        assert_eq!(excluded, absent);
        let readable = answers(&server, &public.path.hash_part().to_string());
        assert!(readable.iter().all(|answer| answer.status == 200));
    }
}

#[test]
fn roots_decide_as_soon_as_they_can_be_followed() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    let server = server(PolicyConfig {
        deny: vec![rooted(root.clone())],
        ..PolicyConfig::default()
    });
    let one = server.store.add_file("one", b"1");
    let two = server.store.add_file("two", b"2");
    // A missing root of a deny rule may have led to any path, so no path is served.
    assert_eq!(server.narinfo(&one).status, 503);
    symlink(format!("/nix/store/{}", one.path.base_name()), &root).unwrap();
    let statuses = || (server.narinfo(&one).status, server.narinfo(&two).status);
    eventually(|| statuses() == (404, 200));
    std::fs::remove_file(&root).unwrap();
    symlink(format!("/nix/store/{}", two.path.base_name()), &root).unwrap();
    eventually(|| statuses() == (200, 404));
    std::fs::remove_file(&root).unwrap();
    eventually(|| statuses() == (503, 503));
}

#[track_caller]
fn eventually(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "it never happened");
        std::thread::yield_now();
    }
}
