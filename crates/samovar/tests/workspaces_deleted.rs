//! `close --delete` deletes what is on the server and nothing else, and goes on after a kill.
//! Automatic pushes neither publish that most files are gone, nor end in silence with unpushed
//! files.

mod support;
mod support_uploads;
mod support_workspaces;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Stdio;

use support_workspaces::{Home, assert_has, kill_at_each_step, read, tree, write};
use testkit::process::Process;

fn fill(directory: &Path, count: u32) {
    for number in 0..count {
        let name = format!("d{}/f{number}", number % 50);
        write(directory, &name, number.to_string());
    }
}

#[test]
fn a_deletion_that_was_killed_is_finished_by_the_next_close() {
    const COUNT: u32 = 5000;
    for attempt in 0.. {
        assert!(attempt < 20, "no deletion could be killed in time");
        let home = Home::new();
        let one = home.open("app", "one");
        fill(&one, COUNT);
        home.push(&one);
        let _socket = UnixListener::bind(one.join("d0/socket")).unwrap();
        let mut close = home.command_in(&one, &["close", "--delete"]);
        let close = close.stdout(Stdio::null()).stderr(Stdio::null());
        let mut close = close.spawn().unwrap();
        // The deletion begins with the last file.
        let last = one.join("d9/f9");
        testkit::eventually("the deletion begins", || !last.exists());
        close.kill().unwrap();
        close.wait().unwrap();
        if !one.join("d0/f0").exists() {
            continue;
        }
        // Other commands do not take the missing files for removals.
        let text = home.exits(&one, &["push"], 1);
        assert_has(&text, "close --delete was interrupted");
        home.exits(&one, &["pull"], 1);
        // What was created or changed meanwhile stays.
        write(&one, "d0/new", "new");
        write(&one, "d0/f0", "changed");
        let text = home.exits(&one, &["close"], 1);
        assert_has(&text, "2 files stay");
        let kept = tree(&one);
        let names: Vec<&[u8]> = kept.keys().map(Vec::as_slice).collect();
        assert_eq!(names, [&b"d0"[..], b"d0/f0", b"d0/new"]);
        home.exits(&one, &["status"], 2);
        let two = home.open("app", "two");
        assert_eq!(read(&two, "d9/f9"), "9");
        return;
    }
}

#[test]
fn a_deletion_that_was_killed_at_any_step_is_finished_by_the_next_close() {
    let home = Home::new();
    kill_at_each_step(&home, &home.dir("one"), &[], || {
        let one = home.open("app", "one");
        if !one.join("d").exists() {
            write(&one, "d/file", "1");
            home.push(&one);
        }
    });
}

#[test]
fn a_deletion_that_was_killed_can_be_taken_back() {
    let home = Home::new();
    let one = home.open("app", "one");
    fill(&one, 100);
    home.push(&one);
    let before = tree(&one);
    // As a kill leaves it.
    write(&home.state(&one), "closing", "");
    fs::remove_dir_all(one.join("d9")).unwrap();
    home.exits(&one, &["push"], 1);
    home.run(&one, &["discard", "--yes"]);
    assert_eq!(tree(&one), before);
    home.assert_clean(&one);
    assert_has(&home.run(&one, &["push"]), "nothing to push");
    home.run(&one, &["close", "--delete"]);
    assert!(!one.exists());
}

/// The directory is gone, but its state is not.
#[test]
fn a_directory_whose_deletion_was_killed_can_be_opened_again() {
    let home = Home::new();
    let one = home.open("app", "one");
    write(&one, "a", "a");
    home.push(&one);
    // As a kill leaves it.
    write(&home.state(&one), "closing", "");
    fs::remove_dir_all(&one).unwrap();
    home.open("app", "one");
    home.assert_clean(&one);
    let states = fs::read_dir(home.dir("state/samovar/.samovar")).unwrap();
    let is_state = |name: &OsStr| name != "lock";
    let states = states.filter(|state| is_state(&state.as_ref().unwrap().file_name()));
    assert_eq!(states.count(), 1);
}

#[test]
fn automatic_pushes_wait_if_most_files_are_gone() {
    let home = Home::new();
    let one = home.open("app", "one");
    for (directory, count) in [("a", 8), ("b", 7), ("c", 4), ("d", 1)] {
        for number in 0..count {
            let name = format!("all/{directory}/{number}");
            write(&one, &name, &name);
        }
    }
    home.push(&one);
    let spawn = |options: &[&str]| {
        let mut command = home.command_in(&one, &["auto", "--idle", "10ms"]);
        let auto = Process::try_spawn(command.args(options)).unwrap();
        auto.wait_for("after changes");
        auto
    };
    let lose = |name: &str| {
        fs::rename(one.join("every").join(name), home.dir(name)).unwrap();
    };
    let mut auto = spawn(&[]);
    // Files with another name are not gone.
    fs::rename(one.join("all"), one.join("every")).unwrap();
    auto.wait_for("app@2");
    lose("a");
    auto.wait_for("app@3");
    lose("b");
    auto.wait_for("7 of 12 files are gone, more than 50 %");
    auto.signal("TERM");
    assert_eq!(auto.wait(), Some(1));
    assert_has(&home.exits(&one, &["status"], 1), "app@3");
    let mut auto = spawn(&["--max-delete", "60"]);
    auto.wait_for("app@4");
    lose("c");
    auto.wait_for("4 of 5 files are gone, more than 60 %");
    assert_eq!(home.push(&one), 5);
    auto.signal("TERM");
    assert_eq!(auto.wait(), Some(0));
}

#[test]
fn automatic_pushes_fail_if_the_workspace_vanishes_with_unpushed_files() {
    let home = Home::new();
    for (name, is_pushed, code) in [("one", false, 3), ("two", true, 0)] {
        let directory = home.open(name, name);
        write(&directory, "a", "a");
        home.push(&directory);
        let idle = if is_pushed { "10ms" } else { "5m" };
        let mut command = home.command_in(&directory, &["auto", "--idle", idle]);
        let mut auto = Process::try_spawn(&mut command).unwrap();
        auto.wait_for("after changes");
        write(&directory, "b", "b");
        if is_pushed {
            auto.wait_for(&format!("{name}@2"));
        }
        fs::rename(&directory, home.dir(&format!("moved-{name}"))).unwrap();
        let line = auto.wait_for("not a workspace any more");
        assert_eq!(line.contains("were not pushed"), !is_pushed, "{line}");
        assert_eq!(auto.wait(), Some(code));
    }
}

/// A storage of a server in the tree, for example, is on no other disk.
#[test]
fn what_no_snapshot_has_is_named_and_stays() {
    let home = Home::new();
    let one = home.open("app", "one");
    write(&one, "d/file", "1");
    write(&one, "d/.samovar/data", "precious");
    write(&one, ".samovar/data", "precious");
    write(&one, "d/.samovar-tmp-0123456789abcdef/x", "precious");
    write(&one, "e/.samovar-tmp-0123456789abcdef", "left over");
    for words in ["push", "status"] {
        let text = home.exits(&one, &[words], 0);
        assert_has(&text, "left out 2 reserved names: ");
        assert_has(&text, "d/.samovar");
    }
    let before = tree(&one);
    let text = home.exits(&one, &["close", "--delete"], 1);
    assert_has(&text, "2 paths that no snapshot contains");
    assert_eq!(tree(&one), before);
    let text = home.exits(&one, &["close", "--delete", "--discard"], 1);
    assert_has(&text, "3 paths stay, which no snapshot has");
    assert_eq!(read(&one, "d/.samovar/data"), "precious");
    assert_eq!(read(&one, ".samovar/data"), "precious");
    assert!(!one.join("d/file").exists() && !one.join("e").exists());
    let text = home.exits(&one, &["status"], 2);
    assert_has(&text, "is not in a workspace");
}

/// The states of all workspaces are in the home directory.
#[test]
fn closing_the_home_directory_keeps_the_states_of_other_workspaces() {
    let home = Home::new();
    let user = home.dir("user");
    fs::create_dir(&user).unwrap();
    let run = |words: &[&str], directory: &Path, code: i32| {
        let mut command = home.command_in(directory, words);
        command.env("XDG_STATE_HOME", user.join("state"));
        support_workspaces::exits(&mut command, code)
    };
    let other = home.dir("other");
    fs::create_dir(&other).unwrap();
    for (name, directory) in [("home", &user), ("app", &other)] {
        run(&["open", name, "."], directory, 0);
        write(directory, "a", "a");
        let text = run(&["push"], directory, 0);
        assert!(!text.contains(".samovar"), "{text}");
    }
    write(&other, "b", "unpushed");
    run(&["close", "--delete"], &user, 0);
    assert!(!user.join("a").exists());
    assert_has(&run(&["status"], &other, 1), "app@1");
}

/// Messages count what they name.
#[test]
fn a_merge_of_modes_says_so() {
    let home = Home::new();
    let one = home.open("app", "one");
    write(&one, "script", "#!/bin/sh\n");
    home.push(&one);
    let two = home.open("app", "two");
    fs::set_permissions(one.join("script"), fs::Permissions::from_mode(0o755)).unwrap();
    home.push(&one);
    assert_has(&home.run(&two, &["pull"]), "1 mode changed, 0 B received");
    fs::set_permissions(two.join("script"), fs::Permissions::from_mode(0o700)).unwrap();
    let text = home.run(&two, &["discard", "--yes"]);
    assert_has(&text, "discarded changes of 1 mode");
}
