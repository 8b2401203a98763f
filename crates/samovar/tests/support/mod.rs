//! Runs a server process as a user would start it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    dead_code,
    unused_imports,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use testkit::http1::Connection;
use testkit::nix::{Nix, local};
pub(crate) use testkit::nix::{hash_part as hash, manifest, sample, sample_root};
pub(crate) use testkit::process::Process as Server;
use testkit::process::without_variables;

/// Returns a command without the settings for Nix and Samovar from the environment of the tests.
pub(crate) fn bare(program: &str) -> Command {
    without_variables(program, &["NIX_", "SAMOVAR_", "XDG_"])
}

pub(crate) fn samovar() -> Command {
    bare(env!("CARGO_BIN_EXE_samovar"))
}

/// Returns a command of Nix that requires no signatures and ignores this machine's settings.
pub(crate) fn nix(program: &str, home: &Path) -> Command {
    of_version(&Nix::INSTALLED, program, home)
}

/// Returns [`nix`] for this version.
pub(crate) fn of_version(nix: &Nix, program: &str, home: &Path) -> Command {
    let mut command = nix.command(program, home);
    command.env(
        "NIX_CONFIG",
        "build-users-group =\nsandbox = false\nrequire-sigs = false\n\
         experimental-features = nix-command\n",
    );
    command
}

/// Runs a new client that substitutes a path from these substituters. `netrc`: text of its netrc
/// file.
pub(crate) fn realise(substituters: &str, path: &str, netrc: &str) -> Output {
    realise_with(&Nix::INSTALLED, substituters, path, netrc)
}

/// Returns [`realise`] with a client of this version.
pub(crate) fn realise_with(nix: &Nix, substituters: &str, path: &str, netrc: &str) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let netrc = secret_file(dir.path(), "netrc", netrc);
    let mut command = of_version(nix, "nix-store", dir.path());
    command.arg("--store").arg(&store);
    command.args(["--realise", path, "--option", "max-jobs", "0"]);
    command.args(["--option", "substituters", substituters]);
    command.args(["--option", "netrc-file"]).arg(netrc);
    let output = command.output().unwrap();
    let is_there = store.join(&path[1..]).exists();
    assert_eq!(output.status.success(), is_there, "{output:?}");
    output
}

pub(crate) fn sample_store() -> String {
    local(&sample_root())
}

pub(crate) fn secret_file(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// Returns a line of a users file for this user and password.
pub(crate) fn user(name: &str, password: &str) -> String {
    let mut command = samovar();
    command.args(["password", name]).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    writeln!(child.stdin.take().unwrap(), "{password}").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// Creates a token. Returns its line of a tokens file, and the token itself.
pub(crate) fn token(name: &str) -> (String, String) {
    let output = samovar().args(["token", name]).output().unwrap();
    let token = String::from_utf8(output.stderr).unwrap();
    let line = String::from_utf8(output.stdout).unwrap();
    (line, token.trim().to_owned())
}

/// Sends a GET request on a new connection. Returns the response as text, from its status on.
pub(crate) fn ask(address: &str, target: &str, fields: &str) -> String {
    let mut connection = Connection::connect(address);
    let host = "Host: a\r\nConnection: close\r\n";
    connection.send(format!("GET {target} HTTP/1.1\r\n{host}{fields}\r\n"));
    let response = connection.response(false);
    let (_, head) = response.head.split_once(' ').unwrap();
    format!("{head}{}", response.text())
}

/// Sends a GET request on a new connection. Returns the status of the response.
pub(crate) fn status(address: &str, target: &str, fields: &str) -> u16 {
    ask(address, target, fields)[..3].parse().unwrap()
}

/// Starts a server with this configuration. Returns the server and its address.
pub(crate) fn serve(file: &File) -> (Server, String) {
    let server = file.serve();
    let address = server.wait_for_address().to_string();
    (server, address)
}

/// A configuration file in a temporary directory.
pub(crate) struct File {
    _dir: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl File {
    pub(crate) fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("samovar.toml");
        let file = Self { _dir: dir, path };
        file.write(text);
        file
    }

    pub(crate) fn write(&self, text: &str) {
        let head = format!("store = {:?}\nlisten = \"127.0.0.1:0\"\n", sample_store());
        fs::write(&self.path, head + text).unwrap();
    }

    /// Starts a server with this configuration, without waiting until it listens.
    pub(crate) fn serve(&self) -> Server {
        Server::spawn(samovar().args(["serve", "--config"]).arg(&self.path))
    }
}
