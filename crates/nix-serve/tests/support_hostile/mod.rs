//! A store that means harm: what is asked of a server of one, and how it has to bear it.
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
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::{OwnStore, PATIENCE, hash_part, local, nix, nix_serve};
use crate::support_process::{Connection, Process};

/// Stands where no client may look, and in no answer.
pub const CANARY: &str = "c4nary-of-this-machine";

/// What a neighbour may wait on a machine with far more to do than cores; who hangs waits for ever.
const NOTICED: Duration = Duration::from_secs(20);

/// What came of a request, whether it ended well or not.
#[derive(Debug)]
pub struct Outcome {
    /// 0 if nothing came before the connection broke.
    pub status: u16,
    pub body: Vec<u8>,
    /// Whether the body has its announced end.
    pub is_complete: bool,
}

/// One request on a connection of its own; fails if that takes for ever.
#[track_caller]
pub fn fetch(addr: SocketAddr, method: &str, path: &str, field: &str) -> Outcome {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{field}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{path}");
    }
    outcome(&bytes, method == "HEAD")
}

fn outcome(bytes: &[u8], is_head: bool) -> Outcome {
    let Some(end) = bytes.windows(4).position(|part| part == b"\r\n\r\n") else {
        return Outcome {
            status: 0,
            body: Vec::new(),
            is_complete: false,
        };
    };
    let head = std::str::from_utf8(&bytes[..end]).unwrap().to_lowercase();
    let body = bytes[end + 4..].to_vec();
    let len = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    Outcome {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        is_complete: match len {
            Some(len) => is_head || body.len() == len.parse::<usize>().unwrap(),
            // The last chunk.
            None => body.ends_with(b"\r\n0\r\n\r\n"),
        },
        body,
    }
}

/// Whether bytes hold [`CANARY`].
pub fn holds_canary(bytes: &[u8]) -> bool {
    let canary = CANARY.as_bytes();
    bytes.windows(canary.len()).any(|part| part == canary)
}

/// A store with a good path in it, whose server has two workers, and a client of the good path.
pub struct Hostile {
    pub store: OwnStore,
    pub server: Process,
    pub addr: SocketAddr,
    neighbour: Option<Neighbour>,
    before: Usage,
}

/// What a process has used.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    pub cpu_seconds: f64,
    /// The most there ever was.
    pub memory_kb: u64,
    pub descriptor_count: usize,
}

impl Usage {
    pub fn of(pid: u32) -> Self {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        let ticks = |at: usize| fields[at].parse::<f64>().unwrap();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.unwrap().trim().trim_end_matches(" kB");
        Self {
            cpu_seconds: (ticks(11) + ticks(12)) / 100.0,
            memory_kb: peak.parse().unwrap(),
            descriptor_count: fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(),
        }
    }
}

impl Hostile {
    /// Serves a store after `fill` has put something into it.
    pub fn new<T>(fill: impl FnOnce(&OwnStore) -> T) -> (Self, T) {
        Self::with(&[], fill)
    }

    /// The same, with more arguments for the server.
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

    /// Ends everything in good order: nothing hangs, spins, leaks or panicked, and the neighbour
    /// was served all the time. Says what the server said, and what it used.
    #[track_caller]
    pub fn end(mut self) -> (Vec<String>, Usage) {
        let slowest = self.neighbour.take().unwrap().end();
        assert!(slowest < NOTICED, "neighbours waited {slowest:?}");
        let pid = self.server.child.id();
        let quiet = Usage::of(pid);
        std::thread::sleep(Duration::from_millis(300));
        let after = Usage::of(pid);
        let spun = after.cpu_seconds - quiet.cpu_seconds;
        assert!(spun < 0.15, "{spun} s of CPU for nothing");
        // Connections that are being closed, and one to the database for each thread.
        assert!(
            after.descriptor_count < self.before.descriptor_count + 20,
            "{after:?} {:?}",
            self.before
        );
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
            memory_kb: after.memory_kb - self.before.memory_kb,
            ..after
        };
        println!("slowest neighbour {slowest:?}, {used:?}");
        (lines, used)
    }
}

/// A client of another path, who is not to notice.
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
            let mut connection = Connection::tcp(addr);
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

    /// The longest that it waited for anything.
    fn end(self) -> Duration {
        self.is_over.store(true, Ordering::Release);
        self.thread.join().unwrap()
    }
}

/// Registers what cannot be dumped, as Nix would.
#[track_caller]
pub fn register_row(store: &OwnStore, store_path: &str, nar_hash_hex: &str, nar_size: u64) {
    let mut load = nix("nix-store", store.root());
    load.arg("--store").arg(store.root()).arg("--load-db");
    let mut load = load.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let rows = format!("{store_path}\n{nar_hash_hex}\n{nar_size}\n\n0\n");
    load.stdin
        .take()
        .unwrap()
        .write_all(rows.as_bytes())
        .unwrap();
    assert!(load.wait().unwrap().success());
}

/// What `nix-store --dump` makes of files.
#[track_caller]
pub fn dump(store: &OwnStore, real: &Path) -> Vec<u8> {
    let output = nix("nix-store", store.root())
        .arg("--dump")
        .arg(real)
        .output()
        .unwrap();
    assert!(output.status.success());
    output.stdout
}

/// Runs what only root may; `false`, and a loud word, where this is nobody who may.
pub fn may(command: &mut Command) -> bool {
    let output = command.output().unwrap();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(std::env::var_os("CI").is_none(), "{command:?}: {said}");
        println!("NOT TESTED: {command:?} is not allowed here: {said}");
    }
    output.status.success()
}

/// A directory and a file that are nobody's business, beside the store; its files are as long as
/// those that they will be put in the place of.
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

/// The answer of a path whose files are right again; what was found wrong of it is looked at a
/// second time, and until then the client is told to ask again. Never that there is no such path.
#[track_caller]
pub fn fetch_settled(addr: SocketAddr, url: &str) -> Outcome {
    let start = Instant::now();
    loop {
        let outcome = fetch(addr, "GET", url, "");
        if outcome.status != 503 || start.elapsed() > Duration::from_secs(20) {
            return outcome;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
