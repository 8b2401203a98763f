//! Commands on a workspace in overlay mode that are killed lose nothing. What a pull has changed is
//! no change of this machine, whatever comes next, and kept changes are found.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "a test says what it has not tested")]

mod support;
mod support_git;
mod support_mount;
mod support_uploads;
mod support_workspaces;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use support_git::Git;
use support_mount::{can_mount, unmount};
use support_workspaces::{
    Home, assert_has, close_overlay, exits, kill_at, kill_at_each_step, tree, write,
};
use testkit::process::{finish, output};

/// A repository that is pushed from one machine, and mounted on another one.
struct Mounted {
    home: Home,
    one: Git,
    directory: PathBuf,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let paths = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        let own = paths.filter(|path| path.starts_with(self.home.site.dir().to_str().unwrap()));
        for path in own.collect::<Vec<_>>().into_iter().rev() {
            unmount(path.as_ref());
        }
    }
}

impl Mounted {
    /// Returns `None`, after printing the reason, if this machine has no overlays.
    fn new() -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let home = Home::new();
        let one = Git::init(home.dir("one"), &[]);
        let directory = home.dir("mounted");
        let mounted = Self {
            home,
            one,
            directory,
        };
        mounted.commit("first");
        mounted.home.open("app", "one");
        mounted.home.push(&mounted.one.dir);
        let opened = finish(&mut mounted.opening());
        if !opened.status.success() {
            let reason = String::from_utf8_lossy(&opened.stderr);
            println!("not tested: this machine cannot mount workspaces: {reason}");
            return None;
        }
        Some(mounted)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.home.command(arguments);
        command.env("SAMOVAR_CACHE_DIR", self.home.dir("cache"));
        command
    }

    /// Returns the command that mounts the workspace.
    fn opening(&self) -> Command {
        let mut open = self.command(&["open", "--mode", "overlay", "app"]);
        open.arg(&self.directory);
        open
    }

    /// Closes and deletes the workspace, which has no changes.
    #[track_caller]
    fn close(&self) {
        let mut close = self.command(&["close", "--delete"]);
        close.arg("--dir").arg(&self.directory);
        close_overlay(&mut close, &mut self.opening());
    }

    /// Runs a command on the mounted workspace that must exit with this code.
    #[track_caller]
    fn exits(&self, arguments: &[&str], code: i32) -> String {
        let mut command = self.command(arguments);
        exits(command.arg("--dir").arg(&self.directory), code)
    }

    /// Commits a change on the other machine.
    fn commit(&self, text: &str) {
        write(&self.one.dir, "a", text);
        self.one.run(&["add", "a"]);
        self.one.run(&["commit", "--quiet", "--message", text]);
    }

    /// Runs a command on the mounted workspace that is killed when it makes one of these system
    /// calls for the nth time. Returns its output. Returns `None` if this machine cannot do that.
    fn kill(&self, arguments: &[&str], calls: &str, count: u32) -> Option<String> {
        let mut command = support::bare("strace");
        command.args(["-f", "-o", "/dev/null", "-e"]);
        command.arg(format!("trace={calls}"));
        command.arg(format!("--inject={calls}:signal=SIGKILL:when={count}"));
        command.args([env!("CARGO_BIN_EXE_samovar"), "workspace"]);
        command.args(arguments).arg("--dir").arg(&self.directory);
        command.env("SAMOVAR_CACHE", self.home.server.url());
        command.env("SAMOVAR_TOKEN", &self.home.token);
        command.env("XDG_STATE_HOME", self.home.dir("state"));
        command.env("SAMOVAR_CACHE_DIR", self.home.dir("cache"));
        let Ok(killed) = command.output() else {
            println!("not tested: there is no strace");
            return None;
        };
        Some(String::from_utf8_lossy(&killed.stdout).into_owned())
    }
}

#[test]
fn a_killed_pull_is_completed_after_the_workspace_was_closed() {
    for (call, count) in [("renameat2", 2), ("unlinkat", 2), ("syncfs", 2)] {
        let Some(mounted) = Mounted::new() else {
            return;
        };
        let (home, one) = (&mounted.home, &mounted.one);
        write(&one.dir, "gone/x", "1");
        write(&one.dir, "f", "1");
        mounted.commit("second");
        home.push(&one.dir);
        mounted.exits(&["pull"], 0);
        write(&mounted.directory, "mine", "mine");
        // The index is only refreshed.
        Git::of(mounted.directory.clone()).run(&["status"]);
        fs::remove_dir_all(one.dir.join("gone")).unwrap();
        write(&one.dir, "f", "2");
        write(&one.dir, "new", "2");
        mounted.commit("third");
        home.push(&one.dir);
        if mounted.kill(&["pull"], call, count).is_none() {
            return;
        }
        fs::remove_file(one.dir.join("new")).unwrap();
        write(&one.dir, "f", "3");
        mounted.commit("fourth");
        home.push(&one.dir);
        let text = mounted.exits(&["close", "--discard"], 0);
        assert_has(&text, "the unpushed changes are kept");
        let kept = text.split('"').nth(3).unwrap();
        let run = ["run", "--continue", kept, "--", "true"];
        let text = exits(&mut mounted.command(&run), 0);
        assert!(!text.contains("conflict"), "{call} {count}: {text}");
        let mut expected = tree(&one.dir);
        expected.insert(b"mine".to_vec(), b"mine".to_vec());
        let copy = Git::of(home.dir("copy"));
        output(home.command(&["open", "app"]).arg(&copy.dir));
        assert_eq!(tree(&copy.dir), expected, "{call} {count}");
        copy.check();
    }
}

#[test]
fn changes_that_a_killed_closing_keeps_are_named() {
    for count in 1..=6 {
        let Some(mounted) = Mounted::new() else {
            return;
        };
        write(&mounted.directory, "mine", "mine");
        let close = ["close", "--discard"];
        let Some(mut text) = mounted.kill(&close, "unlink,unlinkat", count) else {
            return;
        };
        let mut again = mounted.command(&close);
        let again = finish(again.arg("--dir").arg(&mounted.directory));
        text += &String::from_utf8_lossy(&again.stdout);
        let named = text.split('"').find(|part| part.contains("/overlays/"));
        let named = named.map(|dir| PathBuf::from(dir).join("upper/mine"));
        assert!(named.is_some_and(|file| file.exists()), "{count}: {text}");
    }
}

/// The discarded changes are removed, too.
#[test]
fn a_deletion_that_was_killed_at_any_step_is_finished_by_the_next_close() {
    let Some(mounted) = Mounted::new() else {
        return;
    };
    mounted.home.run(&mounted.one.dir, &["close"]);
    kill_at_each_step(&mounted.home, &mounted.directory, &["--discard"], || {
        output(&mut mounted.opening());
        write(&mounted.directory, "new/file", "changed");
    });
}

/// What was interrupted is not mounted again.
#[test]
fn a_workspace_that_is_being_removed_is_refused_until_it_is_closed() {
    let Some(mounted) = Mounted::new() else {
        return;
    };
    write(&mounted.directory, "new", "changed");
    // The state is renamed first, when the workspace is registered, and then the layers.
    let close = ["close", "--discard", "--delete"];
    if mounted.kill(&close, "rename", 2).is_none() {
        return;
    }
    for words in [&["status"][..], &["push"], &["repair"]] {
        let text = mounted.exits(words, if words == ["status"] { 3 } else { 1 });
        assert_has(
            &text,
            "was interrupted while it removed the files: run it again",
        );
    }
    let text = output(&mut mounted.command(&["list"]));
    assert_has(&text, "was interrupted");
    assert_has(&exits(&mut mounted.opening(), 1), "was interrupted");
    mounted.exits(&close, 0);
    assert!(!mounted.directory.exists());
}

/// An `open` is killed while it writes the state. The next one makes a complete workspace, and
/// nothing is left of the first one.
#[test]
fn an_overlay_whose_opening_was_killed_is_opened_by_the_next_command() {
    for (call, count) in [("rename", 2), ("rename", 3), ("fsync", 3)] {
        let Some(mounted) = Mounted::new() else {
            return;
        };
        mounted.close();
        let mut open = mounted.opening();
        let Some(killed) = kill_at(&open, call, count) else {
            return;
        };
        assert!(!killed.status.success(), "{call} {count}");
        assert_has(&output(&mut open), "mounted app@1");
        write(&mounted.directory, "new", "mine");
        assert_has(&mounted.exits(&["push"], 0), "app@2");
        mounted.close();
        assert!(!mounted.directory.exists());
        let layers = fs::read_dir(mounted.home.dir("state/samovar/overlays")).unwrap();
        assert_eq!(layers.count(), 0, "{call} {count}");
    }
}
