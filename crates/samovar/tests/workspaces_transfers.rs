//! Pulls transfer little more than what is missing: only the frames of the NAR in which it is.

mod support;
mod support_mount;
mod support_uploads;
mod support_workspaces;

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use support_mount::{Line, noise};
use support_workspaces::{Home, read, tree, write};
use testkit::eventually;
use testkit::process::{Process, output};

const FILE_COUNT: u8 = 80;
const FILE_LEN: usize = 128 << 10;

/// Length of a frame, and of the heads of responses, seek table and manifest.
const FRAME_LEN: usize = 1 << 20;
const OVERHEAD_LEN: usize = 64 << 10;

/// Writes files that no compressor shortens, in many directories.
fn create(directory: &Path) {
    for number in 0..FILE_COUNT {
        let name = format!("d{}/f{number}", number % 7);
        write(directory, &name, noise(number.into(), FILE_LEN));
    }
}

#[test]
fn a_pull_receives_only_the_frames_of_changed_files() {
    let home = Home::new();
    let one = home.open("app", "one");
    create(&one);
    home.push(&one);
    let line = Line::to(home.server.address, usize::MAX);
    let two = home.dir("two");
    output(
        home.command(&["open", "app"])
            .arg(&two)
            .env("SAMOVAR_CACHE", line.url()),
    );
    let whole = line.forwarded();
    assert!(whole > usize::from(FILE_COUNT) * FILE_LEN);
    let mut seed = u64::from(FILE_COUNT);
    // In the NAR, these files are far from each other.
    for (names, frame_count) in [(&["d3/f3"][..], 2), (&["d0/f7", "d6/f6", "new"], 6)] {
        let before = line.forwarded();
        for name in names {
            seed += 1;
            write(&one, name, noise(seed, FILE_LEN));
        }
        home.push(&one);
        home.run(&two, &["pull"]);
        assert_eq!(tree(&two), tree(&one));
        let received = line.forwarded() - before;
        let expected = frame_count * FRAME_LEN + OVERHEAD_LEN;
        assert!(received < expected, "{received} bytes for {names:?}");
    }
    // Files without contents need no frame.
    let before = line.forwarded();
    write(&one, "empty", "");
    home.push(&one);
    home.run(&two, &["pull"]);
    assert_eq!(read(&two, "empty"), "");
    assert!(line.forwarded() - before < OVERHEAD_LEN);
}

#[test]
fn a_pull_after_a_killed_one_receives_only_what_is_missing() {
    let home = Home::new();
    let one = home.open("app", "one");
    write(&one, "first", "first");
    home.push(&one);
    let line = Line::to(home.server.address, usize::MAX);
    let two = home.dir("two");
    output(
        home.command(&["open", "app"])
            .arg(&two)
            .env("SAMOVAR_CACHE", line.url()),
    );
    create(&one);
    home.push(&one);
    line.limit(5 << 20);
    let mut pull = Process::spawn(&mut home.command_in(&two, &["pull"]));
    let id = home.state(&two);
    let id = id
        .file_name()
        .expect("has a name")
        .to_str()
        .expect("is hexadecimal");
    let incoming = two.join(format!(".samovar-tmp-{}", &id[..16]));
    let complete = || {
        let entries = fs::read_dir(&incoming).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().into_encoded_bytes());
        names.filter(|name| !name.ends_with(b".part")).count()
    };
    eventually("some files are received", || complete() >= 24);
    pull.signal("KILL");
    pull.wait();
    let received = complete() * FILE_LEN;
    let before = line.forwarded();
    line.release();
    home.run(&two, &["pull"]);
    assert_eq!(tree(&two), tree(&one));
    let missing = usize::from(FILE_COUNT) * FILE_LEN - received;
    // The proxy may count what it sends to the killed process.
    let expected = missing + 2 * FRAME_LEN + 4 * OVERHEAD_LEN;
    let received = line.forwarded() - before;
    assert!(received < expected, "{received} bytes for {missing}");
}

/// Runs a command whose download stops, kills it when the file at `spool` has most of it, and runs
/// it again. Returns the number of bytes that the second run has received.
fn killed_and_repeated(
    line: &Line,
    command: impl Fn() -> Command,
    spool: impl Fn() -> PathBuf,
    damage: bool,
) -> usize {
    line.limit(6 << 20);
    let mut process = Process::spawn(&mut command());
    eventually("some of the file is received", || {
        fs::metadata(spool()).is_ok_and(|found| found.len() > 5 << 20)
    });
    process.signal("KILL");
    process.wait();
    if damage {
        let file = File::options().write(true).open(spool()).expect("opens");
        file.write_all_at(&[0; 4096], 2 << 20).expect("is written");
    }
    let before = line.forwarded();
    let spool = spool();
    line.release();
    output(&mut command());
    assert!(!spool.exists());
    line.forwarded() - before
}

#[test]
fn a_killed_download_of_a_tree_is_continued() {
    let home = Home::new();
    let one = home.open("app", "one");
    create(&one);
    home.push(&one);
    let len = usize::from(FILE_COUNT) * FILE_LEN;
    for damage in [false, true] {
        for name in ["open", "pull"] {
            let line = Line::to(home.server.address, 0);
            let place = tempfile::tempdir().expect("is created");
            let directory = place.path().join("tree");
            let command = || {
                let mut command = home.command(&["open", "app"]);
                if name == "pull" {
                    command = support::samovar();
                    command.args(["pull", "app"]);
                    command.env("SAMOVAR_TOKEN", &home.token);
                }
                command.env("SAMOVAR_CACHE", line.url()).arg(&directory);
                command
            };
            let spool = || {
                let received = fs::read_dir(&directory).into_iter().flatten().flatten();
                let mut received = received.map(|entry| entry.path());
                let directory = match name {
                    "pull" => place.path().to_owned(),
                    _ => received.next().unwrap_or_default(),
                };
                directory.join(".tree.samovar-download")
            };
            let received = killed_and_repeated(&line, command, spool, damage);
            assert_eq!(tree(&directory), tree(&one));
            assert_eq!(fs::read_dir(place.path()).expect("opens").count(), 1);
            let rest = len - (5 << 20) + 4 * OVERHEAD_LEN;
            // Damaged bytes are received again.
            assert!(damage || received < rest, "{received} bytes by {name}");
        }
    }
}
