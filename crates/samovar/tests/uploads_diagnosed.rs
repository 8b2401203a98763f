//! `samovar doctor` finds each fault of a storage, and names its fix.

mod support;
mod support_uploads;
mod support_volatile;

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use samovar_storage::DATABASE;
use support::{bare, samovar};
use support_uploads::{MadePath, Site};
use support_volatile::VolatileDisk;

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
    let mut lines = findings
        .lines()
        .skip_while(|line| !line.contains(text.trim_end()));
    let line = lines.next().unwrap_or_default();
    assert!(line.starts_with(severity), "{text}: {findings}");
    let next = lines.next().unwrap_or_default();
    assert!(next.starts_with("        fix: "), "{findings}");
    assert!(next.contains(fix), "{fix}: {findings}");
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
        "ok      storage: 1 valid token\n",
    ] {
        assert!(findings.contains(part), "{part}: {findings}");
    }
    assert!(!findings.contains("error"), "{findings}");
    let user = format!("ok      storage: process {} uses ", server.process.pid());
    assert!(findings.contains(&user), "{findings}");
    drop(server);
    let findings = doctor(&site);
    assert!(!findings.contains(" uses "), "{findings}");
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
    site.sql("update nar set state = 3 where id = (select nar_id from path where name = 'newest')");
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

/// Each cache is asked for its own newest upload.
#[test]
fn the_newest_uploaded_path_of_each_cache_is_requested() {
    let site = Site::new();
    site.configure_empty("[caches.one]\n[caches.two]\n");
    let server = site.start();
    let token = site.token(&[]);
    let paths = ["one", "two"].map(|cache| (cache, MadePath::new(cache)));
    for (cache, path) in &paths {
        for (target, body) in [
            (path.file_target(), path.file.clone()),
            (path.target(), path.narinfo().into_bytes()),
        ] {
            let response = server.put(&token, &format!("/{cache}{target}"), body);
            assert_eq!(response.status, 200, "{}", response.text());
        }
    }
    let url = server.url();
    let serves = |(cache, path): &(&str, MadePath)| {
        format!(
            "ok      round trip: {url}/{cache} serves {}",
            path.store_path
        )
    };
    let expected = paths.each_ref().map(serves).join("\n");
    assert_eq!(round_trip(&site, &url), expected);
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
    let token = site.token(&[]);
    let names = ["lost", "missing", "unmirrored", "changed"];
    let [lost, missing, unmirrored, changed] = names.map(MadePath::new);
    for path in [&lost, &missing, &unmirrored, &changed] {
        server.publish(&token, path);
    }
    let of_other = fs::read(site.storage().join(&lost.target()[1..])).expect("is mirrored");
    fs::write(site.storage().join(&changed.target()[1..]), of_other).expect("writes");
    // The directory has no narinfos of lost paths.
    for path in [&lost, &unmirrored] {
        fs::remove_file(site.storage().join(&path.target()[1..])).expect("is mirrored");
    }
    fs::remove_file(site.storage().join(missing.url())).expect("is stored");
    make_old(&site.storage().join(".samovar/tmp/unfinished"));
    site.sql("update nar set state = 3 where id = (select nar_id from path where name = 'lost')");
    site.sql("update path set registered_at = registered_at + 7200");
    let findings = doctor(&site);
    for (severity, text, path) in [
        ("warning", "lost and not served: 1 NAR", &lost),
        (
            "error",
            "the file of 1 path is missing or has a wrong length",
            &missing,
        ),
    ] {
        let text = format!("{text}: {}\n", &path.store_path[11..]);
        assert_finds(&findings, severity, &text, "push these paths again");
    }
    assert_finds(
        &findings,
        "warning",
        "2 of the newest 1000 narinfos",
        "reload or start the server, which writes missing narinfos",
    );
    assert_finds(
        &findings,
        "warning",
        "1 unfinished file older than a day",
        "restart the server",
    );
    assert_finds(&findings, "error", " s in the future", "timedatectl");
}

#[test]
fn a_damaged_or_newer_database_is_an_error() {
    let site = Site::new();
    site.token(&[]);
    site.sql("pragma user_version = 99");
    let newer = doctor(&site);
    assert_finds(
        &newer,
        "error",
        "database has schema 99",
        "run the version of Samovar",
    );
    site.sql("pragma wal_checkpoint(truncate); pragma user_version = 2");
    let database = site.storage().join(DATABASE);
    let mut bytes = fs::read(&database).expect("is there");
    bytes[4096..].fill(0xff);
    fs::write(&database, bytes).expect("writes");
    let damaged = doctor(&site);
    assert_finds(
        &damaged,
        "error",
        "database is damaged",
        "samovar import --rebuild",
    );
}

/// As `samovar fsck` finds it.
#[test]
fn a_row_that_needs_a_missing_row_is_damage() {
    let site = Site::new();
    let server = site.start();
    server.publish(&site.token(&[]), &MadePath::new("path"));
    drop(server);
    assert!(!doctor(&site).contains("error"));
    site.sql("pragma foreign_keys = off; update path set nar_id = 999");
    assert_finds(
        &doctor(&site),
        "error",
        "needs a missing row of nar",
        "samovar import --rebuild",
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

#[test]
fn a_lost_database_and_a_binary_cache_are_errors() {
    let site = Site::new();
    drop(site.start());
    fs::remove_file(site.storage().join(DATABASE)).expect("is there");
    let lost = doctor(&site);
    assert_finds(
        &lost,
        "error",
        "db.sqlite of this storage is missing",
        "--rebuild",
    );
    fs::remove_dir_all(site.storage()).expect("is there");
    fs::create_dir_all(site.storage().join("nar")).expect("makes a directory");
    fs::write(site.storage().join("nar/x.nar"), "x").expect("writes");
    let cache = doctor(&site);
    assert_finds(
        &cache,
        "error",
        "is a binary cache without a database",
        "samovar import",
    );
}

#[test]
fn a_missing_directory_is_not_called_writable() {
    let site = Site::new();
    let text = "ok      storage: DIR/storage does not exist yet; the server can create it\n";
    let findings = doctor(&site);
    assert!(findings.contains(text), "{findings}");
    // The command resolves a relative path as the server does, by the working directory.
    let mut command = samovar();
    command.args(["doctor", "--storage", "relative"]);
    let done = command.current_dir(site.dir()).output().expect("runs");
    let findings = String::from_utf8(done.stdout).expect("is text");
    let text = format!("{}/relative does not exist yet", site.dir().display());
    assert!(findings.contains(&text), "{findings}");
}

#[test]
fn a_storage_in_memory_causes_a_warning() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        return;
    };
    let storage = dir.path().join("storage");
    let site = Site::with_storage(dir, storage);
    drop(site.start());
    let findings = doctor(&site);
    assert_finds(
        &findings,
        "warning",
        "is in memory (tmpfs)",
        "move the storage to a disk",
    );
    assert!(!findings.contains("error"), "{findings}");
}

#[test]
fn a_storage_on_fuse_causes_a_warning() {
    let dir = tempfile::tempdir().expect("makes a directory");
    let (disk, at) = (VolatileDisk::new(1), dir.path().join("disk"));
    fs::create_dir(&at).expect("makes a directory");
    let Some(mounted) = disk.mount(&at) else {
        return;
    };
    let site = Site::with_storage(dir, at.join("storage"));
    drop(site.start());
    let findings = doctor(&site);
    assert_finds(
        &findings,
        "warning",
        "is on a FUSE file system",
        "use a local file system",
    );
    assert!(
        findings.contains("ok      storage: DIR/disk/storage is writable\n"),
        "{findings}"
    );
    assert!(!findings.contains("error"), "{findings}");
    drop(mounted);
}

/// Runs where users may mount file systems in namespaces of their own.
#[test]
fn a_full_disk_is_an_error() {
    let site = Site::new();
    fs::create_dir(site.storage()).expect("makes a directory");
    let program = samovar().get_program().to_owned();
    let script = "mount -t tmpfs -o size=1m tmpfs \"$1\" && cat /dev/zero >\"$1/fill\" 2>&-; \
                  test -e \"$1/fill\" && exec \"$2\" doctor --config \"$3\"";
    let mut command = bare("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", script, "sh"]);
    command.arg(site.storage()).arg(program).arg(site.config());
    let Ok(done) = command.output() else { return };
    let findings = String::from_utf8_lossy(&done.stdout);
    if findings.is_empty() {
        return;
    }
    let text = "is full: 0 B of 1.0 MiB are free; uploads are refused";
    assert!(findings.contains(text), "{findings}");
    assert!(
        findings.contains("fix: delete other files, or use a larger disk"),
        "{findings}"
    );
}

/// The reserve is not used for uploads, so its space and inodes do not help.
#[test]
fn a_disk_with_less_than_the_reserve_is_an_error() {
    let site = Site::new();
    fs::create_dir(site.storage()).expect("makes a directory");
    let program = samovar().get_program().to_owned();
    // The storage has 40 inodes: its own, those of the reserve, and none for an upload.
    let script = "mount -t tmpfs -o size=64m,nr_inodes=40 tmpfs \"$1\" || exit 0; \
                  \"$2\" token create --config \"$3\" --name t >\"$4\" 2>&1; \
                  while touch \"$1/fill-$((n=n+1))\" 2>&-; do :; done; \
                  rm \"$1/fill-1\" \"$1/fill-2\"; rm -f \"$1/.samovar/reserve/0\"; \
                  exec \"$2\" doctor --config \"$3\"";
    let mut command = bare("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", script, "sh"]);
    command.arg(site.storage()).arg(program).arg(site.config());
    command.arg(site.dir().join("token"));
    let Ok(done) = command.output() else { return };
    let findings = String::from_utf8_lossy(&done.stdout);
    if findings.is_empty() {
        return;
    }
    assert!(findings.contains(" is full: "), "{findings}");
    assert!(
        findings.contains(" inodes; uploads are refused"),
        "{findings}"
    );
    assert!(!findings.contains("chown"), "{findings}");
}
