//! A real Nix client with its own store and caches.

use std::path::{Path, PathBuf};
use std::process::Command;

pub use testkit::process::{fails, finish, output as succeeds, wait};

use testkit::nix::Nix;

/// A machine that substitutes: an empty store, no caches, no configuration.
pub struct Client {
    dir: tempfile::TempDir,
    pub nix: Nix,
}

impl Client {
    /// Makes a client with the installed Nix.
    pub fn new() -> Self {
        Self::of(&Nix::INSTALLED)
    }

    /// Makes a client with this version of Nix.
    pub fn of(nix: &Nix) -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            nix: nix.clone(),
        }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the root directory of its store.
    pub fn root(&self) -> PathBuf {
        self.dir.path().join("client")
    }

    /// Returns the physical location of a store path.
    pub fn real(&self, store_path: &str) -> PathBuf {
        self.root().join(store_path.trim_start_matches('/'))
    }

    /// Returns one of Nix's programs, without substituters and trusted keys unless the caller adds
    /// some.
    pub fn command(&self, program: &str) -> Command {
        self.command_with(program, "")
    }

    /// Returns [`Self::command`] with more experimental features.
    pub fn command_with(&self, program: &str, features: &str) -> Command {
        let mut command = self.nix.command(program, self.dir.path());
        command.env(
            "NIX_CONFIG",
            format!(
                "experimental-features = nix-command {features}\nbuild-users-group =\n\
                 sandbox = false\nsubstituters =\ntrusted-public-keys =\nrequire-sigs = true\n\
                 fsync-metadata = false\n"
            ),
        );
        command
    }

    /// Returns the command `nix copy --from url` that copies these paths into the client's store.
    pub fn copy(&self, url: &str, keys: &str, paths: &[String]) -> Command {
        let mut command = self.command("nix");
        command
            .args(["copy", "--from", url, "--to"])
            .arg(self.root())
            .args(["--option", "trusted-public-keys", keys])
            .args(paths);
        command
    }

    /// Returns the command `nix-store --realise` for a path with one substituter, without building.
    pub fn realise(&self, url: &str, keys: &str, path: &str) -> Command {
        let mut command = self.command("nix-store");
        command
            .arg("--store")
            .arg(self.root())
            .args(["--realise", path, "--option", "max-jobs", "0"])
            .args(["--option", "substituters", url])
            .args(["--option", "trusted-public-keys", keys]);
        command
    }

    /// Returns the argument of `nix` that names the outputs of a derivation.
    pub fn outputs_of(&self, drv: &str) -> String {
        match self.nix.release() {
            // Nix 2.8 also takes the path of the derivation.
            None => drv.to_owned(),
            Some(_) => format!("{drv}^*"),
        }
    }

    /// Returns the closure of `path` in the client's store.
    #[track_caller]
    pub fn closure(&self, path: &str) -> Vec<String> {
        let mut command = self.command("nix-store");
        command
            .arg("--store")
            .arg(self.root())
            .args(["--query", "--requisites", path]);
        succeeds(&mut command).lines().map(str::to_owned).collect()
    }
}
