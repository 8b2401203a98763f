//! Root runs commands on the storage of another user, and this user can use all files afterwards.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;
mod support_users;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::samovar;
use support_uploads::{MadePath, Running, Site};
use support_users::{NOBODY, has_users};
use testkit::process::{fails, output};

/// Creates a site with an empty storage directory of another user.
fn site() -> Site {
    let site = Site::new();
    fs::create_dir(site.storage()).unwrap();
    chown(site.storage(), Some(NOBODY), Some(NOBODY)).unwrap();
    site
}

/// Returns a command of root with the site's configuration. A regular user may not even enter the
/// directories above the storage.
fn command(site: &Site, words: &str) -> Command {
    let mut command = samovar();
    command.args(words.split(' ')).arg("--config");
    command.arg(site.config());
    command
}

/// Asserts that all files of the storage belong to the other user.
#[track_caller]
fn assert_owned(site: &Site, after: &str) {
    let mut pending = vec![site.storage()];
    while let Some(path) = pending.pop() {
        let found = fs::symlink_metadata(&path).unwrap();
        if path.ends_with("lost+found") {
            assert_eq!(found.uid(), 0, "{path:?} after {after}");
            continue;
        }
        assert_eq!(found.uid(), NOBODY, "{path:?} after {after}");
        if found.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|it| it.unwrap().path()));
        }
    }
}

/// Writes a binary cache with one path into a directory of root. Returns the directory.
fn cache_of_root(site: &Site, path: &MadePath) -> PathBuf {
    let directory = site.dir().join("from");
    fs::create_dir_all(directory.join("nar")).unwrap();
    fs::write(directory.join("nix-cache-info"), "StoreDir: /nix/store\n").unwrap();
    fs::write(directory.join(&path.target()[1..]), path.narinfo()).unwrap();
    fs::write(directory.join(path.url()), &path.file).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
    directory
}

#[test]
fn maintenance_by_root_leaves_the_storage_to_its_owner() {
    if !has_users() {
        return;
    }
    let (site, path) = (site(), MadePath::new("owned"));
    // The first command makes the storage.
    let token = site.token(&[]);
    assert_owned(&site, "token create");
    let from = cache_of_root(&site, &path);
    let mut import = command(&site, "import");
    let imported = output(import.arg("--from").arg(&from));
    assert!(imported.contains("1 path imported"), "{imported}");
    assert_owned(&site, "import");
    for words in [
        "gc",
        "gc --dry-run",
        "fsck --repair",
        "fsck --deep",
        "doctor",
    ] {
        let done = command(&site, words).output().unwrap();
        let text = String::from_utf8_lossy(&done.stdout);
        assert!(!text.contains("error   storage"), "{words}: {text}");
        assert_owned(&site, words);
    }
    for words in [
        vec!["pin", "add", "kept", &path.store_path],
        vec!["pin", "list"],
        vec!["pin", "remove", "kept"],
        vec!["token", "list"],
    ] {
        let mut command = samovar();
        output(command.args(&words).arg("--storage").arg(site.storage()));
        assert_owned(&site, words[1]);
    }
    let to = site.dir().join("to");
    output(command(&site, "export").arg("--to").arg(&to));
    assert_owned(&site, "export");
    assert_eq!(fs::metadata(to.join(path.url())).unwrap().uid(), 0);
    // The server of the storage's owner serves the path, and takes another one.
    assert_served_by_owner(&site, &path, &token);
    output(&mut command(&site, "cache delete default --yes"));
    assert_owned(&site, "cache delete");
}

/// Before the first start, the configuration alone names the user of the server.
#[test]
fn root_makes_a_new_storage_for_the_user_of_the_server() {
    if !has_users() {
        return;
    }
    // An empty binary cache, as `nix copy` leaves it where it could copy nothing, has these names.
    let directories: [&[&str]; 4] = [&[], &[""], &["lost+found"], &["nar", "log", "lost+found"]];
    let tests = directories.map(|names| [(names, false), (names, true)]);
    for (names, imports) in tests.into_iter().flatten() {
        let (site, path) = (Site::new(), MadePath::new("imported"));
        site.configure_empty("user = \"65534\"\ngroup = \"65534\"\n");
        for name in names {
            fs::create_dir_all(site.storage().join(name)).unwrap();
        }
        if names.contains(&"nar") {
            fs::write(
                site.storage().join("nix-cache-info"),
                "StoreDir: /nix/store\n",
            )
            .unwrap();
        }
        if imports {
            let mut import = command(&site, "import");
            output(import.arg("--from").arg(cache_of_root(&site, &path)));
            assert_owned(&site, "import");
        }
        let token = output(&mut command(&site, "token create --name first"));
        assert_owned(&site, "token create");
        for directory in [site.dir(), &live_root(&site)] {
            fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let server = site.start();
        server.publish(token.trim(), &MadePath::new("first"));
        assert_owned(&site, "serve");
    }
    // A binary cache of root becomes a storage of the user.
    let (site, path) = (Site::new(), MadePath::new("adopted"));
    site.configure_empty("user = \"65534\"\ngroup = \"65534\"\n");
    fs::rename(cache_of_root(&site, &path), site.storage()).unwrap();
    let imported = output(&mut command(&site, "import"));
    assert!(imported.contains("1 path imported"), "{imported}");
    assert_owned(&site, "import in place");
    for directory in [site.dir(), &live_root(&site)] {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    }
    site.start().assert_serves(&path);
    // One of a third user is refused.
    let site = Site::new();
    site.configure_empty("user = \"65534\"\ngroup = \"65534\"\n");
    fs::create_dir(site.storage()).unwrap();
    std::os::unix::fs::chown(site.storage(), Some(1234), Some(1234)).unwrap();
    let refused = fails(&mut command(&site, "token create --name first"));
    assert!(refused.contains("belongs to the user 1234"), "{refused}");
    // A directory that has other files stays that of root.
    let site = Site::new();
    site.configure_empty("user = \"65534\"\ngroup = \"65534\"\n");
    fs::create_dir(site.storage()).unwrap();
    fs::write(site.storage().join("other"), "").unwrap();
    fails(&mut command(&site, "token create --name first"));
    assert_eq!(fs::metadata(site.storage()).unwrap().uid(), 0);
}

/// Also if the configuration names the user.
#[test]
fn root_continues_an_interrupted_rebuild() {
    if !has_users() {
        return;
    }
    let (site, path) = (Site::new(), MadePath::new("rebuilt"));
    site.configure_empty("user = \"65534\"\ngroup = \"65534\"\n");
    let mut import = command(&site, "import");
    output(import.arg("--from").arg(cache_of_root(&site, &path)));
    let private = site.storage().join(".samovar");
    for name in ["db.sqlite", "db.sqlite-wal", "db.sqlite-shm"] {
        fs::remove_file(private.join(name)).ok();
    }
    let rebuilding = private.join("rebuilding");
    fs::write(&rebuilding, "").unwrap();
    chown(&rebuilding, Some(NOBODY), Some(NOBODY)).unwrap();
    let rebuilt = output(&mut command(&site, "import --rebuild"));
    assert!(rebuilt.contains("1 path imported"), "{rebuilt}");
    assert_owned(&site, "import --rebuild");
    assert!(!rebuilding.exists());
}

/// A link keeps the owner and the mode of the file, so it is made only of files that the server can
/// read. The directory has the group root, to which the server does not belong.
#[test]
fn an_import_links_only_what_the_owner_can_read() {
    if !has_users() {
        return;
    }
    let site = site();
    chown(site.storage(), Some(NOBODY), Some(0)).unwrap();
    let token = site.token(&[]);
    let (secret, open) = (MadePath::new("secret"), MadePath::new("open"));
    let from = cache_of_root(&site, &secret);
    fs::write(from.join(&open.target()[1..]), open.narinfo()).unwrap();
    fs::write(from.join(open.url()), &open.file).unwrap();
    fs::set_permissions(from.join(secret.url()), fs::Permissions::from_mode(0o640)).unwrap();
    fs::set_permissions(from.join(open.url()), fs::Permissions::from_mode(0o644)).unwrap();
    let mut import = command(&site, "import --link");
    let imported = output(import.arg("--from").arg(&from));
    assert!(imported.contains("2 paths imported"), "{imported}");
    let inode = |path: PathBuf| fs::metadata(path).unwrap().ino();
    let is_linked =
        |path: &MadePath| inode(from.join(path.url())) == inode(site.storage().join(path.url()));
    assert!(is_linked(&open) && !is_linked(&secret));
    assert_eq!(
        fs::metadata(site.storage().join(secret.url()))
            .unwrap()
            .uid(),
        NOBODY
    );
    // The doctor finds such a link.
    let doctor = || {
        let done = command(&site, "doctor").output().unwrap();
        String::from_utf8(done.stdout).unwrap()
    };
    assert!(
        !doctor().contains("cannot be used by its owner"),
        "{}",
        doctor()
    );
    fs::set_permissions(from.join(open.url()), fs::Permissions::from_mode(0o640)).unwrap();
    assert!(
        doctor().contains("cannot be used by its owner"),
        "{}",
        doctor()
    );
    fs::set_permissions(from.join(open.url()), fs::Permissions::from_mode(0o644)).unwrap();
    let mut serve = samovar();
    serve
        .args(site.arguments())
        .args(["--user", "65534", "--group", "65534"]);
    for directory in [site.dir(), &live_root(&site)] {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let server = Running::of(&mut serve);
    server.assert_serves(&secret);
    server.assert_serves(&open);
    server.publish(&token, &MadePath::new("later"));
}

/// A server that root starts by mistake would leave files that the owner's server cannot use.
#[test]
fn a_server_that_root_runs_refuses_the_storage_of_another_user() {
    if !has_users() {
        return;
    }
    let site = site();
    for is_new in [true, false] {
        if !is_new {
            site.token(&[]);
        }
        let text = fails(samovar().args(site.arguments()));
        assert!(
            text.contains("belongs to user 65534") && text.contains("set `user` to 65534"),
            "{text}"
        );
        assert_eq!(site.storage().join(".samovar").exists(), !is_new);
    }
    assert_owned(&site, "serve");
}

/// Asserts that a server that the owner of the storage runs can use it.
fn assert_served_by_owner(site: &Site, path: &MadePath, token: &str) {
    let mut serve = samovar();
    serve
        .args(site.arguments())
        .args(["--user", "65534", "--group", "65534"]);
    // Root has started the server, and the directories above the storage are closed to its user.
    for directory in [site.dir(), &live_root(site)] {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let server = Running::of(&mut serve);
    server.assert_serves(path);
    server.publish(token, &MadePath::new("later"));
    assert_owned(site, "an upload");
    let mut gc = samovar();
    gc.uid(NOBODY).gid(NOBODY).args(["gc", "--storage"]);
    if may_run() {
        output(gc.arg(site.storage()));
    }
}

/// Returns the directory of the site's Nix store.
fn live_root(site: &Site) -> PathBuf {
    let text = fs::read_to_string(site.config()).unwrap();
    let key = text
        .lines()
        .find_map(|line| line.strip_prefix("secret-key-files = \""));
    Path::new(key.unwrap()).parent().unwrap().to_owned()
}

/// Returns whether the other user may run the program, which is below the directory of the sources.
fn may_run() -> bool {
    let mut command = samovar();
    command.uid(NOBODY).gid(NOBODY).arg("--version");
    command.output().is_ok_and(|done| done.status.success())
}

#[test]
fn the_doctor_finds_files_that_the_owner_cannot_use() {
    if !has_users() {
        return;
    }
    let (site, path) = (site(), MadePath::new("foreign"));
    site.token(&[]);
    output(
        command(&site, "import")
            .arg("--from")
            .arg(cache_of_root(&site, &path)),
    );
    let nar = site.storage().join(path.url());
    chown(&nar, Some(0), Some(0)).unwrap();
    fs::set_permissions(&nar, fs::Permissions::from_mode(0o640)).unwrap();
    let doctor = |expected: i32| {
        let done = command(&site, "doctor").output().unwrap();
        let text = String::from_utf8(done.stdout).unwrap();
        let finds = text.contains("error   storage: 1 file of");
        assert_eq!(i32::from(finds), expected, "{text}");
        text
    };
    let text = doctor(1);
    let fix = format!("fix: chown -R 65534:65534 {}", site.storage().display());
    assert!(text.contains(&fix), "{text}");
    assert!(text.contains("belongs to user 0"), "{text}");
    // The owner can read this file of root.
    fs::set_permissions(&nar, fs::Permissions::from_mode(0o644)).unwrap();
    doctor(0);
}
