//! A database that is made again has all that the directory and the backups have, also after an
//! interruption and after damage to the newest backup.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use samovar_nix::StoreDir;
use samovar_storage::{DATABASE, Storage, backup};
use support::samovar;
use support_uploads::{MadePath, Site};
use testkit::process::{fails, finish, output};

/// Creates a site whose storage has a path, a token and a daily backup, but no database. Returns
/// the path and the token.
fn without_database() -> (Site, MadePath, String) {
    let (site, path) = (Site::new(), MadePath::new("used"));
    let server = site.start();
    let token = site.token(&[]);
    server.publish(&token, &path);
    server.process.terminate();
    back_up(&site);
    remove_database(&site);
    (site, path, token)
}

fn back_up(site: &Site) {
    let storage = Storage::open(&site.storage(), &StoreDir::default()).unwrap();
    backup::write(&storage).unwrap();
}

fn remove_database(site: &Site) {
    for suffix in ["", "-wal", "-shm"] {
        fs::remove_file(site.storage().join(format!("{DATABASE}{suffix}"))).ok();
    }
}

fn rebuild(site: &Site) -> Command {
    let mut command = samovar();
    command.args(["import", "--rebuild", "--config"]);
    command.arg(site.config());
    command
}

/// Returns the backups of the storage, the oldest first.
fn backups(site: &Site) -> Vec<PathBuf> {
    let entries = fs::read_dir(site.storage().join(".samovar/backup")).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// Asserts that the storage has the path and the token.
#[track_caller]
fn assert_restored(site: &Site, path: &MadePath, token: &str) {
    let server = site.start();
    server.assert_serves(path);
    server.publish(token, &MadePath::new("later"));
}

#[test]
fn an_interrupted_rebuild_is_refused_by_everything_else_and_continues_when_it_is_repeated() {
    let (site, path, token) = without_database();
    // The command ends at the malformed narinfo: after it has published the path of the directory,
    // before it restores tokens and pins.
    let bad = backups(&site)
        .pop()
        .unwrap()
        .with_file_name("9999-01-01.jsonl.zst");
    let line = "{\"kind\":\"narinfo\",\"cache\":\"b\",\"text\":\"bad\"}\n";
    fs::write(&bad, zstd(line.as_bytes())).unwrap();
    let stopped = fails(&mut rebuild(&site));
    assert!(
        stopped.contains("the backup of the cache \"b\""),
        "{stopped}"
    );
    assert_eq!(site.sql("select count(*) from path").trim(), "1");
    let with = |words: &[&str], option: &str, path: PathBuf| {
        let mut command = samovar();
        command.args(words).arg(option).arg(path);
        command
    };
    for mut command in [
        with(&["serve"], "--config", site.config()),
        with(&["import"], "--config", site.config()),
        with(&["fsck"], "--config", site.config()),
        with(&["gc"], "--config", site.config()),
        with(&["token", "list"], "--storage", site.storage()),
        with(
            &["token", "create", "--name", "a"],
            "--storage",
            site.storage(),
        ),
        with(&["pin", "list"], "--storage", site.storage()),
    ] {
        let text = fails(&mut command);
        assert!(
            text.contains("repeat samovar import --rebuild"),
            "{command:?}: {text}"
        );
    }
    fs::remove_file(bad).unwrap();
    output(&mut rebuild(&site));
    assert_restored(&site, &path, &token);
    assert!(fails(&mut rebuild(&site)).contains("the database has paths"));
}

#[test]
fn a_rebuild_skips_backups_that_cannot_be_read() {
    let (site, path, token) = without_database();
    let good = backups(&site).pop().unwrap();
    let text = fs::read(&good).unwrap();
    let directory = good.parent().unwrap();
    let bad = ["9999-01-01", "9999-01-02", "9999-01-03", "9999-01-04"];
    let garbage = zstd(b"garbage\n");
    let contents = [&text[..text.len() / 2], b"", b"garbage", &garbage];
    for (day, content) in bad.iter().zip(contents) {
        fs::write(directory.join(format!("{day}.jsonl.zst")), content).unwrap();
    }
    // Without any backup that can be read, nothing is lost in silence.
    let moved = site.dir().join("good");
    fs::rename(&good, &moved).unwrap();
    let refused = fails(&mut rebuild(&site));
    assert!(refused.contains("no daily backup can be read"), "{refused}");
    fs::rename(&moved, &good).unwrap();
    let done = finish(&mut rebuild(&site));
    let advice = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.success(), "{advice}");
    for day in bad {
        let part = format!("cannot be used: cannot read .samovar/backup/{day}");
        assert!(advice.contains(&part), "{part}: {advice}");
    }
    assert_restored(&site, &path, &token);
}

fn zstd(text: &[u8]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("text");
    fs::write(&file, text).unwrap();
    let mut command = Command::new("zstd");
    command.args(["-qc"]).arg(&file);
    finish(&mut command).stdout
}

#[test]
fn a_server_keeps_a_backup_that_has_more_than_its_database() {
    let site = Site::new();
    site.start().process.terminate();
    let old = site.dir().join("old");
    site.token(&["--name", "old"]);
    site.sql(&format!(".backup '{}'", old.display()));
    // A backup that has nothing more is replaced.
    back_up(&site);
    site.token(&["--name", "new"]);
    back_up(&site);
    let [backup] = &backups(&site)[..] else {
        panic!("{:?}", backups(&site));
    };
    let before = fs::read(backup).unwrap();
    remove_database(&site);
    fs::rename(old, site.storage().join(DATABASE)).unwrap();
    let server = site.start();
    let line = server.process.wait_for("it was kept as");
    assert!(line.contains("+1.jsonl.zst"), "{line}");
    server.process.terminate();
    let [kept, _] = &backups(&site)[..] else {
        panic!("{:?}", backups(&site));
    };
    assert!(kept.to_str().unwrap().ends_with("+1.jsonl.zst"));
    assert_eq!(fs::read(kept).unwrap(), before);
}
