//! A store with hostile contents, clients of its server, and checks that the server must pass.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says so if it can do nothing"
)]

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use testkit::http1::{Response, exchange};
use testkit::procfs;
use testkit::{PATIENCE, eventually, wait::holds_within};

use crate::support::{OwnStore, hash_part, local, nix_serve};
use crate::support_process::{Connection, Process};

/// Contents of files that no client may get. Must not appear in any response.
pub const CANARY: &str = "c4nary-of-this-machine";

/// Maximum time of a neighbour's request on an overloaded machine. A longer time means that the
/// server hangs.
const NOTICED: Duration = Duration::from_secs(30);

/// Sends one request on a new connection; the status is 0 if no response came.
#[track_caller]
pub fn fetch(addr: SocketAddr, method: &str, path: &str, field: &str) -> Response {
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{field}\r\n");
    exchange(addr, request)
}

/// Returns whether bytes contain [`CANARY`].
pub fn holds_canary(bytes: &[u8]) -> bool {
    let canary = CANARY.as_bytes();
    bytes.windows(canary.len()).any(|part| part == canary)
}

/// A store with one good path, a server with two workers, and a client that requests the good path.
pub struct Hostile {
    pub store: OwnStore,
    pub server: Process,
    pub addr: SocketAddr,
    neighbour: Option<Neighbour>,
    before: Usage,
}

/// Resources that a process uses.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    pub cpu_seconds: f64,
    /// Peak resident memory, in bytes.
    pub memory_len: u64,
    pub descriptor_count: usize,
}

impl Usage {
    pub fn of(pid: u32) -> Self {
        Self {
            cpu_seconds: procfs::cpu_time(pid).unwrap().as_secs_f64(),
            memory_len: procfs::memory(pid, "status", "VmHWM").unwrap(),
            descriptor_count: procfs::descriptor_count(pid).unwrap(),
        }
    }
}

impl Hostile {
    /// Starts a server of a store to which `fill` has added contents.
    pub fn new<T>(fill: impl FnOnce(&OwnStore) -> T) -> (Self, T) {
        Self::with(&[], fill)
    }

    /// Does the same as [`new`](Self::new), with more arguments for the server.
    pub fn with<T>(arguments: &[&str], fill: impl FnOnce(&OwnStore) -> T) -> (Self, T) {
        let store = OwnStore::new();
        let dir = tempfile::tempdir().unwrap();
        let good = dir.path().join("good");
        fs::create_dir(&good).unwrap();
        for number in 0..100 {
            fs::write(good.join(number.to_string()), vec![b'g'; 2000]).unwrap();
        }
        let good = store.add(&good);
        let filled = fill(&store);
        let mut command = nix_serve();
        command.args(["--listen", "127.0.0.1:0", "--workers", "2"]);
        command.args(arguments);
        command.args(["--store", &local(store.root())]);
        let (server, addr) = Process::serving(&mut command);
        let neighbour = Neighbour::start(addr, hash_part(&good));
        let hostile = Self {
            before: Usage::of(server.child.id()),
            neighbour: Some(neighbour),
            store,
            server,
            addr,
        };
        (hostile, filled)
    }

    /// Stops the server and checks that nothing hangs, spins, leaks or has panicked, and that the
    /// neighbour was always served. Returns the log and the resource usage.
    #[track_caller]
    pub fn end(mut self) -> (Vec<String>, Usage) {
        let slowest = self.neighbour.take().unwrap().end();
        assert!(slowest < NOTICED, "neighbours waited {slowest:?}");
        let pid = self.server.child.id();
        let mut after = Usage::of(pid);
        eventually("the server is at rest", || {
            let quiet = Usage::of(pid);
            std::thread::sleep(Duration::from_millis(300));
            after = Usage::of(pid);
            let spun = after.cpu_seconds - quiet.cpu_seconds;
            // The remaining ones are connections being closed, and one to the database per thread.
            spun < 0.15 && after.descriptor_count < self.before.descriptor_count + 20
        });
        self.server.signal("TERM");
        assert_eq!(self.server.wait(), Some(0));
        let lines = self.server.lines();
        assert!(
            !lines.iter().any(|line| line.contains("panicked")),
            "{lines:#?}"
        );
        assert!(
            !lines.iter().any(|line| line.contains(CANARY)),
            "{lines:#?}"
        );
        let used = Usage {
            cpu_seconds: after.cpu_seconds - self.before.cpu_seconds,
            memory_len: after.memory_len - self.before.memory_len,
            ..after
        };
        println!("slowest neighbour {slowest:?}, {used:?}");
        (lines, used)
    }
}

/// A client that requests another path, and must not be affected.
struct Neighbour {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Neighbour {
    fn start(addr: SocketAddr, hash: &str) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (ends, hash) = (Arc::clone(&is_over), hash.to_owned());
        let thread = std::thread::spawn(move || {
            let mut slowest = Duration::ZERO;
            let mut connection = Connection::connect(addr);
            while !ends.load(Ordering::Acquire) {
                for url in [
                    format!("/{hash}.narinfo"),
                    format!("/nar/{hash}.nar"),
                    format!("/{hash}.ls"),
                ] {
                    let start = Instant::now();
                    assert_eq!(connection.get(&url).status, 200);
                    slowest = slowest.max(start.elapsed());
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            slowest
        });
        Self { is_over, thread }
    }

    /// Stops the client; returns the longest time of a request.
    fn end(self) -> Duration {
        self.is_over.store(true, Ordering::Release);
        self.thread.join().unwrap()
    }
}

/// Runs a command that needs root. Without the rights, prints a message and returns `false`.
pub fn may(command: &mut Command) -> bool {
    let output = command.output().unwrap();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(std::env::var_os("CI").is_none(), "{command:?}: {said}");
        println!("NOT TESTED: {command:?} is not allowed here: {said}");
    }
    output.status.success()
}

/// Creates a directory and a file outside of the store paths. Each file is as long as the one that
/// it will replace.
pub fn canary(store: &OwnStore, file_len: usize) -> (PathBuf, PathBuf) {
    let directory = store.root().join("elsewhere");
    fs::create_dir_all(&directory).unwrap();
    let mut contents = CANARY.repeat(file_len / CANARY.len() + 1);
    contents.truncate(file_len);
    let file = directory.join("file");
    for name in ["file", "a", "z", CANARY] {
        fs::write(directory.join(name), &contents).unwrap();
    }
    (directory, file)
}

/// Requests a repaired path; retries while the second check of the damage yields 503. Fails on 404.
#[track_caller]
pub fn fetch_settled(addr: SocketAddr, url: &str) -> Response {
    let mut response = Response::default();
    holds_within(PATIENCE, || {
        response = fetch(addr, "GET", url, "");
        response.status != 503
    });
    response
}
