//! Stores for tests, created by the real Nix, or by writing rows as Nix does.

#![allow(
    clippy::allow_attributes,
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "each test file uses its own part, and a test that cannot go on has failed"
)]

pub(crate) mod rows;
pub(crate) mod tree;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use samovar_nix::{HashPart, StoreDir, StorePath};
use samovar_store::{LocalStore, Location, Parameters, Settings};
use testkit::nix::Daemon;

/// A store that the real Nix has created in a separate directory.
#[derive(Debug)]
pub(crate) struct NixStore {
    dir: tempfile::TempDir,
}

impl NixStore {
    /// Creates an empty store. Nix initialises it in its first run.
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("samovar-store-")
            .tempdir()
            .unwrap();
        // Unprivileged readers need access to the directory.
        make_public(dir.path());
        std::fs::create_dir(dir.path().join("etc")).unwrap();
        Self { dir }
    }

    pub(crate) fn root(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.join("var/db/db.sqlite")
    }

    /// Returns the environment variables that select this store.
    pub(crate) fn variables(&self) -> HashMap<String, String> {
        let at = |name: &str| self.join(name).to_str().unwrap().to_owned();
        HashMap::from([
            ("NIX_STORE_DIR".to_owned(), at("store")),
            ("NIX_STATE_DIR".to_owned(), at("var")),
            ("NIX_LOG_DIR".to_owned(), at("log")),
            ("NIX_CONF_DIR".to_owned(), at("etc")),
            ("NIX_DAEMON_SOCKET_PATH".to_owned(), at("socket")),
            ("NIX_IGNORE_SYMLINK_STORE".to_owned(), "1".to_owned()),
            ("HOME".to_owned(), at("home")),
        ])
    }

    pub(crate) fn settings(&self) -> Settings {
        let variables = self.variables();
        Settings::from_environment(|name| variables.get(name).map(Into::into)).unwrap()
    }

    pub(crate) fn location(&self) -> Location {
        Location::new(&Parameters::default(), &self.settings())
    }

    pub(crate) fn open(&self) -> LocalStore {
        LocalStore::new(self.location()).unwrap()
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap());
        command.envs(self.variables()).env("NIX_REMOTE", "local");
        command
    }

    /// Starts a real nix-daemon for this store.
    pub(crate) fn daemon(&self) -> Daemon {
        Daemon::listening(&mut self.command("nix-daemon"), &self.join("socket"))
    }

    /// Runs a Nix program and returns its output.
    #[track_caller]
    pub(crate) fn nix<A: AsRef<OsStr>>(&self, program: &str, arguments: &[A]) -> String {
        text_of(&testkit::nix::finish_collecting(
            self.command(program).args(arguments),
        ))
    }

    /// Adds a file or directory and returns its path.
    #[track_caller]
    pub(crate) fn add(&self, path: &Path) -> StorePath {
        let printed = self.nix("nix-store", &[OsStr::new("--add"), path.as_os_str()]);
        self.parse(printed.trim())
    }

    /// Adds a file with this content and returns its path.
    #[track_caller]
    pub(crate) fn add_text(&self, name: &str, content: &str) -> StorePath {
        let path = self.join(name);
        std::fs::write(&path, content).unwrap();
        self.add(&path)
    }

    /// Deletes a path as the garbage collector does.
    #[track_caller]
    pub(crate) fn delete(&self, path: &StorePath) {
        self.nix("nix-store", &["--delete", &self.full(path)]);
    }

    /// Makes the NAR with the real Nix.
    #[track_caller]
    pub(crate) fn dump(&self, path: &StorePath) -> Vec<u8> {
        let output = self
            .command("nix-store")
            .args(["--dump", &self.full(path)])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    }

    pub(crate) fn full(&self, path: &StorePath) -> String {
        path.full(&self.store_dir())
    }

    pub(crate) fn real(&self, path: &StorePath) -> PathBuf {
        self.join("store").join(path.base_name())
    }

    pub(crate) fn store_dir(&self) -> StoreDir {
        StoreDir::new(self.join("store").to_str().unwrap()).unwrap()
    }

    pub(crate) fn parse(&self, full: &str) -> StorePath {
        StorePath::parse(&self.store_dir(), full).unwrap()
    }
}

impl Default for NixStore {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns a hash part that no path has.
pub(crate) fn absent() -> HashPart {
    HashPart::parse(&[b'0'; 32]).unwrap()
}

pub(crate) fn make_public(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[track_caller]
fn text_of(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout.clone()).unwrap()
}
