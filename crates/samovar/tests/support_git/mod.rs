//! Git repositories of tests.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::process::{finish, output};

use crate::support::bare;

/// A git repository, or a work tree of one.
pub(crate) struct Git {
    pub(crate) dir: PathBuf,
    /// Whether the directory is the repository itself.
    is_repository: bool,
}

impl Git {
    /// Creates a repository with these options in a directory.
    pub(crate) fn init(dir: PathBuf, options: &[&str]) -> Self {
        fs::create_dir_all(&dir).unwrap();
        let git = Self::of(dir);
        git.run(&[&["init", "--quiet", "--initial-branch=main"], options].concat());
        git
    }

    /// Returns the repository of a work tree.
    pub(crate) fn of(dir: PathBuf) -> Self {
        let is_repository = false;
        Self { dir, is_repository }
    }

    /// Returns a repository by its own directory.
    pub(crate) fn of_repository(dir: &Path) -> Self {
        let (dir, is_repository) = (dir.to_owned(), true);
        Self { dir, is_repository }
    }

    /// Returns a command in the directory, with nothing of the user's configuration of git.
    fn command(&self, program: &str) -> Command {
        let mut command = bare(program);
        command.current_dir(&self.dir);
        command.env("GIT_CONFIG_NOSYSTEM", "1");
        command.env("GIT_CONFIG_GLOBAL", "/dev/null");
        for role in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{role}_NAME"), "mr");
            command.env(format!("GIT_{role}_EMAIL"), "mr@example.org");
        }
        command.env("GIT_EDITOR", "true");
        command
    }

    /// Returns a command line to be run in the directory.
    pub(crate) fn shell(&self, line: &str) -> Command {
        let mut command = self.command("sh");
        command.args(["-c", line]);
        command
    }

    /// Runs a git command that must succeed. Returns its output without white space at the ends.
    #[track_caller]
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        output(&mut self.git(arguments)).trim().to_owned()
    }

    /// Runs a git command. Returns standard error if it fails.
    pub(crate) fn try_run(&self, arguments: &[&str]) -> Result<(), String> {
        let found = finish(&mut self.git(arguments));
        match found.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&found.stderr).into_owned()),
        }
    }

    fn git(&self, arguments: &[&str]) -> Command {
        let mut command = self.command("git");
        if self.is_repository {
            command.arg("--git-dir=.");
        }
        command.args(arguments);
        command
    }

    /// Asserts that nothing is missing or damaged in the repository.
    #[track_caller]
    pub(crate) fn check(&self) {
        let found = finish(&mut self.git(&["fsck", "--full", "--strict", "--no-dangling"]));
        let text = String::from_utf8_lossy(&[found.stdout, found.stderr].concat()).into_owned();
        assert!(found.status.success(), "{:?}: {text}", self.dir);
        assert!(
            !text.contains("missing") && !text.contains("error"),
            "{text}"
        );
    }

    /// Returns what `git status` prints about the files, but for the state of a workspace.
    #[track_caller]
    pub(crate) fn status(&self) -> String {
        let text = self.run(&["status", "--porcelain"]);
        let lines = text.lines().filter(|line| *line != "?? .samovar/");
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Returns the tracked files that differ from the last commit. Does not write the index.
    pub(crate) fn changes(&self) -> Vec<String> {
        let text = self.run(&["--no-optional-locks", "diff", "--name-only", "HEAD"]);
        text.lines().map(str::to_owned).collect()
    }

    /// Returns the path of the repository of a work tree.
    pub(crate) fn repository(&self) -> PathBuf {
        let path = self.run(&["rev-parse", "--absolute-git-dir"]);
        Path::new(&path).canonicalize().unwrap()
    }
}

/// Returns the repositories in a directory that were kept from conflicts.
pub(crate) fn conflict_copies(dir: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut copies: Vec<PathBuf> = paths
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            name.contains(".conflict-") && path.join("HEAD").exists()
        })
        .collect();
    copies.sort();
    copies
}
