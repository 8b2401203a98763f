//! Space can be freed at once: `samovar gc --now`, or a push that the quota refuses, deletes what
//! nothing keeps, and neither what a client reads nor what it has just sent.

mod support;
mod support_uploads;

use std::process::Command;

use support::samovar;
use support_uploads::{MadePath, Running, Site, assert_refused};
use testkit::eventually;
use testkit::process::output;

/// Subtracts a number of minutes from the times of what is stored.
fn age(site: &Site, minutes: u32) {
    let seconds = minutes * 60;
    site.sql(&format!(
        "begin immediate; \
         update path set used_at = used_at - {seconds}, registered_at = registered_at - {seconds}; \
         update nar set created_at = created_at - {seconds}; \
         update sent set sent_at = sent_at - {seconds}; \
         update log set uploaded_at = uploaded_at - {seconds}; commit;"
    ));
}

fn gc(site: &Site, arguments: &[&str]) -> String {
    let mut command = samovar();
    command.arg("gc").args(arguments).arg("--config");
    output(command.arg(site.config()))
}

fn pin(site: &Site, path: &MadePath) {
    let mut command: Command = samovar();
    command.args(["pin", "add", "main", &path.store_path, "--storage"]);
    output(command.arg(site.storage()));
}

fn send_file(server: &Running, token: &str, path: &MadePath) {
    let sent = server.put(token, &path.file_target(), &path.file);
    assert_eq!(sent.status, 200);
}

#[test]
fn what_nothing_keeps_is_deleted_at_once() {
    let site = Site::new();
    site.configure_empty("uploads.retention = \"1h\"\n");
    let server = site.start();
    let token = site.token(&[]);
    let [old, pinned, read, recent] = ["old", "pinned", "read", "recent"].map(MadePath::new);
    let [given_up, sending] = ["given-up", "sending"].map(MadePath::new);
    for path in [&old, &pinned, &read] {
        server.publish(&token, path);
    }
    pin(&site, &pinned);
    send_file(&server, &token, &given_up);
    let log = format!("/log/{}-old.drv", "0".repeat(32));
    assert_eq!(server.put(&token, &log, "log").status, 200);
    age(&site, 70);
    server.publish(&token, &recent);
    send_file(&server, &token, &sending);
    // Uses are recorded with a delay of some minutes.
    assert!(gc(&site, &["--dry-run"]).contains("0 of 4 paths would be deleted"));
    age(&site, 55);
    let plan = gc(&site, &["--now", "--dry-run"]);
    assert!(plan.contains("2 of 4 paths would be deleted"), "{plan}");
    // A client reads a path for the first time since long.
    assert_eq!(server.get(&read.target()).status, 200);
    let text = gc(&site, &["--now"]);
    for part in [
        " condemned, 1 deleted",
        " condemned, 2 deleted",
        "; 1 build logs and realisations deleted",
        "kept for pushes in progress: 1 file without a path",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    server.assert_lacks(&old);
    for path in [&pinned, &read, &recent] {
        server.assert_serves(path);
    }
    assert_eq!(server.get(&log).status, 404);
    let files = site.files();
    for path in [&old, &given_up] {
        assert!(!files.contains(&path.url()), "{files:?}");
    }
    // The push that is in progress goes on.
    let narinfo = server.put(&token, &sending.target(), sending.narinfo());
    assert_eq!(narinfo.status, 200);
    server.process.terminate();
    age(&site, 130);
    let text = gc(&site, &["--now"]);
    assert!(text.starts_with("3 paths condemned, 3 deleted"), "{text}");
}

#[test]
fn a_push_that_the_quota_refuses_fits_after_unused_paths_were_deleted() {
    let site = Site::new();
    let (unused, next) = (MadePath::new("unused"), MadePath::new("next"));
    let quota = unused.file.len().max(next.file.len()) + 4096;
    site.configure_empty(&format!(
        "uploads.retention = \"1h\"\nuploads.quota = {quota}\n"
    ));
    let server = site.start();
    let token = site.token(&[]);
    server.publish(&token, &unused);
    age(&site, 130);
    let put = || server.put(&token, &next.file_target(), &next.file);
    assert_refused(&put(), 413, &["of its quota of"]);
    eventually("the next path fits", || put().status == 200);
    server.publish(&token, &next);
    server.assert_lacks(&unused);
    assert!(!site.files().contains(&unused.url()));
}
