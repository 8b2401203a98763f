//! If the disk of a client is full, or has no inodes left, a command fails with one sentence that
//! names the disk. No half tree appears, no local file is lost, and with more room the same command
//! succeeds.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_disks;
mod support_mount;
mod support_uploads;
mod support_workspaces;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support_disks::SmallDisk;
use support_mount::{Fixture, Mount, can_mount, listed, noise};
use support_workspaces::{Home, assert_has, exits, read, tree, write};
use testkit::eventually;
use testkit::process::output;

/// Text of ENOSPC.
const FULL: &str = "No space left on device";

/// Options of a disk that is too small for the files of [`pushed`], and of one that is not.
const SMALL: [&str; 2] = ["size=1m", "nr_inodes=100"];
const LARGE: &str = "size=20m,nr_inodes=10000";

/// Pushes 200 files of 2 MB as `app`. Returns their workspace.
fn pushed(home: &Home) -> PathBuf {
    let origin = home.open("app", "origin");
    for number in 0..200 {
        let name = format!("d{}/{number}", number % 7);
        write(&origin, &name, noise(number, 10_000));
    }
    home.push(&origin);
    origin
}

/// Returns `samovar pull app DIRECTORY`.
fn pull(home: &Home, directory: &Path) -> Command {
    let mut command = support::samovar();
    command.args(["pull", "app"]).arg(directory);
    command.env("SAMOVAR_CACHE", home.server.url());
    command.env("SAMOVAR_TOKEN", &home.token);
    command
}

/// Asserts that a text names a disk, and is one sentence.
#[track_caller]
fn assert_names(text: &str, disk: &SmallDisk) {
    assert_has(text, FULL);
    assert_has(text, disk.path().to_str().unwrap());
    assert_eq!(text.matches(FULL).count(), 1, "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

fn count(directory: &Path) -> usize {
    fs::read_dir(directory).unwrap().count()
}

#[test]
fn a_pull_into_a_full_disk_leaves_nothing() {
    let home = Home::new();
    let origin = pushed(&home);
    for options in SMALL {
        let Some(disk) = SmallDisk::new(options) else {
            return;
        };
        let copy = disk.path().join("copy");
        let text = exits(&mut pull(&home, &copy), 3);
        assert_names(&text, &disk);
        assert_eq!(count(disk.path()), 0, "{options}");
        disk.resize(LARGE);
        output(&mut pull(&home, &copy));
        assert_eq!(tree(&copy), tree(&origin));
    }
}

#[test]
fn a_workspace_that_did_not_fit_is_completed_by_the_same_command() {
    let home = Home::new();
    let origin = pushed(&home);
    for options in SMALL {
        let Some(disk) = SmallDisk::new(options) else {
            return;
        };
        let copy = disk.path().join("copy");
        let open = || {
            let mut command = home.command(&["open", "app"]);
            command.arg(&copy);
            command
        };
        let text = exits(&mut open(), 3);
        assert_names(&text, &disk);
        assert!(!copy.exists(), "{options}");
        disk.resize(LARGE);
        output(&mut open());
        assert_eq!(tree(&copy), tree(&origin));
        home.assert_clean(&copy);
    }
}

#[test]
fn a_merge_that_does_not_fit_changes_no_file() {
    let home = Home::new();
    let origin = pushed(&home);
    let Some(disk) = SmallDisk::new(LARGE) else {
        return;
    };
    let copy = disk.path().join("copy");
    output(home.command(&["open", "app"]).arg(&copy));
    write(&copy, "mine", "mine");
    let before = tree(&copy);
    for number in 0..200 {
        let name = format!("d{}/{number}", number % 7);
        write(&origin, &name, noise(number + 1000, 10_000));
    }
    fs::remove_file(origin.join("d0/7")).unwrap();
    home.push(&origin);
    let filler = disk.fill(1_000_000);
    let text = home.exits(&copy, &["pull"], 3);
    assert_names(&text, &disk);
    assert!(tree(&copy) == before, "a file was changed");
    // What was received is removed, so that other programs have the room again.
    let names = fs::read_dir(&copy).unwrap().flatten();
    let mut names = names.map(|entry| entry.file_name());
    assert!(names.all(|name| !name.to_string_lossy().starts_with(".samovar")));
    let text = home.exits(&copy, &["status", "--offline"], 1);
    assert_has(&text, "1 added");
    fs::remove_file(filler).unwrap();
    home.run(&copy, &["pull"]);
    let mut expected = tree(&origin);
    expected.insert(b"mine".to_vec(), b"mine".to_vec());
    assert!(tree(&copy) == expected, "the merge is incomplete");
}

#[test]
fn a_push_from_a_full_disk_publishes_everything_or_nothing() {
    let home = Home::new();
    let Some(disk) = SmallDisk::new(LARGE) else {
        return;
    };
    let one = disk.path().join("one");
    let run = |arguments: &[&str], code: i32| {
        let mut command = home.command_in(&one, arguments);
        // The state is on the full disk.
        command.env("XDG_STATE_HOME", disk.path().join("state"));
        exits(&mut command, code)
    };
    fs::create_dir(&one).unwrap();
    run(&["open", "app", "."], 0);
    for number in 0..200 {
        write(&one, &format!("a/{number}"), noise(number, 1000));
    }
    let filler = disk.fill(0);
    let text = run(&["push"], 3);
    assert_names(&text, &disk);
    let log = run(&["log"], 1);
    assert_has(&log, "does not exist");
    fs::remove_file(filler).unwrap();
    assert_has(&run(&["push"], 0), "app@1");
    run(&["status", "--offline"], 0);
    // A change that leaves no file to be written.
    let filler = disk.fill(0);
    fs::remove_dir_all(one.join("a")).unwrap();
    write(&one, "b", "b");
    fs::write(&filler, "").unwrap();
    run(&["push"], 0);
    let copy = home.open("app", "copy");
    assert_eq!(tree(&copy), tree(&one));
    assert_eq!(read(&copy, "b"), "b");
}

#[test]
fn a_mount_whose_cache_disk_is_full_gives_errors_until_there_is_room() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::new("zstd");
    // The manifest fits, its NAR of 9 MiB does not.
    let Some(disk) = SmallDisk::new("size=3m") else {
        return;
    };
    let command = |disk: &SmallDisk| {
        let mut command = fixture.command(&fixture.server.url(), "app", "mnt");
        command.env("SAMOVAR_CACHE_DIR", disk.path());
        command
    };
    let dir = fixture.dir.path().join("mnt");
    let mount = Mount::start(command(&disk).args(["--timeout", "1"]), dir);
    let lines = mount
        .process
        .lines_to("cannot write downloaded files to the cache directory");
    assert_has(lines.last().unwrap(), FULL);
    let failing = (0..4).filter(|number| mount.read(&format!("deep/large-{number}")) == Err(5));
    assert!(failing.count() > 0);
    // It is stated once, and the server is not blamed.
    assert_eq!(mount.process.count("cannot write downloaded files"), 1);
    assert_eq!(mount.process.count("cannot read http"), 0);
    disk.resize("size=30m");
    mount.process.wait_for("can be written again");
    let expected = listed(&fixture.tree());
    eventually("everything is readable", || listed(&mount.dir) == expected);
    assert_eq!(mount.process.count("cannot write downloaded files"), 1);
    drop(mount);
    // Not even the manifest fits.
    let Some(disk) = SmallDisk::new("nr_inodes=5") else {
        return;
    };
    let text = exits(&mut command(&disk), 3);
    assert_names(&text, &disk);
}
