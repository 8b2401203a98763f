//! `samovar` and its server as child processes, with configuration files and Nix clients.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// The program `samovar` without the environment of the tests.
pub(crate) fn bare(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        let is_theirs = ["NIX_", "SAMOVAR_", "XDG_"];
        if is_theirs.iter().any(|start| name.starts_with(start)) {
            command.env_remove(&*name);
        }
    }
    command.stdin(Stdio::null());
    command
}

pub(crate) fn samovar() -> Command {
    bare(env!("CARGO_BIN_EXE_samovar"))
}

/// A program of Nix without this machine's configuration.
pub(crate) fn nix(program: &str, home: &Path) -> Command {
    let mut command = bare(program);
    command
        .env("HOME", home)
        .env("NIX_CONF_DIR", home.join("no-conf"))
        .env(
            "NIX_CONFIG",
            "build-users-group =\nsandbox = false\nrequire-sigs = false\n\
             experimental-features = nix-command\n",
        );
    command
}

/// Runs a new client with this netrc file that realises a path from these substituters.
pub(crate) fn realise(substituters: &str, path: &str, netrc: &str) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let netrc = secret_file(dir.path(), "netrc", netrc);
    let mut command = nix("nix-store", dir.path());
    command.arg("--store").arg(&store);
    command.args(["--realise", path, "--option", "max-jobs", "0"]);
    command.args(["--option", "substituters", substituters]);
    command.args(["--option", "netrc-file"]).arg(netrc);
    let output = command.output().unwrap();
    let is_there = store.join(&path[1..]).exists();
    assert_eq!(output.status.success(), is_there, "{output:?}");
    output
}

pub(crate) fn sample_root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.samovar/sample");
    root.canonicalize().expect(
        "there is no sample store: run `cargo run -p xtask -- sample-store .samovar/sample`",
    )
}

pub(crate) fn sample_store() -> String {
    format!("local?root={}", sample_root().display())
}

/// The paths of the sample store, by name.
pub(crate) fn manifest() -> serde_json::Value {
    let text = fs::read_to_string(sample_root().join("sample.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// A path of the sample store.
pub(crate) fn sample(key: &str) -> String {
    manifest()[key].as_str().unwrap().to_owned()
}

pub(crate) fn hash(path: &str) -> &str {
    &path["/nix/store/".len()..][..32]
}

pub(crate) fn secret_file(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// A line of a users file.
pub(crate) fn user(name: &str, password: &str) -> String {
    let mut command = samovar();
    command.args(["password", name]).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    writeln!(child.stdin.take().unwrap(), "{password}").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// A line of a tokens file, and its token.
pub(crate) fn token(name: &str) -> (String, String) {
    let output = samovar().args(["token", name]).output().unwrap();
    let token = String::from_utf8(output.stderr).unwrap();
    let line = String::from_utf8(output.stdout).unwrap();
    (line, token.trim().to_owned())
}

/// Sends a request on a new connection; returns the response without `HTTP/1.1 `.
pub(crate) fn ask(address: &str, target: &str, fields: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer);
    answer.split_once(' ').unwrap().1.to_owned()
}

/// The status of a response.
pub(crate) fn status(address: &str, target: &str, fields: &str) -> u16 {
    ask(address, target, fields)[..3].parse().unwrap()
}

/// Starts a server with this configuration; returns it with its address.
pub(crate) fn serve(file: &File) -> (Server, String) {
    let server = Server::of(file);
    let address = server.address();
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
}

pub(crate) struct Server {
    child: Child,
    lines: Receiver<String>,
}

impl Server {
    pub(crate) fn of(file: &File) -> Self {
        Self::start(samovar().args(["serve", "--config"]).arg(&file.path))
    }

    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, lines }
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(status.unwrap().success());
    }

    #[track_caller]
    pub(crate) fn wait_for(&self, part: &str) -> String {
        let mut lines = self.lines_to(part);
        lines.pop().unwrap()
    }

    /// Waits for a line that contains the text.
    #[track_caller]
    pub(crate) fn lines_to(&self, part: &str) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line
                .unwrap_or_else(|error| panic!("no line with {part:?}: {error}; but {lines:?}"));
            let is_it = line.contains(part);
            lines.push(line);
            if is_it {
                return lines;
            }
        }
    }

    /// The address of the listener.
    pub(crate) fn address(&self) -> String {
        let line = self.wait_for("on http://");
        let (_, rest) = line.split_once("http://").unwrap();
        rest.split('/').next().unwrap().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
