//! Runs `samovar push`, and compares the pushed paths with copies from the cache.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

pub(crate) mod proxy;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use testkit::nix::{OwnStore, local, nix};
use testkit::process::{finish, output};
use testkit::random::SplitMix64;

use crate::support::{samovar, secret_file};

/// A client that pushes paths of one store with a token.
pub(crate) struct Pusher {
    home: tempfile::TempDir,
    store: String,
}

impl Pusher {
    /// Creates a client for the store with this URI.
    pub(crate) fn new(store: &str, token: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        secret_file(home.path(), "token", &format!("{token}\n"));
        Self {
            home,
            store: store.to_owned(),
        }
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    /// Returns a `samovar push` command without a token.
    pub(crate) fn without_token(&self, url: &str) -> Command {
        let mut command = samovar();
        command
            .args(["push", url, "--store", &self.store])
            .env("HOME", self.home())
            .env("NIX_CONF_DIR", self.home());
        command
    }

    /// Returns a `samovar push` command with the token.
    pub(crate) fn push(&self, url: &str, arguments: &[&str]) -> Command {
        let mut command = self.without_token(url);
        command.arg("--token-file").arg(self.home().join("token"));
        command.args(arguments);
        command
    }

    /// Runs `samovar push`, which must succeed. Returns its JSON report.
    #[track_caller]
    pub(crate) fn report(&self, url: &str, arguments: &[&str]) -> Value {
        // Put `--json` before the arguments, because these may end in a command to run.
        let mut command = self.push(url, &["--json"]);
        serde_json::from_str(&output(command.args(arguments))).unwrap()
    }
}

/// Returns the number of paths in this list of a report.
pub(crate) fn count(report: &Value, list: &str) -> usize {
    report[list].as_array().unwrap().len()
}

/// Runs a command that must exit with this code. Returns its standard output and standard error as
/// one text.
#[track_caller]
pub(crate) fn exits_with(command: &mut Command, code: i32) -> String {
    let output = finish(command);
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{text}");
    text
}

/// Copies paths with plain Nix from a cache into a new store. Compares the NARs of their closures
/// with those in the store below the root `original`. `key`: public key that must have signed the
/// paths, or empty for a cache that does not sign.
#[track_caller]
pub(crate) fn assert_copies_back(from: &str, key: &str, original: &Path, paths: &[String]) {
    let copy = OwnStore::new();
    let home = tempfile::tempdir().unwrap();
    let mut command = nix("nix", home.path());
    command.args(["copy", "--from", from, "--to", &local(copy.root())]);
    command.args(["--option", "substituters", ""]);
    if key.is_empty() {
        command.arg("--no-check-sigs");
    } else {
        command.args(["--option", "trusted-public-keys", key]);
    }
    output(command.args(paths));
    let closure = closure(original, paths);
    assert_eq!(self::closure(copy.root(), paths), closure);
    for path in closure {
        let nar = |root: &Path| copy.dump(&root.join(&path[1..]));
        assert!(nar(copy.root()) == nar(original), "{path}");
    }
}

/// Returns the closures of these paths in the store below `root`.
#[track_caller]
pub(crate) fn closure(root: &Path, paths: &[String]) -> BTreeSet<String> {
    let home = tempfile::tempdir().unwrap();
    let mut command = nix("nix-store", home.path());
    command.args(["--store", &local(root), "--query", "--requisites"]);
    let text = output(command.args(paths));
    text.lines().map(str::to_owned).collect()
}

/// Returns `len` bytes that cannot be compressed and that depend on `seed`.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    SplitMix64::new(seed).bytes(len)
}

pub(crate) fn words(paths: &[String]) -> Vec<&str> {
    paths.iter().map(String::as_str).collect()
}

/// Overwrites a read-only file of a store.
pub(crate) fn overwrite(file: &Path, content: &[u8]) {
    let mut permissions = fs::metadata(file).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o644);
    fs::set_permissions(file, permissions).unwrap();
    fs::write(file, content).unwrap();
}
