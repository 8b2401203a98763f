//! Build logs, realisations and narinfos count towards the quota of their cache, and the collector
//! deletes build logs and realisations that belong to no path.

mod support;
mod support_uploads;

use std::fs;

use support::samovar;
use support_uploads::{MadePath, Running, Site, assert_refused};
use testkit::process::output;

/// What each path, build log and realisation counts besides its text.
const OWN_LEN: usize = 4096;

/// Runs `samovar gc` on the site's storage, with a retention of 30 days. Returns its output.
fn gc(site: &Site, arguments: &[&str]) -> String {
    let mut command = samovar();
    command.args(["gc", "--force", "--uploads-retention", "30d", "--storage"]);
    output(command.arg(site.storage()).args(arguments))
}

/// Subtracts a number of days from the times of what is stored.
fn age(site: &Site, days: u32) {
    let seconds = days * 86_400;
    site.sql(&format!(
        "begin immediate; \
         update log set uploaded_at = uploaded_at - {seconds}; \
         update extra set recorded_at = recorded_at - {seconds}; \
         update path set used_at = used_at - {seconds}, registered_at = registered_at - {seconds}, \
             condemned_at = condemned_at - {seconds}; commit;"
    ));
}

/// Returns the target of the build log of the derivation of this name.
fn log(name: &str) -> String {
    format!("/log/{}-{name}.drv", "0".repeat(32))
}

fn put(server: &Running, token: &str, target: &str, body: &str) -> u16 {
    server.put(token, target, body).status
}

/// Publishes a path that this derivation has built.
fn publish(server: &Running, token: &str, path: &MadePath, derivation: &str) {
    assert_eq!(
        server.put(token, &path.file_target(), &path.file).status,
        200
    );
    let narinfo = format!("{}Deriver: {}\n", path.narinfo(), &log(derivation)[5..]);
    assert_eq!(put(server, token, &path.target(), &narinfo), 200);
}

/// The live Nix store may get the same log later, which is sent in compressed form to clients that
/// accept that.
#[test]
fn an_uploaded_log_varies_as_those_of_the_store() {
    let (_site, server, token) = Site::serving();
    assert_eq!(put(&server, &token, &log("a"), "text"), 200);
    for below in ["", "/upload"] {
        let response = server.get(&format!("{below}{}", log("a")));
        assert_eq!(response.text(), "text");
        assert_eq!(response.header("Vary"), Some("Accept-Encoding"));
    }
}

#[test]
fn logs_realisations_and_narinfos_count_towards_the_quota() {
    let site = Site::new();
    let path = MadePath::new("path");
    let (log_len, quota) = (10_000, path.file.len() + 3 * OWN_LEN + 10_000);
    site.configure_empty(&format!("uploads.quota = {quota}\n"));
    let server = site.start();
    let token = site.token(&[]);
    server.publish(&token, &path);
    let text = "x".repeat(log_len);
    let refused = server.put(&token, &log("a"), "x".repeat(2 * OWN_LEN + log_len));
    assert_refused(&refused, 413, &["of its quota of"]);
    assert_eq!(server.get(&log("a")).status, 404);
    // A log that is uploaded again counts once.
    for _ in 0..3 {
        assert_eq!(put(&server, &token, &log("a"), &text), 200);
    }
    let refused = server.put(&token, &log("b"), "x".repeat(OWN_LEN));
    assert_refused(&refused, 413, &["of its quota of"]);
    let id = format!("sha256:{}!out", "1".repeat(64));
    let document = format!(
        "{{\"id\":\"{id}\",\"outPath\":\"{}\"}}",
        &path.store_path[11..]
    );
    let target = format!("/realisations/{id}.doi");
    let refused = server.put(&token, &target, &document);
    assert_refused(&refused, 413, &["of its quota of"]);
    // A shorter log makes room.
    assert_eq!(put(&server, &token, &log("a"), "x"), 200);
    assert_eq!(put(&server, &token, &target, &document), 200);
    // Paths that share one file have rows and narinfos.
    let list = || {
        let mut list = samovar();
        list.args(["cache", "list", "--json", "--storage"]);
        let list: serde_json::Value =
            serde_json::from_str(&output(list.arg(site.storage()))).unwrap();
        usize::try_from(list["caches"][0]["fileSize"].as_u64().unwrap()).unwrap()
    };
    let before = list();
    assert!(
        (path.file.len() + 3 * OWN_LEN..=quota).contains(&before),
        "{before}"
    );
    let copy = path.narinfo().replace(path.hash_part(), &"1".repeat(32));
    let target = format!("/{}.narinfo", "1".repeat(32));
    assert_eq!(put(&server, &token, &target, &copy), 200);
    assert_eq!(list(), before + OWN_LEN);
    let copy = path.narinfo().replace(path.hash_part(), &"2".repeat(32));
    let target = format!("/{}.narinfo", "2".repeat(32));
    let mut refused = server.put(&token, &target, &copy);
    if refused.status == 200 {
        let copy = path.narinfo().replace(path.hash_part(), &"3".repeat(32));
        refused = server.put(&token, &format!("/{}.narinfo", "3".repeat(32)), &copy);
    }
    assert_refused(&refused, 413, &["of its quota of"]);
}

#[test]
fn a_log_is_kept_with_its_path_and_deleted_after_it() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    let (one, two) = (MadePath::new("one"), MadePath::new("two"));
    publish(&server, &token, &one, "built");
    publish(&server, &token, &two, "built");
    assert_eq!(put(&server, &token, &log("built"), "built"), 200);
    assert_eq!(put(&server, &token, &log("failed"), "failed"), 200);
    // Another program writes a log into the directory.
    fs::write(site.storage().join(&log("foreign")[1..]), "foreign").unwrap();
    let is_there = |name: &str| server.get(&log(name)).status == 200;
    gc(&site, &[]);
    assert_eq!(site.sql("select count(*) from log").trim(), "3");
    age(&site, 29);
    gc(&site, &[]);
    assert!(["built", "failed", "foreign"].into_iter().all(is_there));
    // The path is used, and the others are too old.
    assert_eq!(server.get(&one.target()).status, 200);
    server.publish(&token, &one);
    age(&site, 2);
    let plan = gc_plan(&site);
    assert!(
        plan.contains("2 build logs and realisations without a path"),
        "{plan}"
    );
    let summary = gc(&site, &[]);
    assert!(
        summary.contains("; 2 build logs and realisations deleted"),
        "{summary}"
    );
    assert!(is_there("built") && !is_there("failed") && !is_there("foreign"));
    assert!(!site.files().contains(&log("failed")[1..]));
    // The last path of the log is deleted, and then the log.
    age(&site, 40);
    gc(&site, &[]);
    assert!(is_there("built"));
    age(&site, 1);
    let summary = gc(&site, &[]);
    assert!(
        summary.contains("1 deleted;") && summary.contains("; 1 build logs"),
        "{summary}"
    );
    server.assert_lacks(&one);
    assert!(!is_there("built"));
    assert_eq!(site.sql("select count(*) from log").trim(), "0");
    let extra = site.sql("select extra_bytes from cache where name = 'default'");
    assert_eq!(extra.trim(), "0");
}

fn gc_plan(site: &Site) -> String {
    let mut command = samovar();
    command.args(["gc", "--dry-run", "--uploads-retention", "30d", "--storage"]);
    output(command.arg(site.storage()))
}

#[test]
fn a_realisation_without_a_path_is_deleted_after_the_retention_time() {
    let site = Site::new();
    let server = site.start();
    let token = site.token(&[]);
    let path = MadePath::new("output");
    server.publish(&token, &path);
    let id = format!("sha256:{}!out", "1".repeat(64));
    let target = format!("/realisations/{id}.doi");
    let document = format!(
        "{{\"id\":\"{id}\",\"outPath\":\"{}\"}}",
        &path.store_path[11..]
    );
    assert_eq!(put(&server, &token, &target, &document), 200);
    // As if the output were a path of the server's Nix store.
    site.sql("update extra set path_id = null");
    age(&site, 29);
    gc(&site, &[]);
    assert_eq!(site.sql("select count(*) from extra").trim(), "1");
    age(&site, 2);
    let summary = gc(&site, &[]);
    assert!(
        summary.contains("; 1 build logs and realisations deleted"),
        "{summary}"
    );
    assert_eq!(site.sql("select count(*) from extra").trim(), "0");
    assert!(!site.files().contains(&target[1..]), "{:?}", site.files());
}
