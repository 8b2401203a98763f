//! After the client or the server was killed, the next push of a large NAR sends only the parts
//! that the server lacks.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_push;
mod support_uploads;

use std::fs;
use std::process::{Child, Stdio};

use serde_json::Value;
use support::samovar;
use support_push::proxy::{Action, Proxy};
use support_push::{Pusher, assert_copies_back, count, noise};
use support_uploads::{Running, Site};
use testkit::eventually;
use testkit::nix::{OwnStore, local};
use testkit::process::{output, wait};

/// Returns a store, and a path of it whose NAR file has three parts.
fn large() -> (OwnStore, String) {
    let store = OwnStore::new();
    let path = store.add_file("large", &noise(1, 80 << 20));
    (store, path)
}

/// Starts a proxy that forwards the first part of a NAR and holds all others.
fn first_part_only(server: &Running) -> Proxy {
    Proxy::start(server.address, |line| match line.contains("/part/") {
        true if !line.contains("/1?") => Action::Hold,
        _ => Action::Forward,
    })
}

/// Waits until the first part is stored and another part is in progress.
fn wait_for_first_part(proxy: &Proxy) {
    eventually("the first part is stored, the second is sent", || {
        !proxy.exchanges("/1?").is_empty() && proxy.held_count() > 0
    });
}

/// Kills a client when the first part is stored.
fn kill_after_first_part(mut client: Child, proxy: &Proxy) {
    wait_for_first_part(proxy);
    client.kill().unwrap();
    client.wait().unwrap();
}

/// Asserts that the push after that of the killed client has sent only what was missing.
#[track_caller]
fn assert_rest_was_sent(report: &Value, proxy: &Proxy) {
    // The first part was sent only once. A delayed request of the killed client may have stored
    // another part before the second push listed them.
    assert_eq!(proxy.exchanges("/1?").len(), 1);
    let others = ["/2?", "/3?", "/pack"].map(|part| proxy.exchanges(part));
    let rest: usize = others.iter().flatten().map(|other| other.body.len()).sum();
    let sent_len = report["sentSize"].as_u64().unwrap();
    assert!(sent_len <= rest as u64, "{report}");
}

#[test]
fn a_killed_client_continues_after_the_stored_parts() {
    let (site, (store, path)) = (Site::new(), large());
    let server = site.start();
    let pusher = Pusher::new(&local(store.root()), &site.token(&[]));
    let proxy = first_part_only(&server);
    let mut command = pusher.push(&proxy.url(), &[&path]);
    kill_after_first_part(command.stdout(Stdio::null()).spawn().unwrap(), &proxy);

    proxy.resume(server.address);
    let report = pusher.report(&proxy.url(), &[&path]);
    assert_eq!(count(&report, "pushed"), 1);
    assert_rest_was_sent(&report, &proxy);
    assert_copies_back(&server.url(), &site.public_key, store.root(), &[path]);
}

#[test]
fn a_push_of_a_directory_continues_after_the_stored_parts() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&["--rights", "read,push,pin"]);
    let proxy = first_part_only(&server);
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("large"), noise(1, 80 << 20)).unwrap();
    let command = |name: &str, directory: &str, url: &str| {
        let (directory, url) = (dir.path().join(directory), format!("{url}#app"));
        let mut command = samovar();
        command.arg(name).arg("--json");
        match name {
            "push" => command.arg(directory).args([&url, "--public"]),
            _ => command.arg(url).arg(directory),
        };
        command.env("SAMOVAR_TOKEN", &token).env("HOME", dir.path());
        command
    };
    let mut push = command("push", "tree", &proxy.url());
    kill_after_first_part(push.spawn().unwrap(), &proxy);

    proxy.resume(server.address);
    let report = serde_json::from_str(&output(&mut push)).unwrap();
    assert_rest_was_sent(&report, &proxy);
    output(&mut command("pull", "copy", &server.url()));
    let large = |name: &str| fs::read(dir.path().join(name).join("large")).unwrap();
    assert!(large("copy") == large("tree"));
}

#[test]
fn a_killed_server_keeps_the_stored_parts() {
    let (site, (store, path)) = (Site::new(), large());
    let server = site.start();
    let pusher = Pusher::new(&local(store.root()), &site.token(&[]));
    let proxy = first_part_only(&server);
    let mut command = pusher.push(&proxy.url(), &["--json", &path]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    wait_for_first_part(&proxy);
    server.process.signal("KILL");
    drop(server);
    let server = site.start();
    proxy.resume(server.address);
    let done = wait(child, &command);
    assert!(done.status.success(), "{done:?}");
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(count(&report, "pushed"), 1);
    let parts = proxy.exchanges("PUT");
    assert_eq!(parts.len(), 3, "{parts:?}");
    assert!(parts.iter().all(|part| part.status == 200), "{parts:?}");
    assert_copies_back(&server.url(), &site.public_key, store.root(), &[path]);
}
