//! After the client or the server was killed, the next push of a large NAR sends only the parts
//! that the server lacks.

mod support;
mod support_push;
mod support_uploads;

use std::process::Stdio;

use support_push::proxy::{Action, Proxy};
use support_push::{Pusher, assert_copies_back, count, noise};
use support_uploads::{Running, Site};
use testkit::eventually;
use testkit::nix::{OwnStore, local};
use testkit::process::wait;

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

#[test]
fn a_killed_client_continues_after_the_stored_parts() {
    let (site, (store, path)) = (Site::new(), large());
    let server = site.start();
    let pusher = Pusher::new(&local(store.root()), &site.token(&[]));
    let proxy = first_part_only(&server);
    let mut command = pusher.push(&proxy.url(), &[&path]);
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    wait_for_first_part(&proxy);
    child.kill().unwrap();
    child.wait().unwrap();

    proxy.resume(server.address);
    let report = pusher.report(&proxy.url(), &[&path]);
    assert_eq!(count(&report, "pushed"), 1);
    // The first part was sent only once. A delayed request of the killed client may have stored
    // another part before the second push listed them.
    assert_eq!(proxy.exchanges("/1?").len(), 1);
    let rest = ["/2?", "/3?"].map(|part| proxy.exchanges(part)[0].body_len);
    let sent_len = report["sentSize"].as_u64().unwrap();
    assert!(sent_len <= rest.iter().sum::<usize>() as u64, "{report}");
    assert_copies_back(&server.url(), &site.public_key, store.root(), &[path]);
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
