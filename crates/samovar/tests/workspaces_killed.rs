//! Whenever a push or a pull is killed, or fails, no unpushed file is lost, no generation is half
//! published, and the next command completes the work.

mod support;
mod support_git;
mod support_uploads;
mod support_users;
mod support_workspaces;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use support_git::{Git, conflict_copies};
use support_users::{as_user, has_users};
use support_workspaces::{Home, assert_has, exits, read, tree, write};
use testkit::process::{Process, output};

/// Returns the number of kills in each test. The environment variable `SAMOVAR_KILLS` can raise it.
fn kill_count() -> u32 {
    let number = std::env::var("SAMOVAR_KILLS").ok();
    number.map_or(8, |text| text.parse().expect("a number"))
}

/// Writes files that depend on `round`.
fn change(directory: &std::path::Path, round: u32) {
    for number in 0..40 {
        let name = format!("d{}/f{number}", number % 5);
        write(
            directory,
            &name,
            format!("{number} {}", round * u32::from(number % 3 == 0)),
        );
    }
    write(
        directory,
        &format!("new/{round}"),
        vec![7; 300_000 + round as usize],
    );
}

/// Runs a command, and kills it after this time. The moment of the kill need not be exact.
fn kill_after(command: &mut Command, time: Duration) {
    let child = command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = child.spawn().expect("starts");
    thread::sleep(time);
    child.kill().expect("is killed");
    child.wait().expect("ends");
}

#[test]
fn a_killed_push_publishes_all_or_nothing() {
    let kill_count = kill_count();
    let home = Home::new();
    let one = home.open("app", "one");
    change(&one, 0);
    let started_at = Instant::now();
    home.push(&one);
    let time = started_at.elapsed();
    let other = home.open("app", "other");
    for round in 1..=kill_count {
        change(&one, round);
        let before = tree(&one);
        let mut command = home.command_in(&one, &["push"]);
        kill_after(&mut command, time * round / kill_count);
        assert_eq!(tree(&one), before);
        home.run(&other, &["pull"]);
        if read(&other, "d0/f0") == read(&one, "d0/f0") {
            assert_eq!(tree(&other), before);
        }
        home.push(&one);
        home.assert_clean(&one);
        home.run(&other, &["pull"]);
        assert_eq!(tree(&other), before);
    }
}

#[test]
fn a_killed_pull_is_completed_by_the_next_one() {
    let kill_count = kill_count();
    let home = Home::new();
    let one = home.open("app", "one");
    change(&one, 0);
    home.push(&one);
    let other = home.open("app", "other");
    write(&other, "unpushed", "mine");
    change(&one, 1);
    home.push(&one);
    let started_at = Instant::now();
    home.run(&other, &["pull"]);
    let time = started_at.elapsed();
    for round in 2..=kill_count {
        change(&one, round);
        home.push(&one);
        // A change that the pull must keep.
        write(&other, "d1/f1", format!("mine {round}"));
        let mut command = home.command_in(&other, &["pull"]);
        kill_after(&mut command, time * round / kill_count);
        assert_eq!(read(&other, "unpushed"), "mine");
        assert_eq!(read(&other, "d1/f1"), format!("mine {round}"));
        home.run(&other, &["pull"]);
        let mut expected = tree(&one);
        expected.insert(b"unpushed".to_vec(), b"mine".to_vec());
        expected.insert(b"d1/f1".to_vec(), format!("mine {round}").into_bytes());
        assert_eq!(tree(&other), expected);
    }
}

#[test]
fn a_pull_reports_the_conflicts_of_a_killed_one() {
    let home = Home::new();
    let one = home.open("app", "one");
    write(&one, "1/9", "base");
    home.push(&one);
    let other = home.open("app", "other");
    // The state of a pull that is killed after it has made all changes of files.
    let state = home.state(&other);
    let before = tree(&state);
    write(&one, "1/9", "theirs");
    write(&one, "added", "added");
    home.push(&one);
    write(&other, "1/9", "ours");
    let line = "conflict: 1/9 stays as it is";
    assert_has(&home.exits(&other, &["pull"], 1), line);
    let files = tree(&other);
    fs::remove_dir_all(&state).unwrap();
    for (name, content) in before {
        write(&state, std::str::from_utf8(&name).unwrap(), content);
    }
    let text = home.exits(&other, &["pull"], 1);
    assert_has(&text, line);
    assert_has(&text, "is stored as 1/9.conflict-");
    assert_eq!(tree(&other), files);
    assert_has(&home.run(&other, &["pull"]), "is the newest generation");
}

#[test]
fn a_killed_opening_is_completed() {
    let home = Home::new();
    let one = home.open("app", "one");
    change(&one, 0);
    home.push(&one);
    for round in 0..5 {
        let directory = home.dir(&format!("opened-{round}"));
        let mut command = home.command(&["open", "app"]);
        command.arg(&directory);
        kill_after(&mut command, Duration::from_millis(25) * round);
        home.open("app", &format!("opened-{round}"));
        assert_eq!(tree(&directory), tree(&one));
        home.assert_clean(&directory);
    }
}

#[test]
fn refused_pushes_lose_nothing() {
    let home = Home::new();
    let one = home.open("app", "one");
    write(&one, "a", "a");
    home.push(&one);
    home.site
        .token(&["--rights", "read,push,pin", "--name", "short"]);
    write(&one, "b", "b");
    let push = |token: &str| {
        let mut command = home.command_in(&one, &["push"]);
        command.env("SAMOVAR_TOKEN", token);
        command
    };
    let read_only = home.site.token(&["--rights", "read", "--name", "reader"]);
    let text = exits(&mut push(&read_only), 1);
    assert_has(&text, "403");
    home.site.revoke("tests");
    let text = exits(&mut push(&home.token), 1);
    assert_has(&text, "was revoked");
    assert_has(&home.exits(&one, &["status", "--offline"], 1), "1 added");
    let other = home
        .site
        .token(&["--rights", "read,push,pin", "--name", "other"]);
    exits(&mut push(&other), 0);
    home.assert_clean(&one);
}

#[test]
fn one_command_at_a_time_changes_a_workspace() {
    let home = Home::new();
    let one = home.open("app", "one");
    write(&one, "a", "a");
    let lock = fs::File::options()
        .read(true)
        .write(true)
        .open(home.state(&one).join("lock"))
        .unwrap();
    lock.lock().unwrap();
    fs::write(home.state(&one).join("lock"), "4711\n").unwrap();
    let text = home.exits(&one, &["push"], 3);
    assert_has(&text, "another command changes");
    assert_has(&text, "4711");
    home.exits(&one, &["status"], 1);
    drop(lock);
    home.push(&one);
}

#[test]
fn automatic_pushes_end_when_the_workspace_is_closed() {
    for options in [&["close"][..], &["close", "--delete"]] {
        let home = Home::new();
        let one = home.open("app", "one");
        write(&one, "a", "a");
        let mut command = home.command_in(&one, &["auto", "--idle", "10ms"]);
        let mut auto = Process::spawn_for_stdout(&mut command);
        auto.wait_for("app@1");
        testkit::eventually("the workspace is closed", || {
            let mut close = home.command_in(&one, options);
            close.output().is_ok_and(|ended| ended.status.success())
        });
        auto.wait_for("was closed: stopping");
        assert_eq!(auto.wait(), Some(0));
    }
}

#[test]
fn changes_are_pushed_when_the_tree_is_quiet() {
    let home = Home::new();
    let one = home.open("app", "one");
    write(&one, "a", "a");
    let mut command = home.command_in(&one, &["auto", "--idle", "10ms"]);
    let mut auto = Process::spawn_for_stdout(&mut command);
    auto.wait_for("app@1");
    let other = home.open("app", "other");
    write(&other, "b", "b");
    home.push(&other);
    write(&one, "c", "c");
    // The push is refused until a pull.
    testkit::eventually("the push is repeated after a pull", || {
        let text = home.command_in(&one, &["pull"]).output().unwrap();
        text.status.success() && auto.count("app@3") > 0
    });
    write(&one, "last", "last");
    auto.signal("TERM");
    assert_eq!(auto.wait(), Some(0));
    home.assert_clean(&one);
    home.run(&other, &["pull"]);
    assert_eq!(tree(&other), tree(&one));
}

/// Without the server, the last push takes minutes. A second signal does not wait for it.
#[test]
fn a_second_signal_ends_automatic_pushes_at_once() {
    let mut home = Home::new();
    let one = home.open("app", "one");
    write(&one, "a", "a");
    let mut command = home.command_in(&one, &["auto", "--idle", "10ms"]);
    let mut auto = Process::spawn_for_stdout(&mut command);
    auto.wait_for("app@1");
    home.server.process.signal("KILL");
    home.server.process.wait();
    write(&one, "b", "b");
    let started_at = Instant::now();
    auto.signal("TERM");
    // Right after the first one, a signal has no effect.
    testkit::eventually("the process ends", || {
        let is_alive = auto.is_alive();
        if is_alive {
            auto.signal("INT");
        }
        !is_alive
    });
    assert_eq!(auto.wait(), Some(130));
    assert!(started_at.elapsed() > Duration::from_secs(1));
    assert_eq!(read(&one, "b"), "b");
}

/// Returns `pull`, which is killed when it makes a system call for the nth time.
fn pull_killed_at(home: &Home, directory: &Path, call: &str, count: u32) -> Command {
    let mut command = support::bare("strace");
    command.args(["-f", "-o", "/dev/null", "-e"]);
    command.arg(format!("trace={call}"));
    let inject = format!("--inject={call}:signal=SIGKILL:when={count}");
    command.args([&inject, env!("CARGO_BIN_EXE_samovar"), "workspace", "pull"]);
    command.env("SAMOVAR_CACHE", home.server.url());
    command.env("SAMOVAR_TOKEN", &home.token);
    command.env("XDG_STATE_HOME", home.dir("state"));
    command.current_dir(directory);
    command
}

/// The user of the second machine changes one file. Everything else comes from the first one.
#[test]
fn what_a_killed_pull_has_changed_does_not_count_when_another_one_follows() {
    let home = Home::new();
    let one = Git::init(home.dir("one"), &[]);
    let commit = |text: &str| {
        write(&one.dir, "a", text);
        one.run(&["add", "a"]);
        one.run(&["commit", "--quiet", "--message", text]);
    };
    commit("first");
    for file in ["f", "g", "gone/x", "mine"] {
        write(&one.dir, file, "1");
    }
    home.open("app", "one");
    home.push(&one.dir);
    let moments = [
        ("renameat2", 1),
        ("renameat2", 4),
        ("renameat,renameat2", 7),
        ("unlinkat", 2),
        ("mkdirat", 2),
        ("syncfs", 2),
    ];
    let names = moments.map(|(call, count)| format!("{call}-{count}"));
    let others = names.map(|name| {
        let git = Git::of(home.open("app", &name));
        write(&git.dir, "mine", "of two");
        git
    });
    let generation = |text: &str| {
        commit(text);
        write(&one.dir, "f", text);
        write(&one.dir, "new/y", text);
        write(&one.dir, text, text);
        home.push(&one.dir);
    };
    generation("second");
    fs::remove_dir_all(one.dir.join("gone")).expect("is removed");
    home.push(&one.dir);
    let kill_all = |skips_rest: bool| {
        for ((call, count), other) in moments.into_iter().zip(&others) {
            let mut killed = pull_killed_at(&home, &other.dir, call, count);
            let Ok(mut killed) = Process::try_spawn(&mut killed) else {
                println!("not tested: there is no strace");
                return false;
            };
            killed.wait();
            if skips_rest {
                break;
            }
        }
        true
    };
    if !kill_all(false) {
        return;
    }
    fs::remove_file(one.dir.join("second")).expect("is removed");
    generation("third");
    // One of them is killed twice.
    kill_all(true);
    fs::remove_dir_all(one.dir.join("new")).expect("is removed");
    fs::remove_file(one.dir.join("third")).expect("is removed");
    commit("fourth");
    home.push(&one.dir);
    write(&one.dir, "mine", "of two");
    for (moment, other) in moments.iter().zip(&others) {
        let text = home.run(&other.dir, &["pull"]);
        assert!(!text.contains("conflict"), "{moment:?}: {text}");
        let text = home.exits(&other.dir, &["diff"], 1);
        assert_has(&text, "modified mine\n1 modified");
        assert_eq!(tree(&other.dir), tree(&one.dir), "{moment:?}");
        other.check();
    }
}

#[test]
fn a_killed_pull_leaves_no_part_of_a_repository_that_it_keeps() {
    let home = Home::new();
    let one = Git::init(home.dir("one"), &[]);
    let commit = |git: &Git, text: &str| {
        write(&git.dir, "a", text);
        git.run(&["add", "a"]);
        git.run(&["commit", "--quiet", "--message", text]);
    };
    commit(&one, "base");
    home.open("app", "one");
    home.push(&one.dir);
    let moments = [
        ("utimensat", 3),
        ("utimensat", 20),
        ("mkdirat", 2),
        ("syncfs", 1),
        ("syncfs", 2),
    ];
    let others = moments.map(|(call, count)| {
        let git = Git::of(home.open("app", &format!("{call}-{count}")));
        commit(&git, "ours");
        git
    });
    commit(&one, "theirs");
    home.push(&one.dir);
    for ((call, count), other) in moments.into_iter().zip(others) {
        let mut killed = pull_killed_at(&home, &other.dir, call, count);
        let Ok(mut killed) = Process::try_spawn(&mut killed) else {
            println!("not tested: there is no strace");
            return;
        };
        killed.wait();
        for copy in conflict_copies(&other.dir) {
            Git::of_repository(&copy).check();
        }
        let code = home.exits_with(&other.dir, &["pull"]);
        assert!(matches!(code, 0 | 1), "{code}");
        let copies = conflict_copies(&other.dir);
        assert_eq!(copies.len(), 1, "{call} {count}: {copies:?}");
        let copy = Git::of_repository(&copies[0]);
        copy.check();
        assert_eq!(copy.run(&["log", "-1", "--format=%s"]), "theirs");
        assert_eq!(other.run(&["log", "-1", "--format=%s"]), "ours");
        other.check();
    }
}

/// Root needs no permission to change a read-only directory.
#[test]
fn a_killed_pull_leaves_the_modes_of_directories() {
    if !has_users() {
        return;
    }
    let home = Home::new();
    let one = home.open("app", "one");
    let dir = tempfile::tempdir().expect("a directory");
    let read_only = || fs::Permissions::from_mode(0o555);
    let change = |round: u32| {
        write(&one, "ro/a", format!("{round}"));
        write(&one, &format!("ro/{round}"), "new");
        fs::remove_file(one.join(format!("ro/{}", round.wrapping_sub(1)))).unwrap_or_default();
        write(&one, &format!("new{round}/sub/file"), "new");
        for name in ["ro".to_owned(), format!("new{round}")] {
            fs::set_permissions(one.join(name), read_only()).expect("is changed");
        }
        home.push(&one);
    };
    change(0);
    let user = |script: &str| {
        let mut command = as_user(dir.path());
        command.args(["sh", "-ec", script]);
        command.env("SAMOVAR_CACHE", home.server.url());
        command.env("SAMOVAR_TOKEN", &home.token);
        command.env("XDG_STATE_HOME", dir.path().join("state"));
        output(&mut command)
    };
    user("\"$SAMOVAR\" ws open app w");
    for round in 1..=6 {
        change(round);
        let call = ["renameat2", "unlinkat", "mkdirat"][round as usize % 3];
        let count = round.div_ceil(3);
        let text = user(&format!(
            "cd w; strace -f -o /dev/null -e trace={call} \
             --inject={call}:signal=SIGKILL:when={count} \"$SAMOVAR\" ws pull >out 2>&1 || true; \
             rm out; \"$SAMOVAR\" ws pull; \"$SAMOVAR\" ws diff; stat -c %a ro new{round}"
        ));
        assert!(text.ends_with("555\n555\n"), "{call} {count}: {text}");
        assert!(!text.contains("mode "), "{call} {count}: {text}");
    }
}
