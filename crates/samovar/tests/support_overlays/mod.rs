//! A private cache, and a user who runs commands in overlays.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stderr, reason = "a skipped test says why")]
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use testkit::process::{finish, output};

use crate::support;
use crate::support_users::as_user;
use crate::support_workspaces::{Home, tree, write};

/// A private cache, and a user who runs commands in overlays.
pub(crate) struct Overlays {
    pub(crate) home: Home,
    /// Directory of the user.
    pub(crate) dir: tempfile::TempDir,
    /// Whether the user is not root.
    is_unprivileged: bool,
}

impl Overlays {
    /// Returns `None`, after printing the reason, if this machine has no overlays.
    pub(crate) fn new() -> Option<Self> {
        Self::of(false)
    }

    /// The same for a user other than root. As root, the tests become such a user.
    pub(crate) fn unprivileged() -> Option<Self> {
        Self::of(true)
    }

    fn of(is_unprivileged: bool) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let is_unprivileged = is_unprivileged && rustix::process::geteuid().is_root();
        let overlays = Self {
            home: Home::new(),
            dir,
            is_unprivileged,
        };
        // What the kernel and the machine permit, without our program.
        let mut probe = overlays.shell();
        probe.args([
            "unshare",
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            "mkdir lower upper work tree && : <>/dev/fuse && \
             mount -t overlay overlay -o userxattr,lowerdir=lower,upperdir=upper,workdir=work tree",
        ]);
        let probed = finish(&mut probe);
        if !probed.status.success() {
            let reason = String::from_utf8_lossy(&probed.stderr).into_owned();
            eprintln!("skipped: this machine has no overlays for users: {reason}");
            return None;
        }
        Some(overlays)
    }

    /// Returns a command that runs the command that follows as the user, with `$SAMOVAR` in the
    /// environment.
    pub(crate) fn shell(&self) -> Command {
        self.shell_of(self.is_unprivileged)
    }

    fn shell_of(&self, is_unprivileged: bool) -> Command {
        let mut command;
        if is_unprivileged {
            command = as_user(self.dir.path());
        } else {
            command = support::bare("sh");
            command.env("SAMOVAR", env!("CARGO_BIN_EXE_samovar"));
            command.args(["-c", "exec \"$@\"", "sh"]);
            command.current_dir(self.dir.path()).env_remove("HOME");
        }
        for (name, directory) in [
            ("SAMOVAR_STATE_DIR", "state"),
            ("SAMOVAR_CACHE_DIR", "cache"),
        ] {
            command.env(name, self.dir.path().join(directory));
        }
        command.env("SAMOVAR_CACHE", self.home.server.url());
        command.env("SAMOVAR_TOKEN", &self.home.token);
        command
    }

    /// Returns `samovar workspace run` with these arguments, which runs a script.
    pub(crate) fn run(&self, arguments: &[&str], script: &str) -> Command {
        run_in(self.shell(), arguments, script)
    }

    /// Returns the same for the user who runs the tests.
    pub(crate) fn run_as_root(&self, arguments: &[&str], script: &str) -> Command {
        run_in(self.shell_of(false), arguments, script)
    }

    /// Pushes a tree with these files.
    pub(crate) fn push(&self, files: &[(&str, &str)]) {
        let workspace = self.home.open("app", "origin");
        for (name, content) in files {
            write(&workspace, name, content);
        }
        self.home.push(&workspace);
    }

    /// Returns the files of the newest generation.
    pub(crate) fn pulled(&self) -> std::collections::BTreeMap<Vec<u8>, Vec<u8>> {
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("copy");
        output(self.home.command(&["open", "app"]).arg(&copy));
        tree(&copy)
    }

    /// Returns the directories with the changes of commands.
    pub(crate) fn kept(&self) -> Vec<PathBuf> {
        let runs = fs::read_dir(self.dir.path().join("state/runs"));
        let runs = runs.into_iter().flatten();
        runs.map(|run| run.unwrap().path()).collect()
    }

    /// Asserts that no mount and no changes are left.
    #[track_caller]
    pub(crate) fn assert_nothing_left(&self) {
        assert_eq!(self.kept(), [] as [PathBuf; 0]);
        self.assert_nothing_mounted();
    }

    #[track_caller]
    pub(crate) fn assert_nothing_mounted(&self) {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(
            !mounts.contains(self.dir.path().to_str().unwrap()),
            "{mounts}"
        );
    }
}

fn run_in(mut shell: Command, arguments: &[&str], script: &str) -> Command {
    shell.args(["sh", "-c", "exec \"$SAMOVAR\" workspace run \"$@\"", "sh"]);
    shell.args(arguments).args(["--", "sh", "-c", script]);
    shell
}

pub(crate) const FILES: &[(&str, &str)] = &[
    ("package.json", "{}"),
    ("keep/same", "same"),
    ("keep/edited", "old"),
    ("gone/a", "a"),
    ("again/old", "old"),
    ("moved/deep/file", "moved"),
    ("file-to-directory", "x"),
    ("directory-to-file/x", "x"),
    ("linked", "linked"),
];
