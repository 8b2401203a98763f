//! Every command refuses a storage that it cannot use: the sentence names the fix, and the storage
//! stays as it is.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use samovar_nix::StoreDir;
use samovar_storage::{DATABASE, Storage, backup};
use support::samovar;
use support_uploads::{MadePath, Site};
use testkit::process::{fails, output};

/// Returns a command for each way of using a storage directory.
fn commands(site: &Site) -> Vec<Command> {
    let (config, storage) = (site.config(), site.storage());
    let with = |option: &str, path: &Path, words: &[&str]| {
        let mut command = samovar();
        command.args(words).arg(option).arg(path);
        command
    };
    let configured = ["serve", "fsck", "gc", "gc --dry-run", "export --to nowhere"];
    let other = [
        "token list",
        "token create --name a",
        "token revoke --name a",
        "pin list",
        "pin add a b",
    ];
    let words = |text: &'static str| text.split(' ').collect::<Vec<_>>();
    let configured = configured
        .iter()
        .map(|text| with("--config", &config, &words(text)));
    let other = other
        .iter()
        .map(|text| with("--storage", &storage, &words(text)));
    configured.chain(other).collect()
}

/// Asserts that each command fails with a message that contains all of `parts`, and leaves the
/// database as it is.
#[track_caller]
fn assert_refused(site: &Site, parts: &[&str]) {
    let database = site.storage().join(DATABASE);
    let before = fs::read(&database).ok();
    for mut command in commands(site) {
        let text = fails(&mut command);
        for part in parts {
            assert!(text.contains(part), "{part}: {command:?}: {text}");
        }
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    assert_eq!(fs::read(&database).ok(), before);
}

/// Creates a site whose storage has a path, a token and a daily backup. Returns the path and the
/// token.
fn used() -> (Site, MadePath, String) {
    let (site, path) = (Site::new(), MadePath::new("used"));
    let server = site.start();
    let token = site.token(&[]);
    server.publish(&token, &path);
    server.process.terminate();
    let storage = Storage::open(&site.storage(), &StoreDir::default()).unwrap();
    backup::write(&storage).unwrap();
    (site, path, token)
}

/// Moves the files of the database into another directory.
fn move_database_away(site: &Site) {
    for suffix in ["", "-wal", "-shm"] {
        let from = site.storage().join(format!("{DATABASE}{suffix}"));
        fs::rename(from, site.dir().join(format!("moved{suffix}"))).ok();
    }
}

/// Rebuilds the database as the refusals say, and asserts that path and token are back.
#[track_caller]
fn rebuild(site: &Site, path: &MadePath, token: &str) {
    let mut command = samovar();
    command
        .args(["import", "--rebuild", "--config"])
        .arg(site.config());
    output(&mut command);
    let server = site.start();
    server.assert_serves(path);
    server.publish(token, &MadePath::new("later"));
}

#[test]
fn a_lost_database_is_reported_and_never_replaced_by_an_empty_one() {
    let (site, path, token) = used();
    move_database_away(&site);
    let parts = [
        "db.sqlite of this storage is missing",
        "from a copy",
        "samovar import --rebuild",
        "daily backup in .samovar/backup",
    ];
    assert_refused(&site, &parts);
    assert!(!site.storage().join(DATABASE).exists());
    // A full disk or a power cut may leave an empty file.
    fs::write(site.storage().join(DATABASE), "").unwrap();
    assert_refused(&site, &parts);
    rebuild(&site, &path, &token);
}

#[test]
fn a_damaged_database_is_reported_with_its_replacement() {
    let (site, path, token) = used();
    let database = site.storage().join(DATABASE);
    let parts = [
        "database is damaged: ",
        "move .samovar/db.sqlite and the files .samovar/db.sqlite-* out of the directory",
        "samovar import --rebuild",
        "daily backup in .samovar/backup",
    ];
    fs::write(&database, "garbage ".repeat(100)).unwrap();
    assert_refused(&site, &parts);
    move_database_away(&site);
    rebuild(&site, &path, &token);
}

#[test]
fn a_binary_cache_becomes_a_storage_by_an_import_only() {
    let (site, path) = (Site::new(), MadePath::new("copied"));
    let directory = site.storage();
    fs::create_dir_all(directory.join("nar")).unwrap();
    fs::write(directory.join("nix-cache-info"), "StoreDir: /nix/store\n").unwrap();
    fs::write(directory.join(&path.target()[1..]), path.narinfo()).unwrap();
    fs::write(directory.join(path.url()), &path.file).unwrap();
    assert_refused(
        &site,
        &["to make it a storage, run samovar import with the options"],
    );
    let mut import = samovar();
    output(import.args(["import", "--config"]).arg(site.config()));
    site.start().assert_serves(&path);
}

#[test]
fn a_file_is_no_storage() {
    let site = Site::new();
    fs::write(site.storage(), "text").unwrap();
    assert_refused(&site, &["is not a directory"]);
}

#[test]
fn a_storage_of_another_user_is_reported_with_both_users() {
    let nobody = 65_534;
    let site = Site::new();
    drop(site.token(&[]));
    let may_run = |command: &mut Command| {
        command.uid(nobody).gid(nobody).arg("--version");
        command.output().is_ok_and(|done| done.status.success())
    };
    if !rustix::process::geteuid().is_root() || !may_run(&mut samovar()) {
        return;
    }
    let open = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    open(site.dir(), 0o755);
    open(&site.storage(), 0o777);
    let refused = |storage: &Path| {
        let mut command = samovar();
        command.uid(nobody).gid(nobody);
        command.args(["token", "create", "--name", "b", "--storage"]);
        fails(command.arg(storage))
    };
    let text = refused(&site.storage());
    let part = "belongs to the user 0, but this program runs as user 65534; run it as the user of";
    assert!(text.contains(part), "{text}");
    // The administrator has run a command as root on a storage of the server's user.
    let private = site.storage().join(".samovar");
    chown(&private, Some(nobody), Some(nobody)).unwrap();
    open(&site.storage().join(DATABASE), 0o644);
    let text = refused(&site.storage());
    assert!(text.contains("db.sqlite\" belongs to the user 0"), "{text}");
    assert!(text.contains("chown -R"), "{text}");
    assert_eq!(
        fs::metadata(site.storage().join(DATABASE)).unwrap().uid(),
        0
    );
    // A directory that this user cannot create.
    let text = refused(&site.dir().join("new"));
    assert!(
        text.contains("cannot create .samovar: Permission denied"),
        "{text}"
    );
    assert!(text.contains("chown -R"), "{text}");
}

/// A mistyped `storage` is a new one, in which all uploaded paths are missing.
#[test]
fn a_new_storage_is_logged_and_one_in_use_is_refused() {
    let site = Site::new();
    let server = site.start();
    let part = format!(
        "{:?} is a new storage; if you meant another",
        site.storage()
    );
    assert_eq!(server.process.count(&part), 1);
    assert_eq!(server.process.count("correct `storage`"), 1);
    let text = fails(samovar().args(site.arguments()));
    let part = format!(
        "another process uses the storage {:?} (process {}): stop it first",
        site.storage(),
        server.process.pid()
    );
    assert!(text.contains(&part), "{text}");
    server.process.terminate();
    assert_eq!(site.start().process.count("is a new storage"), 0);
}

#[test]
fn options_are_refused_with_their_form() {
    let site = Site::new();
    let with = |words: &[&str]| {
        let mut command = samovar();
        fails(command.args(words).arg("--storage").arg(site.storage()))
    };
    let text = with(&["serve", "--uploads-quota", "10 potatoes"]);
    assert!(
        text.contains("must be a number of bytes, at least 1, such as 4096 or \"64 MiB\""),
        "{text}"
    );
    let text = with(&["import", "--from", "file://srv/cache"]);
    assert!(
        text.contains("write three slashes, file:///srv/cache"),
        "{text}"
    );
    assert!(!site.storage().exists());
}
