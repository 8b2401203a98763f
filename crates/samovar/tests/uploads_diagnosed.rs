//! `samovar doctor` finds each fault of a storage, and names its fix.

mod support;
mod support_uploads;

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use samovar_storage::DATABASE;
use support::samovar;
use support_uploads::{MadePath, Site};
use testkit::process::output;

/// Runs `samovar doctor` with the site's configuration. Returns the findings about the storage, in
/// which `DIR` replaces the path of the temporary directory.
fn doctor(site: &Site) -> String {
    let mut command = samovar();
    command.args(["doctor", "--config"]).arg(site.config());
    let output = command.output().expect("runs");
    let text = String::from_utf8([output.stdout, output.stderr].concat()).expect("is text");
    let mut findings = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line
            .get(8..)
            .is_some_and(|rest| rest.starts_with("storage: "))
        {
            findings.push_str(&format!("{line}\n"));
            if let Some(fix) = lines.next_if(|next| next.starts_with("        fix: ")) {
                findings.push_str(&format!("{fix}\n"));
            }
        }
    }
    let dir = site.dir().to_str().expect("is text");
    findings.replace(dir, "DIR")
}

/// Asserts that the findings include one with this severity, text and fix.
#[track_caller]
fn assert_finds(findings: &str, severity: &str, text: &str, fix: &str) {
    let mut lines = findings.lines().skip_while(|line| !line.contains(text));
    let line = lines.next().unwrap_or_default();
    assert!(line.starts_with(severity), "{text}: {findings}");
    let next = lines.next().unwrap_or_default();
    assert!(next.starts_with("        fix: "), "{findings}");
    assert!(next.contains(fix), "{fix}: {findings}");
}

fn sql(site: &Site, statement: &str) {
    let database = site.storage().join(DATABASE);
    let statement = format!("pragma busy_timeout = 10000; {statement}");
    output(Command::new("sqlite3").arg(database).arg(statement));
}

/// Creates a file whose modification time is two days ago.
fn make_old(path: &Path) {
    let file = File::create(path).expect("makes a file");
    let two_days = Duration::from_secs(2 * 86_400);
    file.set_modified(SystemTime::now() - two_days)
        .expect("sets the time");
}

#[test]
fn a_good_storage_has_no_problems() {
    let site = Site::new();
    let new = doctor(&site);
    assert_finds(
        &new,
        "warning",
        "has no database yet",
        "samovar token create --storage DIR",
    );
    let server = site.start();
    let token = site.token(&[]);
    server.publish(&token, &MadePath::new("good"));
    let findings = doctor(&site);
    for part in [
        "ok      storage: DIR/storage is writable\n",
        "ok      storage: the database is intact, schema ",
        "ok      storage: the directory has the narinfos of the first cache\n",
        "ok      storage: 1 valid tokens\n",
    ] {
        assert!(findings.contains(part), "{part}: {findings}");
    }
    assert!(!findings.contains("error"), "{findings}");
}

/// Runs `samovar doctor` against the server at `url`. Returns its findings about the round trip.
fn round_trip(site: &Site, url: &str) -> String {
    let mut command = samovar();
    command.args(["doctor", "--url", url, "--config"]);
    let output = command.arg(site.config()).output().expect("runs");
    let text = String::from_utf8(output.stdout).expect("is text");
    let is_round_trip = |line: &&str| line.contains(" round trip: ");
    let findings: Vec<&str> = text.lines().filter(is_round_trip).collect();
    findings.join("\n")
}

#[test]
fn the_newest_uploaded_path_is_requested_from_the_server() {
    let site = Site::new();
    let server = site.start();
    let url = server.url();
    let is_cache = format!("ok      round trip: {url} is a binary cache");
    assert_eq!(round_trip(&site, &url), is_cache);
    let token = site.token(&[]);
    let (older, newest) = (MadePath::new("older"), MadePath::new("newest"));
    for path in [&older, &newest] {
        server.publish(&token, path);
    }
    let serves = format!("ok      round trip: {url} serves {}", newest.store_path);
    assert_eq!(round_trip(&site, &url), serves);
    // A lost NAR is not served, and is reported elsewhere.
    sql(
        &site,
        "update nar set state = 3 where id = (select nar_id from path where name = 'newest')",
    );
    let serves = format!("ok      round trip: {url} serves {}", older.store_path);
    assert_eq!(round_trip(&site, &url), serves);
    let other = Site::new();
    let without = other.start();
    let url = without.url();
    let lacks = format!(
        "error   round trip: {url} does not have {}, the newest uploaded path",
        older.store_path
    );
    assert_eq!(round_trip(&site, &url), lacks);
}

#[test]
fn tokens_that_are_missing_or_expire_soon_are_found() {
    let site = Site::new();
    drop(site.start());
    let missing = doctor(&site);
    assert_finds(
        &missing,
        "warning",
        "no valid token has the right to push",
        "token create",
    );
    site.token(&["--name", "nightly", "--rights", "push", "--expires", "3d"]);
    let soon = doctor(&site);
    let fix = "--name nightly --rights push, and give it to the client";
    assert_finds(&soon, "warning", "\"nightly\" expires in ", fix);
    site.token(&["--name", "nightly", "--rights", "push"]);
    assert!(!doctor(&site).contains("expires in"));
}

#[test]
fn what_is_lost_left_over_or_from_the_future_is_found() {
    let site = Site::new();
    let server = site.start();
    let path = MadePath::new("path");
    server.publish(&site.token(&[]), &path);
    fs::remove_file(site.storage().join(&path.target()[1..])).expect("is mirrored");
    make_old(&site.storage().join(".samovar/tmp/unfinished"));
    sql(
        &site,
        "update nar set state = 3; update path set registered_at = registered_at + 7200",
    );
    let findings = doctor(&site);
    assert_finds(&findings, "warning", "1 NARs are lost", "samovar fsck");
    assert_finds(
        &findings,
        "warning",
        "1 of the newest 1000 narinfos",
        "restart the server",
    );
    assert_finds(
        &findings,
        "warning",
        "1 unfinished files",
        "restart the server",
    );
    assert_finds(&findings, "error", " s in the future", "timedatectl");
}

#[test]
fn a_damaged_or_newer_database_is_an_error() {
    let site = Site::new();
    site.token(&[]);
    sql(&site, "pragma user_version = 99");
    let newer = doctor(&site);
    assert_finds(
        &newer,
        "error",
        "database has schema 99",
        "run the version of Samovar",
    );
    sql(
        &site,
        "pragma wal_checkpoint(truncate); pragma user_version = 2",
    );
    let database = site.storage().join(DATABASE);
    let mut bytes = fs::read(&database).expect("is there");
    bytes[4096..].fill(0xff);
    fs::write(&database, bytes).expect("writes");
    let damaged = doctor(&site);
    assert_finds(
        &damaged,
        "error",
        "the database is damaged",
        "from a backup",
    );
}

#[test]
fn a_storage_that_cannot_be_made_is_an_error() {
    let site = Site::new();
    // Put a file in the place of the directory. Not even root can write into it.
    fs::write(site.storage(), "").expect("writes");
    let findings = doctor(&site);
    assert_finds(
        &findings,
        "error",
        "the server cannot write to",
        "chown -R USER DIR/storage",
    );
}
