//! A private cache, and workstations with workspaces of its refs.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it has not tested"
)]
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use testkit::eventually;
use testkit::process::{finish, output};

use crate::support::{bare, samovar};
use crate::support_uploads::{Running, Site};

/// A private cache, and a token with all rights.
pub(crate) struct Home {
    pub(crate) site: Site,
    pub(crate) server: Running,
    pub(crate) token: String,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self::with("")
    }

    /// Starts a server with these options besides.
    pub(crate) fn with(options: &str) -> Self {
        let site = Site::new();
        // Nobody can read the cache without a token.
        site.configure_empty(&format!("access.networks = [\"192.0.2.0/24\"]\n{options}"));
        let server = site.start();
        let token = site.token(&["--rights", "read,push,pin"]);
        Self {
            site,
            server,
            token,
        }
    }

    /// Returns the path of a directory for tests.
    pub(crate) fn dir(&self, name: &str) -> PathBuf {
        self.site.dir().join(name)
    }

    /// Returns `samovar workspace` with these arguments and the token.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = samovar();
        command.arg("workspace").args(arguments);
        command.env("SAMOVAR_CACHE", self.server.url());
        command.env("SAMOVAR_TOKEN", &self.token);
        command.env("XDG_STATE_HOME", self.dir("state"));
        command
    }

    /// Returns the command for the workspace in a directory.
    pub(crate) fn command_in(&self, directory: &Path, arguments: &[&str]) -> Command {
        let mut command = self.command(arguments);
        command.current_dir(directory);
        command
    }

    /// Opens a workspace. Returns its directory.
    #[track_caller]
    pub(crate) fn open(&self, name: &str, directory: &str) -> PathBuf {
        let directory = self.dir(directory);
        output(self.command(&["open", name]).arg(&directory));
        directory
    }

    /// Runs a command that must succeed in a workspace. Returns its output.
    #[track_caller]
    pub(crate) fn run(&self, directory: &Path, arguments: &[&str]) -> String {
        output(&mut self.command_in(directory, arguments))
    }

    /// Runs a command that must exit with this code. Returns standard output and standard error.
    #[track_caller]
    pub(crate) fn exits(&self, directory: &Path, arguments: &[&str], code: i32) -> String {
        exits(&mut self.command_in(directory, arguments), code)
    }

    /// Runs a command in a workspace. Returns its exit code.
    #[track_caller]
    pub(crate) fn exits_with(&self, directory: &Path, arguments: &[&str]) -> i32 {
        let found = finish(&mut self.command_in(directory, arguments));
        found.status.code().unwrap()
    }

    /// Runs `push` in a workspace. Returns the generation.
    #[track_caller]
    pub(crate) fn push(&self, directory: &Path) -> u64 {
        let text = self.run(directory, &["push", "--json"]);
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        report["generation"].as_u64().unwrap()
    }

    /// Removes a ref from the server.
    #[track_caller]
    pub(crate) fn remove_ref(&self, name: &str) {
        let mut command = samovar();
        command.args(["ref", "remove", name]);
        command.env("SAMOVAR_CACHE", self.server.url());
        output(command.env("SAMOVAR_TOKEN", &self.token));
    }

    /// Returns the directory with the state of a workspace.
    #[track_caller]
    pub(crate) fn state(&self, directory: &Path) -> PathBuf {
        state_in(&self.dir("state"), directory)
    }

    /// Asserts that a workspace has no unpushed changes.
    #[track_caller]
    pub(crate) fn assert_clean(&self, directory: &Path) {
        self.exits(directory, &["status", "--offline"], 0);
    }
}

/// Returns the directory with the state of a workspace. `home`: the value of `XDG_STATE_HOME`.
#[track_caller]
pub(crate) fn state_in(home: &Path, directory: &Path) -> PathBuf {
    let directory = directory.canonicalize().unwrap();
    let line = format!("\npath {}\n", directory.display());
    let states = fs::read_dir(home.join("samovar/.samovar")).unwrap();
    let mut states = states.map(|state| state.unwrap().path());
    let is_its = |state: &PathBuf| {
        let text = fs::read_to_string(state.join("directory"));
        text.is_ok_and(|text| text.contains(&line))
    };
    states.find(is_its).unwrap()
}

/// Runs a command that must exit with this code. Returns standard output and standard error.
#[track_caller]
pub(crate) fn exits(command: &mut Command, code: i32) -> String {
    let found = finish(command);
    let text = String::from_utf8_lossy(&[found.stdout, found.stderr].concat()).into_owned();
    assert_eq!(found.status.code(), Some(code), "{text}");
    text
}

/// Closes an overlay without changes by the command `close`. While another mount namespace of the
/// machine, such as that of another test, has the overlay, `close` keeps its layers: then removes
/// them, and opens the workspace again by the command `open`.
#[track_caller]
pub(crate) fn close_overlay(close: &mut Command, open: &mut Command) {
    eventually("no other mount namespace has the overlay", || {
        let text = exits(close, 0);
        let is_closed = !text.contains("still mounted in another mount namespace");
        if !is_closed {
            let kept = text.split('"').find(|part| part.contains("/overlays/"));
            fs::remove_dir_all(kept.unwrap()).unwrap();
            output(open);
        }
        is_closed
    });
}

/// Runs a command that is killed when it makes this system call for the nth time. Returns `None`,
/// after printing the reason, if this machine cannot do that.
pub(crate) fn kill_at(command: &Command, call: &str, count: u32) -> Option<Output> {
    let mut killed = bare("strace");
    killed.args(["-f", "-o", "/dev/null", "-e", &format!("trace={call}")]);
    killed.arg(format!("--inject={call}:signal=SIGKILL:when={count}"));
    killed.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        killed.env(name, value.unwrap_or_default());
    }
    let killed = killed.output();
    if killed.is_err() {
        println!("not tested: there is no strace");
    }
    killed.ok()
}

/// Kills `close --delete` of a new workspace at its first, second … use of each system call that
/// removes or renames a file, the last one included. After the next `close`, and a `list`, nothing
/// is left. `opens`: opens the workspace again, and changes it.
pub(crate) fn kill_at_each_step(home: &Home, root: &Path, options: &[&str], opens: impl Fn()) {
    let mut killed_count = 0;
    for call in ["unlink", "unlinkat", "rmdir", "rename"] {
        for count in 1.. {
            assert!(count < 100, "a small workspace is deleted in fewer steps");
            opens();
            let close = [&["close", "--delete"], options].concat();
            let mut close = home.command(&close);
            close.arg("--dir").arg(root);
            let Some(killed) = kill_at(&close, call, count) else {
                return;
            };
            let again = finish(&mut close);
            let text = String::from_utf8_lossy(&again.stderr).into_owned();
            let step = format!("{call} {count}: {text}");
            assert!(!root.exists(), "{step}");
            assert_eq!(home.run(home.site.dir(), &["list"]), "", "{step}");
            let states = fs::read_dir(home.dir("state/samovar/.samovar")).unwrap();
            let names: Vec<_> = states.map(|state| state.unwrap().file_name()).collect();
            assert_eq!(names, ["lock"], "{step}");
            let layers = fs::read_dir(home.dir("state/samovar/overlays"));
            assert_eq!(layers.into_iter().flatten().count(), 0, "{step}");
            if killed.status.success() {
                break;
            }
            killed_count += 1;
            // Only the files of a state without a directory may be left.
            let is_known = text.is_empty() || text.contains("No such file");
            assert!(is_known, "{step}");
        }
    }
    assert!(killed_count > 6, "{killed_count}");
}

/// Asserts that a text contains another one.
#[track_caller]
pub(crate) fn assert_has(text: &str, part: &str) {
    assert!(text.contains(part), "{part:?} is not in {text:?}");
}

/// Writes a file, after creating its directory.
pub(crate) fn write(directory: &Path, name: &str, content: impl AsRef<[u8]>) {
    let path = directory.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

pub(crate) fn read(directory: &Path, name: &str) -> String {
    fs::read_to_string(directory.join(name)).unwrap()
}

/// Returns the entries below a directory without `.samovar`: contents of files, and targets of
/// links with an arrow before them.
pub(crate) fn tree(directory: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut entries = BTreeMap::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(parent) = pending.pop() {
        for entry in fs::read_dir(&parent).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(directory).unwrap().as_os_str();
            if name == OsStr::new(".samovar") {
                continue;
            }
            let kind = path.symlink_metadata().unwrap().file_type();
            let value = if kind.is_symlink() {
                let target = fs::read_link(&path).unwrap().into_os_string();
                [b"-> ", &target.into_vec()[..]].concat()
            } else if kind.is_dir() {
                pending.push(path.clone());
                b"/".to_vec()
            } else {
                fs::read(&path).unwrap()
            };
            entries.insert(name.as_bytes().to_vec(), value);
        }
    }
    entries
}
