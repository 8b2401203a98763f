//! Unusual trees are pushed and pulled like all others: empty ones, those with read-only
//! directories of a user who is not root, those with bind mounts or with links to directories, and
//! those that programs change meanwhile.
#![expect(clippy::print_stdout, reason = "a test says what it has not tested")]

mod support;
mod support_uploads;
mod support_users;
mod support_workspaces;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::mount::{UnmountFlags, mount_bind, unmount};
use support_users::{as_user, has_users};
use support_workspaces::{Home, assert_has, exits, read, tree, write};
use testkit::process::{finish, output};

/// Snapshots have no sockets, so another machine may have a file of that name.
#[test]
fn a_pull_names_a_fifo_that_is_in_the_way() {
    let home = Home::new();
    let one = home.open("app", "one");
    write(&one, "a", "a");
    home.push(&one);
    let two = home.open("app", "two");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        one.join("p"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    write(&two, "p", "file");
    write(&two, "q/file", "file");
    home.push(&two);
    let text = home.exits(&one, &["pull"], 1);
    assert_has(&text, "p is a socket, a FIFO or a device on this machine");
    assert!(!one.join("q").exists());
    fs::rename(one.join("p"), one.join("fifo")).unwrap();
    home.run(&one, &["pull"]);
    assert_eq!(
        (read(&one, "p"), read(&one, "q/file")),
        ("file".into(), "file".into())
    );
}

#[test]
fn an_empty_tree_is_a_generation() {
    let home = Home::new();
    let one = home.open("app", "one");
    assert_eq!(home.push(&one), 1);
    home.assert_clean(&one);
    let two = home.open("app", "two");
    assert_eq!(tree(&two).len(), 0);
    home.assert_clean(&two);
    write(&two, "a/b", "");
    assert_eq!(home.push(&two), 2);
    home.run(&one, &["pull"]);
    assert_eq!(tree(&one), tree(&two));
    fs::remove_dir_all(two.join("a")).unwrap();
    assert_eq!(home.push(&two), 3);
    home.run(&one, &["pull"]);
    assert_eq!(tree(&one).len(), 0);
    // Without a workspace.
    let samovar = |arguments: &[&str]| {
        let mut command = support::samovar();
        command.args(arguments).current_dir(home.site.dir());
        command.env("SAMOVAR_CACHE", home.server.url());
        output(command.env("SAMOVAR_TOKEN", &home.token))
    };
    fs::create_dir(home.dir("empty")).unwrap();
    samovar(&["push", "empty", "plain"]);
    samovar(&["pull", "plain", "copy"]);
    assert_eq!(fs::read_dir(home.dir("copy")).unwrap().count(), 0);
}

/// `status` and `diff` tell errors from unpushed changes by their exit codes.
#[test]
fn a_tree_that_is_too_deep_is_not_an_unpushed_change() {
    let home = Home::new();
    let one = home.open("app", "one");
    let directories = |count: usize| vec!["d"; count].join("/");
    write(&one, &format!("{}/file", directories(62)), "");
    home.exits(&one, &["status", "--offline"], 1);
    home.exits(&one, &["diff"], 1);
    assert_eq!(home.push(&one), 1);
    write(&one, &format!("{}/file", directories(64)), "");
    for (command, code) in [
        (vec!["status", "--offline"], 3),
        (vec!["diff"], 3),
        (vec!["push"], 1),
    ] {
        assert_has(&home.exits(&one, &command, code), "64 names");
    }
}

/// Root may write to read-only directories, other users may not.
#[test]
fn read_only_directories_are_merged_without_privileges() {
    if !has_users() {
        return;
    }
    let home = Home::new();
    let dir = tempfile::tempdir().unwrap();
    let user = |script: &str| {
        let mut command = as_user(dir.path());
        command.args(["sh", "-ec", script]);
        command.env("SAMOVAR_CACHE", home.server.url());
        command.env("SAMOVAR_TOKEN", &home.token);
        command.env("XDG_STATE_HOME", dir.path().join("state"));
        output(&mut command)
    };
    let one = home.open("app", "one");
    for name in ["locked/deep/old", "locked/deep/changed", "locked/gone"] {
        write(&one, name, name);
    }
    // The scripts of root change the permissions for a moment.
    let root = |script: &str| {
        let script =
            format!("chmod 755 locked locked/deep; {script}; chmod 555 locked/deep locked");
        let mut shell = std::process::Command::new("sh");
        output(shell.args(["-ec", &script]).current_dir(&one));
        home.push(&one);
    };
    root("true");
    user("\"$SAMOVAR\" ws open app two; [ ! -w two/locked/deep ]");
    root(
        "echo new >locked/deep/new; echo more >>locked/deep/changed; \
         rm locked/gone locked/deep/old",
    );
    user("cd two; \"$SAMOVAR\" ws pull");
    let two = dir.path().join("two");
    assert_eq!(tree(&two), tree(&one));
    let modes = "stat -c '%a' two/locked two/locked/deep";
    assert_eq!(user(modes), "555\n555\n");
    // All of it can be brought back, and deleted.
    user("cd two; \"$SAMOVAR\" ws restore @1");
    assert_eq!(user(modes), "555\n555\n");
    assert_eq!(read(&two, "locked/gone"), "locked/gone");
    user("cd two; \"$SAMOVAR\" ws close --delete --discard");
    assert!(!two.exists());
}

/// Ends the thread that writes, also if an assertion fails.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Under any scheduling, a push publishes whole files, each of which repeats one byte, or nothing.
#[test]
fn a_push_of_a_tree_that_changes_publishes_whole_files_or_nothing() {
    let home = Home::new();
    let one = home.open("app", "one");
    write(&one, "quiet", "quiet");
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = EndOnDrop(&has_ended);
        scope.spawn(|| {
            for number in (0_u8..=255).cycle() {
                // One file grows and shrinks, and another one vanishes.
                let content = vec![number; usize::from(number) * 7919 % 300_000];
                write(&one, "passing", &content);
                write(&one, "file", content);
                fs::remove_file(one.join("passing")).unwrap();
                if has_ended.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        for _ in 0..4 {
            let newest = || {
                let found = finish(&mut home.command_in(&one, &["log"]));
                String::from_utf8(found.stdout).unwrap().lines().count()
            };
            let before = newest();
            let pushed = finish(&mut home.command_in(&one, &["push"]));
            let text = String::from_utf8_lossy(&pushed.stderr).into_owned();
            match pushed.status.code() {
                Some(0) => {
                    let copy = home.open("app", "copy");
                    for (name, content) in tree(&copy) {
                        let is_whole = content.windows(2).all(|bytes| bytes[0] == bytes[1]);
                        assert!(is_whole || name == b"quiet", "{name:?}");
                    }
                    fs::remove_dir_all(copy).unwrap();
                }
                Some(1) => {
                    assert_has(&text, "changes while it is read");
                    assert_eq!(newest(), before, "{text}");
                }
                code => panic!("{code:?}: {text}"),
            }
        }
    });
    home.push(&one);
    home.assert_clean(&one);
}

/// A bind mount, which is unmounted on drop.
struct BindMount(PathBuf);

impl BindMount {
    /// Mounts a directory on another one. Returns `None`, after printing the reason, if this
    /// machine does not permit it.
    fn new(from: &Path, on: PathBuf) -> Option<Self> {
        match mount_bind(from, &on) {
            Ok(()) => Some(Self(on)),
            Err(error) => {
                println!("not tested: no directory can be mounted here: {error}");
                None
            }
        }
    }
}

impl Drop for BindMount {
    fn drop(&mut self) {
        unmount(&self.0, UnmountFlags::DETACH).ok();
    }
}

/// A bind mount has the device number of its source, here that of the workspace.
#[test]
fn files_behind_a_bind_mount_are_left_out_and_stay() {
    let home = Home::new();
    let one = home.open("app", "one");
    write(&one, "kept", "kept");
    write(&one, "n/sub/file", "same");
    home.push(&one);
    let two = home.open("app", "two");
    let elsewhere = home.dir("elsewhere");
    write(&elsewhere, "sub/file", "same");
    let Some(mount) = BindMount::new(&elsewhere, one.join("n")) else {
        return;
    };
    let assert_stays = || assert_eq!(read(&elsewhere, "sub/file"), "same");
    // Another machine has removed the directory.
    fs::remove_dir_all(two.join("n")).unwrap();
    home.push(&two);
    home.run(&one, &["pull"]);
    assert_stays();
    write(&one, "kept", "changed");
    home.run(&one, &["discard", "--yes"]);
    assert_eq!(read(&one, "kept"), "kept");
    assert_stays();
    // Published neither from the workspace nor without one.
    let left_out = "left out 1 mounted file system: \"n\"";
    write(&one, "kept", "changed");
    assert_has(&home.exits(&one, &["push"], 0), left_out);
    home.run(&two, &["pull"]);
    assert_eq!(tree(&two).keys().collect::<Vec<_>>(), [b"kept"]);
    let mut push = support::samovar();
    push.args(["push", "one", "plain"])
        .current_dir(home.site.dir());
    push.env("SAMOVAR_CACHE", home.server.url());
    push.env("SAMOVAR_TOKEN", &home.token);
    assert_has(&exits(&mut push, 0), left_out);
    let text = home.exits(&one, &["close", "--delete", "--discard"], 1);
    assert_has(&text, "a file system is mounted in");
    assert_stays();
    home.assert_clean(&one);
    drop(mount);
    home.run(&one, &["close", "--delete", "--discard"]);
    assert!(!one.exists());
    assert_stays();
}

/// A user has moved a directory to another disk, and left a link to it.
#[test]
fn a_pull_changes_nothing_behind_a_link_to_a_directory() {
    let home = Home::new();
    let one = home.open("app", "one");
    for name in ["a/changed", "a/removed", "a/touched"] {
        write(&one, name, name);
    }
    home.push(&one);
    let two = home.open("app", "two");
    let outside = home.dir("outside");
    fs::rename(two.join("a"), &outside).unwrap();
    symlink(&outside, two.join("a")).unwrap();
    let before = tree(&outside);
    write(&one, "a/changed", "changed");
    write(&one, "a/new", "new");
    fs::remove_file(one.join("a/removed")).unwrap();
    home.push(&one);
    let text = home.exits(&two, &["pull"], 1);
    assert_has(&text, "conflict: a stays as it is");
    assert_eq!(fs::read_link(two.join("a")).unwrap(), outside);
    assert_eq!(tree(&outside), before);
    home.exits(&two, &["restore", "2"], 1);
    assert_eq!(tree(&outside), before);
    home.run(&two, &["restore", "2", "--force"]);
    assert_eq!(read(&two, "a/changed"), "changed");
    assert_eq!(tree(&outside), before);
}
