//! Runs the built binary with real stores and real clients.
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

pub mod client;
pub mod daemon;

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::{Command, Stdio};

pub use testkit::http1::{Connection, Response, exchange as raw};
pub use testkit::nix::{
    Nix, OwnStore, hash_part, key_pair, local, nix, sample, sample_list, sample_root,
};
use testkit::process::without_variables;
pub use testkit::process::{Process, output};
pub use testkit::{PATIENCE, eventually};

/// Returns a command that does not inherit settings from the environment of the tests.
pub fn bare(program: &str) -> Command {
    let mut command = without_variables(program, &["NIX_", "PLACK_", "LISTEN_"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns the command of the binary under test.
pub fn nix_serve() -> Command {
    bare(env!("CARGO_BIN_EXE_nix-serve"))
}

/// Returns [`nix_serve`] on the sample store.
pub fn of_sample() -> Command {
    let mut command = nix_serve();
    command.args(["--store", &local(&sample_root())]);
    command
}

/// A running server. Dropping it kills the process.
pub struct ServerProcess {
    process: Process,
    /// Address of its first TCP listener.
    pub addr: SocketAddr,
}

impl Deref for ServerProcess {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for ServerProcess {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

impl ServerProcess {
    /// Serves the store under `root` on a free port.
    #[track_caller]
    pub fn of_store(root: &Path) -> Self {
        Self::start(nix_serve().args(["--store", &local(root)]))
    }

    /// Starts `command` with `--listen 127.0.0.1:0` added, and waits until it serves.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        Self::start_listening(command.args(["--listen", "127.0.0.1:0"]))
    }

    /// Starts `command`, which must listen on a TCP address, and waits until it serves.
    #[track_caller]
    pub fn start_listening(command: &mut Command) -> Self {
        let process = Process::spawn(command);
        let line = process.wait_for(" on http");
        let address = line.split("://").nth(1).unwrap();
        let addr = address.split('/').next().unwrap().parse().unwrap();
        Self { process, addr }
    }

    /// Ends the server with TERM; returns everything that it logged.
    #[track_caller]
    pub fn whole_log(self) -> Vec<String> {
        self.process.terminate()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Sends a GET request on a new connection.
    #[track_caller]
    pub fn get(&self, path: &str) -> Response {
        self.request("GET", path, &[])
    }

    /// Sends a request on a new connection.
    #[track_caller]
    pub fn request(&self, method: &str, path: &str, fields: &[&str]) -> Response {
        let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n");
        raw(self.addr, request)
    }

    /// Requests the narinfo of a store path.
    #[track_caller]
    pub fn narinfo(&self, store_path: &str) -> Response {
        self.get(&format!("/{}.narinfo", hash_part(store_path)))
    }

    /// Waits until a repaired path is served. If a check of its files took long, as on a busy
    /// machine, the server pauses before the next check. Meanwhile the path is absent.
    #[track_caller]
    pub fn wait_for_repair(&self, store_path: &str) {
        eventually("the repaired path is served", || {
            let answer = self.narinfo(store_path);
            let text = answer.text();
            let is_quarantined = answer.status == 404 && text.contains("damaged");
            assert!(
                matches!(answer.status, 200 | 503) || is_quarantined,
                "{text}"
            );
            answer.status == 200
        });
    }

    /// Returns the URL path of a store path's NAR, from its narinfo.
    #[track_caller]
    pub fn nar_url(&self, store_path: &str) -> String {
        let response = self.narinfo(store_path);
        assert_eq!(response.status, 200, "{store_path}: {}", response.text());
        let text = response.text();
        let url = text.lines().find_map(|line| line.strip_prefix("URL: "));
        format!("/{}", url.unwrap())
    }
}
