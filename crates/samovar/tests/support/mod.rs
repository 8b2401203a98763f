//! A server in a process of its own, started as a user starts it.
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
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn samovar() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_samovar"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("NIX_") || name.starts_with("SAMOVAR_") {
            command.env_remove(&*name);
        }
    }
    command.stdin(Stdio::null());
    command
}

pub(crate) fn sample_store() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.samovar/sample");
    let root = root.canonicalize().expect(
        "there is no sample store: run `cargo run -p xtask -- sample-store .samovar/sample`",
    );
    format!("local?root={}", root.display())
}

/// A file in a directory of its own.
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

    /// All lines up to one with this in it.
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

    /// Where it serves.
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
