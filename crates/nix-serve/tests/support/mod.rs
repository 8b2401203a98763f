//! The built binary, a real store and real clients, for tests that drive them from outside.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

pub mod client;
pub mod connection;
pub mod daemon;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The longest anything may take before a test fails rather than hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `condition` holds; fails after [`PATIENCE`].
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The sample store that `make test` makes before the tests: a chroot store, never written to.
pub fn sample_root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.samovar/sample");
    let root = root.canonicalize();
    root.expect(
        "there is no sample store: run `cargo run -p xtask -- sample-store .samovar/sample`",
    )
}

/// A store path of the sample, by its name in `sample.json`.
#[track_caller]
pub fn sample(key: &str) -> String {
    let manifest = std::fs::read_to_string(sample_root().join("sample.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    manifest[key]
        .as_str()
        .unwrap_or_else(|| panic!("no {key} in the sample"))
        .to_owned()
}

/// A list of store paths of the sample.
pub fn sample_list(key: &str) -> Vec<String> {
    let manifest = std::fs::read_to_string(sample_root().join("sample.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    let list = manifest[key]
        .as_array()
        .unwrap_or_else(|| panic!("no list {key} in the sample"));
    list.iter()
        .map(|path| path.as_str().unwrap().to_owned())
        .collect()
}

/// The hash part of a store path.
pub fn hash_part(store_path: &str) -> &str {
    let base_name = store_path.rsplit('/').next().unwrap();
    &base_name[..32]
}

/// A fresh, empty store of a test's own, with the real Nix to change it.
pub struct OwnStore {
    pub dir: tempfile::TempDir,
}

impl OwnStore {
    pub fn new() -> Self {
        let store = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        store.run("nix-store", &["--init"]);
        store
    }

    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    /// Where a store path really lies.
    pub fn real(&self, store_path: &str) -> PathBuf {
        self.root().join(store_path.trim_start_matches('/'))
    }

    pub fn database(&self) -> PathBuf {
        self.root().join("nix/var/nix/db/db.sqlite")
    }

    /// Runs one of Nix's programs on this store; returns its standard output.
    #[track_caller]
    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        let mut command = nix(program, self.root());
        output(
            command
                .args(["--store", self.root().to_str().unwrap()])
                .args(arguments),
        )
    }

    /// Adds a file or directory under its own name; returns its store path.
    #[track_caller]
    pub fn add(&self, path: &Path) -> String {
        self.run("nix-store", &["--add", path.to_str().unwrap()])
            .trim()
            .to_owned()
    }

    /// Adds a file of this name and content.
    #[track_caller]
    pub fn add_file(&self, name: &str, content: &[u8]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        self.add(&path)
    }

    /// Registers a path whose files are in place, as Nix would one it has just made.
    #[track_caller]
    pub fn register(&self, store_path: &str) {
        let dump = nix("nix-store", self.root())
            .arg("--dump")
            .arg(self.real(store_path))
            .output()
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let nar = dir.path().join("nar");
        std::fs::write(&nar, &dump.stdout).unwrap();
        let mut hash = nix("nix", self.root());
        hash.args(["hash", "file", "--base16", "--type", "sha256"]);
        let hash = output(hash.arg(&nar));
        let mut load = nix("nix-store", self.root());
        load.arg("--store").arg(self.root()).arg("--load-db");
        let mut load = load.stdin(Stdio::piped()).spawn().unwrap();
        let rows = format!(
            "{store_path}\n{}\n{}\n\n0\n",
            hash.trim(),
            dump.stdout.len()
        );
        let mut stdin = load.stdin.take().unwrap();
        stdin.write_all(rows.as_bytes()).unwrap();
        drop(stdin);
        assert!(load.wait().unwrap().success());
    }
}

/// One of Nix's programs, with nothing of this machine's own configuration and caches.
pub fn nix(program: &str, home: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("NIX_") {
            command.env_remove(name);
        }
    }
    command
        .env("HOME", home)
        .env("XDG_CACHE_HOME", home.join("cache"))
        .env("XDG_CONFIG_HOME", home.join("config"))
        .env("XDG_DATA_HOME", home.join("data"))
        .env("NIX_CONF_DIR", home.join("no-conf"))
        .env(
            "NIX_CONFIG",
            "experimental-features = nix-command\nbuild-users-group =\nsandbox = false\n",
        )
        .stdin(Stdio::null());
    command
}

/// Runs to the end and expects success; returns standard output.
#[track_caller]
pub fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Makes a key pair with the real Nix; returns the secret file and the public key's text.
pub fn key_pair(dir: &Path, name: &str) -> (PathBuf, String) {
    let (secret, public) = (
        dir.join(format!("{name}.secret")),
        dir.join(format!("{name}.public")),
    );
    let mut command = nix("nix-store", dir);
    command.arg("--store").arg(dir.join("unused-store"));
    command
        .args(["--generate-binary-cache-key", name])
        .arg(&secret)
        .arg(&public);
    output(&mut command);
    (
        secret,
        std::fs::read_to_string(public).unwrap().trim().to_owned(),
    )
}

/// A command without the environment of whoever runs the tests.
pub fn bare(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("NIX_") || name.starts_with("PLACK_") || name.starts_with("LISTEN_") {
            command.env_remove(name);
        }
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// The binary under test.
pub fn nix_serve() -> Command {
    bare(env!("CARGO_BIN_EXE_nix-serve"))
}

/// The same with the sample store.
pub fn of_sample() -> Command {
    let mut command = nix_serve();
    command.args(["--store", &local(&sample_root())]);
    command
}

/// A running server; killed when dropped.
pub struct ServerProcess {
    pub child: Child,
    /// Of its first TCP listener.
    pub addr: SocketAddr,
    lines: Receiver<String>,
    /// Everything it wrote to standard error so far.
    pub log: Vec<String>,
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

    /// Starts `command` as it is; it has to listen on a TCP address.
    #[track_caller]
    pub fn start_listening(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut server = Self {
            child,
            addr: ([0, 0, 0, 0], 0).into(),
            lines,
            log: Vec::new(),
        };
        let line = server.wait_for_line(" on http");
        let address = line.split("://").nth(1).unwrap();
        server.addr = address.split('/').next().unwrap().parse().unwrap();
        server
    }

    /// Waits for a line with `part` on standard error.
    #[track_caller]
    pub fn wait_for_line(&mut self, part: &str) -> String {
        let start = Instant::now();
        loop {
            let left = PATIENCE.saturating_sub(start.elapsed());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("no line with {part:?} in {:#?}", self.log);
            };
            self.log.push(line.clone());
            if line.contains(part) {
                return line;
            }
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    pub fn signal(&self, name: &str) {
        output(Command::new("kill").args(["-s", name, &self.child.id().to_string()]));
    }

    /// Waits for the end; returns the exit code.
    #[track_caller]
    pub fn wait(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends it in good order; returns everything it ever wrote to standard error.
    #[track_caller]
    pub fn whole_log(mut self) -> Vec<String> {
        self.signal("TERM");
        self.wait();
        let start = Instant::now();
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            assert!(start.elapsed() < PATIENCE, "the log does not end");
            self.log.push(line);
        }
        std::mem::take(&mut self.log)
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// One request on a connection of its own.
    #[track_caller]
    pub fn get(&self, path: &str) -> Answer {
        self.request("GET", path, &[])
    }

    #[track_caller]
    pub fn request(&self, method: &str, path: &str, fields: &[&str]) -> Answer {
        let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n");
        raw(self.addr, request.as_bytes())
    }

    /// The narinfo of a store path.
    #[track_caller]
    pub fn narinfo(&self, store_path: &str) -> Answer {
        self.get(&format!("/{}.narinfo", hash_part(store_path)))
    }

    /// The URL path of a store path's NAR, from its narinfo.
    #[track_caller]
    pub fn nar_url(&self, store_path: &str) -> String {
        let answer = self.narinfo(store_path);
        assert_eq!(answer.status, 200, "{store_path}: {}", answer.text());
        let text = answer.text();
        let url = text
            .lines()
            .find_map(|line| line.strip_prefix("URL: "))
            .unwrap();
        format!("/{url}")
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The store URI of a chroot store.
pub fn local(root: &Path) -> String {
    format!("local?root={}", root.display())
}

/// An answer, read to the end of the stream.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
    /// Whether the stream ended well and the body is as long as announced.
    pub is_complete: bool,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Sends bytes on a new connection and reads until it ends; decodes chunks.
#[track_caller]
pub fn raw(addr: SocketAddr, request: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request).unwrap();
    let mut bytes = Vec::new();
    let ended_well = stream.read_to_end(&mut bytes).is_ok();
    let head_len = bytes
        .windows(4)
        .position(|part| part == b"\r\n\r\n")
        .expect("a head")
        + 4;
    let head = String::from_utf8(bytes[..head_len].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut answer = Answer {
        status,
        head,
        body: bytes[head_len..].to_vec(),
        is_complete: ended_well,
    };
    if answer.header("transfer-encoding") == Some("chunked") {
        let (body, is_whole) = dechunk(&answer.body);
        answer.body = body;
        answer.is_complete &= is_whole;
    } else if let Some(len) = answer.header("content-length")
        && !request.starts_with(b"HEAD")
    {
        answer.is_complete &= answer.body.len() == len.parse::<usize>().unwrap();
    }
    answer
}

fn dechunk(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    while let Some(at) = rest.windows(2).position(|pair| pair == b"\r\n") {
        let line = std::str::from_utf8(&rest[..at]).unwrap();
        let len = usize::from_str_radix(line, 16).unwrap();
        let Some(data) = rest.get(at + 2..at + 2 + len) else {
            break;
        };
        body.extend_from_slice(data);
        if len == 0 {
            return (body, true);
        }
        rest = rest.get(at + 4 + len..).unwrap_or_default();
    }
    (body, false)
}
