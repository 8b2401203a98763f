//! Runs the built binary step by step, and gives access to its log and exit code.
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says so if it can do nothing"
)]

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use testkit::http1::{Connection, Response};
use testkit::process::finish;
pub use testkit::process::{Process, address_in, signal};
pub use testkit::sqlite::Shell;

use crate::support::{OwnStore, bare, local, nix_serve, output, sample_root};

/// UID of the user nobody.
pub const NOBODY: u32 = 65534;

/// Exit code and output of a process that has ended.
#[derive(Debug)]
pub struct Ending {
    pub code: Option<i32>,
    pub out: String,
    pub errors: String,
}

/// Runs a command to its end.
#[track_caller]
pub fn ends(command: &mut Command) -> Ending {
    let output = finish(command);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ending {
        code: output.status.code(),
        out: text(output.stdout),
        errors: text(output.stderr),
    }
}

/// Runs a server that must not start: it exits with code 1, and prints one line that has all of
/// `parts`, after any warnings.
#[track_caller]
pub fn refuses_to_start(command: &mut Command, parts: &[&str]) {
    let ending = ends(command);
    assert_eq!(ending.code, Some(1), "{ending:?}");
    let lines: Vec<_> = ending
        .errors
        .lines()
        .filter(|line| !line.contains(" warning: "))
        .collect();
    assert_eq!(lines.len(), 1, "{ending:?}");
    assert!(lines[0].starts_with("nix-serve: error: "), "{ending:?}");
    for part in parts {
        assert!(lines[0].contains(part), "no {part:?} in {ending:?}");
    }
}

/// Serves the sample store on a free port.
#[track_caller]
pub fn serve_sample(arguments: &[&str]) -> (Process, SocketAddr) {
    let store = local(&sample_root());
    let mut command = nix_serve();
    command.args(["--listen", "127.0.0.1:0", "--store", &store]);
    Process::serving(command.args(arguments))
}

/// Sends one request and reads to the end of the connection.
#[track_caller]
pub fn once(addr: SocketAddr, path: &str) -> Response {
    Connection::connect(addr).request("GET", path, &["Connection: close"])
}

/// Returns whether the test runs as root; if not, prints why it is skipped.
pub fn is_root() -> bool {
    let id = output(Command::new("id").arg("-u"));
    let is_root = id.trim() == "0";
    if !is_root {
        println!("skipped: only root can become another user");
    }
    is_root
}

/// Makes a tree world-readable.
pub fn make_public(path: &Path) {
    output(Command::new("chmod").args(["-R", "a+rX"]).arg(path));
}

pub fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A copy of the binary that any user can execute.
pub struct PublicBinary {
    dir: tempfile::TempDir,
}

impl PublicBinary {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        // Copy in another process: if a child of another test inherited a descriptor opened for
        // writing, execution would fail with "text file busy".
        output(
            Command::new("cp")
                .arg(env!("CARGO_BIN_EXE_nix-serve"))
                .arg(dir.path().join("nix-serve")),
        );
        set_mode(dir.path(), 0o755);
        set_mode(&dir.path().join("nix-serve"), 0o755);
        Self { dir }
    }

    /// Returns the command that runs the server as the user nobody, without supplementary groups.
    pub fn as_nobody(&self) -> Command {
        let nobody = NOBODY.to_string();
        let mut command = bare("setpriv");
        command
            .args(["--reuid", &nobody, "--regid", &nobody, "--clear-groups"])
            .arg(self.dir.path().join("nix-serve"));
        command
    }
}

/// Creates a world-readable store.
pub fn public_store() -> OwnStore {
    let store = OwnStore::new();
    make_public(store.root());
    store
}

/// Returns a path below a directory, as text.
pub fn at(dir: &Path, name: &str) -> String {
    let path: PathBuf = dir.join(name);
    path.to_str().unwrap().to_owned()
}
