//! Processes and connections, step by step: for tests of what happens in between.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says so if it can do nothing"
)]

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::{OwnStore, PATIENCE, bare, eventually, local, nix_serve, output, sample_root};

/// The user nobody.
pub const NOBODY: u32 = 65534;

/// A process whose standard error is read all the time; killed when dropped.
pub struct Process {
    pub child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    /// How many lines [`Process::wait_for`] has gone past.
    seen: usize,
}

impl Process {
    pub fn spawn(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                sink.lock().unwrap().push(line);
            }
        });
        Self {
            child,
            lines,
            seen: 0,
        }
    }

    /// Starts `command`, which listens on a free port of its own choice, and waits until it serves.
    #[track_caller]
    pub fn serving(command: &mut Command) -> (Self, SocketAddr) {
        let mut process = Self::spawn(command);
        let addr = process.wait_for_address();
        (process, addr)
    }

    /// The address in the next line that names one.
    #[track_caller]
    pub fn wait_for_address(&mut self) -> SocketAddr {
        let line = self.wait_for("on http://");
        address_in(&line)
    }

    /// Waits for the next line with `part`.
    #[track_caller]
    pub fn wait_for(&mut self, part: &str) -> String {
        let mut found = None;
        let mut seen = self.seen;
        let start = Instant::now();
        while found.is_none() {
            let lines = self.lines();
            while found.is_none() && seen < lines.len() {
                found = Some(lines[seen].clone()).filter(|line| line.contains(part));
                seen += 1;
            }
            if found.is_none() {
                assert!(
                    start.elapsed() < PATIENCE,
                    "no line with {part:?} in {lines:#?}"
                );
                assert!(
                    self.child.try_wait().unwrap().is_none() || self.lines().len() > seen,
                    "ended without a line with {part:?}: {lines:#?}"
                );
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        self.seen = seen;
        found.unwrap()
    }

    /// Everything on standard error so far.
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    pub fn count(&self, part: &str) -> usize {
        self.lines()
            .iter()
            .filter(|line| line.contains(part))
            .count()
    }

    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// Waits for the end; returns the exit code, `None` if a signal ended it.
    #[track_caller]
    pub fn wait(&mut self) -> Option<i32> {
        let mut code = None;
        eventually("the process ends", || {
            code = self.child.try_wait().unwrap();
            code.is_some()
        });
        code.unwrap().code()
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

pub fn signal(pid: u32, name: &str) {
    output(Command::new("kill").args(["-s", name, &pid.to_string()]));
}

/// The address in a line of a server that says where it serves.
#[track_caller]
pub fn address_in(line: &str) -> SocketAddr {
    let address = line.split("on http://").nth(1).unwrap();
    address.split('/').next().unwrap().parse().unwrap()
}

/// How a process ended, and what it said.
#[derive(Debug)]
pub struct Ending {
    pub code: Option<i32>,
    pub out: String,
    pub errors: String,
}

/// Runs to the end, which must not take for ever.
#[track_caller]
pub fn ends(command: &mut Command) -> Ending {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut out, mut errors) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let out = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        out.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let errors = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        errors.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > PATIENCE {
            child.kill().ok();
            panic!("{command:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Ending {
        code: status.code(),
        out: text(&out.join().unwrap()),
        errors: text(&errors.join().unwrap()),
    }
}

/// Runs a server that must not start: exit code 1 and one line, with all of `parts`, after any
/// warnings.
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

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A connection that stays open, used one request after the other.
pub struct Connection {
    stream: Box<dyn Stream>,
    /// Received and not used yet.
    bytes: Vec<u8>,
}

/// An answer on a connection that stays open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The head without what changes with time.
    pub fn timeless_head(&self) -> Vec<&str> {
        let lines = self.head.lines();
        lines.filter(|line| !line.starts_with("Date: ")).collect()
    }
}

impl Connection {
    #[track_caller]
    pub fn tcp(addr: SocketAddr) -> Self {
        Self::over(TcpStream::connect(addr).unwrap())
    }

    #[track_caller]
    pub fn unix(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            stream: Box::new(stream),
            bytes: Vec::new(),
        }
    }

    pub fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            stream: Box::new(stream),
            bytes: Vec::new(),
        }
    }

    #[track_caller]
    pub fn get(&mut self, path: &str) -> Reply {
        self.request("GET", path, &[])
    }

    #[track_caller]
    pub fn request(&mut self, method: &str, path: &str, fields: &[&str]) -> Reply {
        self.ask(method, path, fields);
        self.reply(method != "HEAD")
    }

    /// GET and HEAD, after which the connection goes on: the same status and fields, no body.
    #[track_caller]
    pub fn get_and_head(&mut self, path: &str, fields: &[&str]) -> Reply {
        let reply = self.request("GET", path, fields);
        let head = self.request("HEAD", path, fields);
        assert_eq!(head.timeless_head(), reply.timeless_head(), "{path}");
        assert_eq!(head.header("connection"), None, "{path}");
        reply
    }

    /// GET and HEAD of what is plain text.
    #[track_caller]
    pub fn check_text(&mut self, path: &str, status: u16, body: &str) {
        let reply = self.get_and_head(path, &[]);
        assert_eq!(
            (reply.status, reply.text().as_str()),
            (status, body),
            "{path}"
        );
        assert_eq!(reply.header("content-type"), Some("text/plain"), "{path}");
        let len = body.len().to_string();
        assert_eq!(reply.header("content-length"), Some(len.as_str()), "{path}");
    }

    #[track_caller]
    pub fn ask(&mut self, method: &str, path: &str, fields: &[&str]) {
        let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
        self.send(format!("{method} {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes());
    }

    #[track_caller]
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Reads one answer; fails if it is cut short.
    #[track_caller]
    pub fn reply(&mut self, has_body: bool) -> Reply {
        let head = self.head();
        let mut reply = Reply {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head,
            body: Vec::new(),
        };
        if !has_body {
            return reply;
        }
        if let Some(len) = reply.header("content-length") {
            let len = len.parse().unwrap();
            reply.body = self.take(len);
        } else if reply.header("transfer-encoding") == Some("chunked") {
            reply.body = self.chunks();
        }
        reply
    }

    /// Reads a chunked body.
    #[track_caller]
    pub fn chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let line = self.until(b"\r\n");
            let len = usize::from_str_radix(line.trim_end(), 16).unwrap();
            let mut data = self.take(len + 2);
            assert_eq!(data.split_off(len), b"\r\n");
            if len == 0 {
                return body;
            }
            body.extend(data);
        }
    }

    /// Reads a head alone.
    #[track_caller]
    pub fn head(&mut self) -> String {
        self.until(b"\r\n\r\n")
    }

    /// Takes `len` bytes.
    #[track_caller]
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        while self.bytes.len() < len {
            self.more();
        }
        let rest = self.bytes.split_off(len);
        std::mem::replace(&mut self.bytes, rest)
    }

    /// Everything until the end; whether that was an orderly end, and not a reset.
    #[track_caller]
    pub fn rest(&mut self) -> (Vec<u8>, bool) {
        let mut bytes = std::mem::take(&mut self.bytes);
        let outcome = self.stream.read_to_end(&mut bytes);
        if let Err(error) = &outcome {
            let is_late = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            assert!(!is_late, "it stays open");
        }
        (bytes, outcome.is_ok())
    }

    /// Waits for the end of a connection on which nothing more is said.
    #[track_caller]
    pub fn assert_closed(&mut self) {
        let (rest, _) = self.rest();
        assert_eq!(String::from_utf8_lossy(&rest), "");
    }

    #[track_caller]
    fn until(&mut self, end: &[u8]) -> String {
        let mut searched = 0;
        loop {
            let from = searched;
            let found = self.bytes[from..]
                .windows(end.len())
                .position(|part| part == end);
            if let Some(at) = found {
                return String::from_utf8(self.take(from + at + end.len())).unwrap();
            }
            searched = self.bytes.len().saturating_sub(end.len());
            self.more();
        }
    }

    #[track_caller]
    fn more(&mut self) {
        let mut buffer = [0; 64 * 1024];
        let len = loop {
            match self.stream.read(&mut buffer) {
                // So a stopped and continued process reads with a time limit.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => break other.unwrap(),
            }
        };
        assert_ne!(
            len,
            0,
            "it ends after {:?}",
            String::from_utf8_lossy(&self.bytes)
        );
        self.bytes.extend_from_slice(&buffer[..len]);
    }
}

/// A server of the sample store on a free port.
#[track_caller]
pub fn serve_sample(arguments: &[&str]) -> (Process, SocketAddr) {
    let store = local(&sample_root());
    let mut command = nix_serve();
    command.args(["--listen", "127.0.0.1:0", "--store", &store]);
    Process::serving(command.args(arguments))
}

/// Sends one request and reads all that comes, until the end.
#[track_caller]
pub fn once(addr: SocketAddr, path: &str) -> Reply {
    Connection::tcp(addr).request("GET", path, &["Connection: close"])
}

/// Runs SQL on a database that is a test's own; returns the rows.
#[track_caller]
pub fn sqlite(database: &Path, sql: &str) -> String {
    output(Command::new("sqlite3").arg(database).arg(sql))
        .trim()
        .to_owned()
}

/// Whether this is root; says why a test is skipped if not.
pub fn is_root() -> bool {
    let id = output(Command::new("id").arg("-u"));
    let is_root = id.trim() == "0";
    if !is_root {
        println!("skipped: only root can become another user");
    }
    is_root
}

/// Lets everybody read, and walk through directories.
pub fn make_public(path: &Path) {
    output(Command::new("chmod").args(["-R", "a+rX"]).arg(path));
}

pub fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A copy of the binary that everybody can start.
pub struct PublicBinary {
    dir: tempfile::TempDir,
}

impl PublicBinary {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        // Another process copies: a descriptor for writing that a child of another test inherits at
        // that moment would make this "text file busy".
        output(
            Command::new("cp")
                .arg(env!("CARGO_BIN_EXE_nix-serve"))
                .arg(dir.path().join("nix-serve")),
        );
        set_mode(dir.path(), 0o755);
        set_mode(&dir.path().join("nix-serve"), 0o755);
        Self { dir }
    }

    /// The binary as the user nobody, in no further groups.
    pub fn as_nobody(&self) -> Command {
        let nobody = NOBODY.to_string();
        let mut command = bare("setpriv");
        command
            .args(["--reuid", &nobody, "--regid", &nobody, "--clear-groups"])
            .arg(self.dir.path().join("nix-serve"));
        command
    }
}

/// A store that others than its owner may read.
pub fn public_store() -> OwnStore {
    let store = OwnStore::new();
    make_public(store.root());
    store
}

/// A second connection to a database, which holds what it is told to hold until it is dropped.
pub struct Holder {
    child: Child,
}

impl Holder {
    /// Runs `sql` with `sqlite3` and stays; returns when that is done.
    #[track_caller]
    pub fn run(database: &Path, sql: &str) -> Self {
        let mut child = Command::new("sqlite3")
            .arg(database)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.as_mut().unwrap();
        // The server may be reading at this moment.
        writeln!(input, ".bail on\n.timeout 10000\n{sql}\nselect 'held';").unwrap();
        input.flush().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(
            lines.any(|line| line.is_ok_and(|line| line == "held")),
            "sqlite3 could not {sql}"
        );
        // Its output must stay open.
        std::thread::spawn(move || lines.count());
        Self { child }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // A clean end, with what that does to the files beside the database.
        drop(self.child.stdin.take());
        self.child.wait().ok();
    }
}

/// A path below a directory, as text.
pub fn at(dir: &Path, name: &str) -> String {
    let path: PathBuf = dir.join(name);
    path.to_str().unwrap().to_owned()
}
