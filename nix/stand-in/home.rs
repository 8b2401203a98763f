//! Helpers for tests of Nix files: the real Nix with a temporary store and home, and the real
//! systemd. Tests of several crates include this module.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "clippy allows these only inside functions marked as tests"
)]
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

pub(crate) fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    here.canonicalize().unwrap()
}

/// Temporary store and home directory for Nix, isolated from this machine's.
pub(crate) struct Home(pub(crate) tempfile::TempDir);

impl Home {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("NIX_") {
                command.env_remove(name);
            }
        }
        command.env("HOME", self.0.path());
        command.env("NIX_CONF_DIR", self.0.path());
        command.env("NIX_STATE_DIR", self.0.path());
        command.stdin(Stdio::null());
        command
    }

    /// Calls a function of `nix/stand-in/lib.nix` with `argument`, a Nix expression; returns the
    /// result, or Nix's error output.
    pub(crate) fn call(&self, function: &str, argument: &str) -> Result<Value, String> {
        let stand_in = repository().join("nix/stand-in/lib.nix");
        self.evaluate(&format!(
            "(import {}).{function} {argument}",
            stand_in.display()
        ))
    }

    /// Evaluates a Nix expression strictly; returns the result, or Nix's error output.
    pub(crate) fn evaluate(&self, expression: &str) -> Result<Value, String> {
        let mut command = self.command("nix-instantiate");
        command.args(["--eval", "--strict", "--json", "--read-write-mode"]);
        command.arg("--store").arg(self.0.path());
        let output = command.arg("-E").arg(expression).output().unwrap();
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(serde_json::from_slice(&output.stdout).unwrap())
    }

    /// Returns the location of a store path in the file system.
    pub(crate) fn real(&self, store_path: &str) -> PathBuf {
        self.0.path().join(store_path.trim_start_matches('/'))
    }
}

/// Asserts that `systemd-analyze verify` has no complaint about these units. Returns `false` if the
/// program is not installed.
#[track_caller]
pub(crate) fn verify(units: &[PathBuf]) -> bool {
    let mut verify = Command::new("systemd-analyze");
    let Ok(verified) = verify.args(["verify", "--man=no"]).args(units).output() else {
        println!("SKIPPED: there is no systemd-analyze here");
        return false;
    };
    // systemd-analyze exits with 0 after warnings, and it also reports other units: search its
    // output for warnings about these units.
    let complaints = String::from_utf8_lossy(&verified.stderr);
    let names = units.iter().map(|it| it.file_stem().unwrap());
    let is_clean = names.map(|it| it.to_str().unwrap()).all(|name| {
        let is_about = |line: &str| line.contains(name);
        !complaints.lines().any(is_about)
    });
    assert!(verified.status.success() && is_clean, "{complaints}");
    true
}
