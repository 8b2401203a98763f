//! USR2 starts a newer executable, which replaces the server under load without a failed request. A
//! new process that does not start changes nothing.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;
mod support_process;

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use rcgen::{CertificateParams, KeyPair};
use support::client::Client;
use support::{
    OwnStore, PATIENCE, eventually, hash_part, key_pair, local, nix_serve, of_sample, output,
    sample, sample_root,
};
use support_process::{Connection, NOBODY, Process, at, ends, is_root, set_mode, signal};

const INFO: &str = "/nix-cache-info";
/// Length of a file, bytes: more than the socket buffers hold, so that a download stays in progress
/// until the client reads it.
const BIG_LEN: usize = 48 << 20;

/// A server that is upgraded several times. Its PID file names the current process.
struct Upgraded {
    dir: tempfile::TempDir,
    /// The first process. Later ones write to the same standard error.
    first: Process,
    pids: Vec<u32>,
}

impl Upgraded {
    fn start(arguments: &[&str]) -> (Self, SocketAddr) {
        let mut upgraded = Self::spawn(&mut sample_server(), arguments);
        let addr = upgraded.first.wait_for_address();
        upgraded.settle();
        (upgraded, addr)
    }

    /// Starts a copy of the binary, which a test can replace.
    fn spawn(command: &mut Command, arguments: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        set_mode(dir.path(), 0o777);
        let copy = dir.path().join("nix-serve");
        copy_binary(&copy);
        let mut copied = Command::new(&copy);
        copied.args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => copied.env(name, value),
                None => copied.env_remove(name),
            };
        }
        copied.args(["--pid", &at(dir.path(), "pid")]);
        copied.args(arguments).stdin(std::process::Stdio::null());
        let first = Process::spawn(&mut copied);
        Self {
            dir,
            first,
            pids: Vec::new(),
        }
    }

    fn executable(&self) -> PathBuf {
        self.dir.path().join("nix-serve")
    }

    fn settle(&mut self) {
        eventually("there is a pid file", || self.named().is_some());
        self.pids.push(self.named().unwrap());
    }

    fn named(&self) -> Option<u32> {
        let text = fs::read_to_string(self.dir.path().join("pid")).ok()?;
        text.trim().parse().ok()
    }

    /// Returns the PID of the serving process.
    fn pid(&self) -> u32 {
        *self.pids.last().unwrap()
    }

    fn upgrade(&mut self) {
        let old = self.pid();
        signal(old, "USR2");
        eventually("another process has taken over", || {
            self.named().is_some_and(|pid| pid != old)
        });
        self.pids.push(self.named().unwrap());
    }

    /// Sends USR2 for an upgrade that must fail. Returns the log line that reports the failure.
    #[track_caller]
    fn fails_to_upgrade(&mut self) -> String {
        signal(self.pid(), "USR2");
        let line = self.first.wait_for("this process continues to serve");
        assert_eq!(self.named(), Some(self.pid()));
        line
    }

    /// Stops the current process. All others must have ended by then.
    fn end(mut self) {
        let last = self.pid();
        signal(last, "TERM");
        for pid in self.pids.clone() {
            if pid == self.first.child.id() {
                assert_eq!(self.first.wait(), Some(0));
            } else {
                eventually("it ends", || !runs(pid));
            }
        }
        assert_eq!(self.named(), None, "the pid file is gone");
    }
}

impl Drop for Upgraded {
    fn drop(&mut self) {
        for pid in self.pids.iter().filter(|pid| runs(**pid)) {
            let mut kill = Command::new("kill");
            kill.args(["-s", "KILL", &pid.to_string()]).status().ok();
        }
    }
}

/// Copies the binary in another process: if a child of another test inherited a descriptor opened
/// for writing, execution would fail with "text file busy".
fn copy_binary(to: &Path) {
    let beside = to.with_extension("new");
    output(
        Command::new("cp")
            .arg(env!("CARGO_BIN_EXE_nix-serve"))
            .arg(&beside),
    );
    fs::rename(beside, to).unwrap();
}

fn write_program(to: &Path, text: &str) {
    let beside = to.with_extension("new");
    let mut command = Command::new("sh");
    let script = "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\"";
    output(command.args(["-c", script]).arg(&beside).arg(text));
    fs::rename(beside, to).unwrap();
}

/// Returns whether the process exists and is not a zombie.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
    !state.is_empty() && !state.starts_with(['Z', 'X'])
}

fn sample_server() -> Command {
    let mut command = of_sample();
    command.args(["--listen", "127.0.0.1:0"]);
    command
}

/// Counters of the clients' actions.
#[derive(Default)]
struct Tally {
    answers: AtomicU64,
    /// Number of requests sent again on a new connection, because the server had closed a used
    /// connection before the first byte of the response. RFC 9112, 9.3.1, requires clients to do
    /// so.
    again: AtomicU64,
    is_over: AtomicBool,
}

impl Tally {
    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::SeqCst)
    }

    fn add(&self) {
        self.answers.fetch_add(1, Ordering::SeqCst);
    }

    /// Repeats requests on one connection until it is closed, as real clients do.
    fn on_kept_connections(&self, addr: SocketAddr, path: &str) {
        let mut kept: Option<(BufReader<TcpStream>, u64)> = None;
        while self.goes_on() {
            let (mut stream, count) = kept.take().unwrap_or_else(|| (open(addr), 0));
            match exchange(&mut stream, path, "") {
                Ok(keeps) => {
                    self.add();
                    kept = keeps.then_some((stream, count + 1));
                }
                Err(Broken::BeforeAnswer(_)) if count > 0 => {
                    self.again.fetch_add(1, Ordering::SeqCst);
                }
                Err(error) => panic!("request {count} of a connection: {error:?}"),
            }
        }
    }

    fn on_new_connections(&self, addr: SocketAddr, path: &str) {
        while self.goes_on() {
            exchange(&mut open(addr), path, "Connection: close\r\n").unwrap();
            self.add();
        }
    }
}

#[derive(Debug)]
#[expect(dead_code, reason = "for the message of a failed test")]
enum Broken {
    BeforeAnswer(io::Error),
    InAnswer(io::Error),
}

fn open(addr: SocketAddr) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    BufReader::new(stream)
}

/// Sends one request and checks for a complete 200; returns whether the connection stays open.
fn exchange(stream: &mut BufReader<TcpStream>, path: &str, fields: &str) -> Result<bool, Broken> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    let sent = stream.get_mut().write_all(request.as_bytes());
    sent.map_err(Broken::BeforeAnswer)?;
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let broken = match head.is_empty() {
            true => Broken::BeforeAnswer,
            false => Broken::InAnswer,
        };
        if stream.read_line(&mut head).map_err(broken)? == 0 {
            return Err(broken(io::ErrorKind::UnexpectedEof.into()));
        }
    }
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let len = head.split("Content-Length: ").nth(1).unwrap();
    let len = len.lines().next().unwrap().parse().unwrap();
    let mut body = vec![0; len];
    stream.read_exact(&mut body).map_err(Broken::InAnswer)?;
    Ok(!head.contains("Connection: close"))
}

/// Returns the number of upgrades; an environment variable raises it.
fn upgrade_count() -> u32 {
    let number = std::env::var("SAMOVAR_UPGRADES").ok();
    number.map_or(20, |text| text.parse().unwrap())
}

#[test]
fn no_request_fails_while_the_server_is_upgraded_again_and_again() {
    let tls = tempfile::tempdir().unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = at(tls.path(), "certificate");
    fs::write(&certificate, params.self_signed(&key).unwrap().pem()).unwrap();
    let key_file = at(tls.path(), "key");
    fs::write(&key_file, key.serialize_pem()).unwrap();
    set_mode(key_file.as_ref(), 0o600);
    let socket = at(tls.path(), "socket");
    let (secret, public) = key_pair(tls.path(), "ours-1");

    let store = OwnStore::new();
    let big = store.add_file("big", &vec![1; BIG_LEN]);
    let small = store.add_file("small", b"small");
    let mut command = nix_serve();
    command.args(["--store", &local(store.root())]);
    command.args(["--listen", "127.0.0.1:0:ssl", "--listen", "[::1]:0"]);
    command.args(["--listen", &socket]);
    command.args(["--ssl-cert", &certificate, "--ssl-key", &key_file]);
    // Some downloads make no progress during all upgrades, which take long on a busy machine.
    command.args(["--timeout", "600"]);
    command.env("NIX_SECRET_KEY_FILE", secret);
    let mut upgraded = Upgraded::spawn(&mut command, &[]);
    let line = upgraded.first.wait_for("on https://");
    let addr = upgraded.first.wait_for_address();
    let port = line
        .split("on https://127.0.0.1:")
        .nth(1)
        .unwrap()
        .to_owned();
    upgraded.settle();

    let (narinfo, nar) = (
        format!("/{}.narinfo", hash_part(&small)),
        format!("/nar/{}.nar", hash_part(&small)),
    );
    let curl = || {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--fail", "--cacert", &certificate, "-o", "/dev/null"]);
        curl.args(["-w", "%{http_code} %{num_connects} %{errormsg}\\n"]);
        curl.arg(format!("https://localhost:{port}{narinfo}?[1-50]"));
        curl
    };
    let tally = Tally::default();
    let start = Instant::now();
    let (over_tls, copies) = std::thread::scope(|scope| {
        scope.spawn(|| tally.on_kept_connections(addr, INFO));
        scope.spawn(|| tally.on_kept_connections(addr, &narinfo));
        scope.spawn(|| tally.on_new_connections(addr, &narinfo));
        scope.spawn(|| tally.on_new_connections(addr, &nar));
        let over_tls = ["--http1.1", "--http2"].map(|version| {
            let (curl, tally) = (&curl, &tally);
            scope.spawn(move || {
                let mut count = 0;
                while tally.goes_on() {
                    let codes = output(curl().arg(version));
                    assert!(
                        codes.lines().all(|line| line.starts_with("200 ")),
                        "{codes}"
                    );
                    count += codes.lines().count();
                }
                count
            })
        });
        let copies = scope.spawn(|| {
            let mut count = 0;
            while tally.goes_on() {
                let client = Client::new();
                let url = format!("http://{addr}");
                output(&mut client.copy(&url, &public, std::slice::from_ref(&small)));
                count += 1;
            }
            count
        });
        // One download starts under each of the first servers, and ends after all these have been
        // replaced.
        let mut downloads = Vec::new();
        for _ in 0..upgrade_count() {
            if downloads.len() < 3 {
                let mut download = Connection::connect(addr);
                download.send_request("GET", &format!("/nar/{}.nar", hash_part(&big)), &[]);
                assert!(
                    download
                        .begin_reading(false)
                        .head
                        .starts_with("HTTP/1.1 200 ")
                );
                downloads.push(download);
            }
            upgraded.upgrade();
            let so_far = tally.answers.load(Ordering::SeqCst);
            eventually("some answers", || {
                tally.answers.load(Ordering::SeqCst) > so_far + 20
            });
            let mut local = Connection::unix(socket.as_ref());
            assert_eq!(local.get(INFO).status, 200);
        }
        tally.is_over.store(true, Ordering::SeqCst);
        for mut download in downloads {
            let (bytes, is_orderly) = download.rest();
            assert!(bytes.len() > BIG_LEN && is_orderly, "{}", bytes.len());
        }
        let over_tls: usize = over_tls.into_iter().map(|one| one.join().unwrap()).sum();
        (over_tls, copies.join().unwrap())
    });
    println!(
        "{} upgrades in {:?}: {} answers without TLS, {} requests sent again; {over_tls} with TLS; \
         {copies} copies by Nix; none failed",
        upgrade_count(),
        start.elapsed(),
        tally.answers.load(Ordering::SeqCst),
        tally.again.load(Ordering::SeqCst),
    );
    assert!(over_tls > 0 && copies > 0);
    assert!(Path::new(&socket).exists());
    upgraded.end();
    assert!(!Path::new(&socket).exists());
}

#[test]
fn what_does_not_start_leaves_the_old_one_in_charge() {
    let (mut upgraded, addr) = Upgraded::start(&[]);
    let executable = upgraded.executable();
    let mut kept = Connection::connect(addr);
    let mut check = |upgraded: &mut Upgraded, part: &str| {
        let line = upgraded.fails_to_upgrade();
        assert!(line.contains(part), "{line}");
        assert_eq!(kept.get(INFO).status, 200);
        assert_eq!(Connection::connect(addr).get(INFO).status, 200);
    };
    fs::remove_file(&executable).unwrap();
    check(&mut upgraded, "No such file");
    write_program(&executable, "\u{7f}garbage");
    check(&mut upgraded, "format");
    write_program(&executable, "#!/bin/sh\necho it is broken >&2; exit 3\n");
    check(&mut upgraded, "exit code 3");
    assert_eq!(upgraded.first.count("it is broken"), 1);
    // A version that does not support upgrades tries to bind the address, and finds it in use.
    write_program(
        &executable,
        &format!(
            "#!/bin/sh\nunset NIX_SERVE_PREDECESSOR\nexec {} --store {} --listen {addr}\n",
            env!("CARGO_BIN_EXE_nix-serve"),
            local(&sample_root())
        ),
    );
    check(&mut upgraded, "exit code 1");
    assert_eq!(upgraded.first.count("another server listens there"), 1);
    // A version with an incompatible handover protocol fails.
    write_program(
        &executable,
        &format!(
            "#!/bin/sh\nNIX_SERVE_PREDECESSOR=\"$PPID ?\" exec {} --store {}\n",
            env!("CARGO_BIN_EXE_nix-serve"),
            local(&sample_root())
        ),
    );
    check(&mut upgraded, "exit code 1");
    assert_eq!(upgraded.first.count("is of an incompatible version"), 1);
    // Replace the executable while the program runs.
    copy_binary(&executable);
    upgraded.upgrade();
    assert_eq!(Connection::connect(addr).get(INFO).status, 200);
    upgraded.end();
}

/// A new process that becomes ready just too late does not serve, and the PID file still names the
/// old process.
#[test]
fn what_becomes_ready_too_late_changes_nothing() {
    let (mut upgraded, addr) = Upgraded::start(&[]);
    let real = at(upgraded.dir.path(), "real");
    fs::rename(upgraded.executable(), &real).unwrap();
    let script = format!("#!/bin/sh\nsleep 10.4\nexec {real} \"$@\"\n");
    write_program(&upgraded.executable(), &script);
    let line = upgraded.fails_to_upgrade();
    assert!(line.contains("was not ready within 10 seconds"), "{line}");
    assert_eq!(upgraded.first.count("serving"), 1);
    assert_eq!(Connection::connect(addr).get(INFO).status, 200);
    signal(upgraded.pid(), "TERM");
    assert_eq!(upgraded.first.wait(), Some(0));
    assert_eq!(upgraded.named(), None);
}

/// A new process that neither becomes ready nor fails is killed after ten seconds.
#[test]
fn what_never_becomes_ready_is_given_up() {
    let (mut upgraded, addr) = Upgraded::start(&[]);
    let pid = at(upgraded.dir.path(), "child");
    write_program(
        &upgraded.executable(),
        &format!("#!/bin/sh\necho $$ >{pid}.new; mv {pid}.new {pid}; exec sleep 100\n"),
    );
    let start = Instant::now();
    signal(upgraded.pid(), "USR2");
    // A second USR2 during an upgrade has no effect.
    upgraded.first.wait_for("starting process");
    signal(upgraded.pid(), "USR2");
    let line = upgraded.first.wait_for("this process continues to serve");
    assert!(line.contains("was not ready within 10 seconds"), "{line}");
    assert!(start.elapsed() >= samovar_server::server::START_TIME);
    assert_eq!(Connection::connect(addr).get(INFO).status, 200);
    let child = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    assert!(!runs(child));
    assert_eq!(upgraded.first.count("starting process"), 1);

    // TERM during an upgrade also ends the new process.
    fs::remove_file(&pid).unwrap();
    signal(upgraded.pid(), "USR2");
    eventually("it starts", || Path::new(&pid).exists());
    let child = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    signal(upgraded.pid(), "TERM");
    assert_eq!(upgraded.first.wait(), Some(0));
    eventually("it is ended", || !runs(child));
    assert_eq!(upgraded.named(), None);
}

/// A server that has switched its user can be upgraded: the new process needs no more than that
/// user's rights.
#[test]
fn another_user_upgrades_too() {
    if !is_root() {
        return;
    }
    let keys = tempfile::tempdir().unwrap();
    set_mode(keys.path(), 0o755);
    let (secret, _) = key_pair(keys.path(), "ours-1");
    set_mode(&secret, 0o600);
    let socket = at(keys.path(), "socket");
    let mut command = sample_server();
    // The directory is that of root, and the log a file of the user.
    let log = at(keys.path(), "log");
    command.args(["--user", "nobody", "--listen", &socket]);
    command.args(["--access-log", &log]);
    command.env("NIX_SECRET_KEY_FILE", &secret);
    let mut upgraded = Upgraded::spawn(&mut command, &[]);
    let addr = upgraded.first.wait_for_address();
    upgraded.settle();
    let line = upgraded.fails_to_upgrade();
    assert!(line.contains("exit code 1"), "{line}");
    assert_eq!(upgraded.first.count("is not readable for this user"), 1);
    std::os::unix::fs::chown(&secret, Some(NOBODY), None).unwrap();
    upgraded.upgrade();
    assert_eq!(upgraded.first.count("cannot open"), 0);
    let status = fs::read_to_string(format!("/proc/{}/status", upgraded.pid())).unwrap();
    assert!(
        status.contains("\nUid:\t65534\t65534\t65534\t65534\n"),
        "{status}"
    );
    let narinfo = format!("/{}.narinfo", hash_part(&sample("tree")));
    assert!(
        Connection::connect(addr)
            .get(&narinfo)
            .text()
            .contains("Sig: ours-1:")
    );
    assert_eq!(Connection::unix(socket.as_ref()).get(INFO).status, 200);
    upgraded.end();
}

#[test]
fn in_the_background() {
    let dir = tempfile::tempdir().unwrap();
    let log = at(dir.path(), "log");
    let socket = at(dir.path(), "socket");
    let mut command = nix_serve();
    command.args(["--store", &local(&sample_root()), "--listen", &socket, "-D"]);
    let mut upgraded = Upgraded::spawn(&mut command, &["--error-log", &log]);
    upgraded.settle();
    assert_eq!(upgraded.first.wait(), Some(0));
    eventually("it serves", || UnixStream::connect(&socket).is_ok());
    // Like the first process, the new one is a session leader.
    upgraded.upgrade();
    let stat = fs::read_to_string(format!("/proc/{}/stat", upgraded.pid())).unwrap();
    let session = stat.rsplit(')').next().unwrap().split_whitespace().nth(3);
    assert_eq!(session.unwrap(), upgraded.pid().to_string());
    assert_eq!(Connection::unix(socket.as_ref()).get(INFO).status, 200);
    signal(upgraded.pid(), "TERM");
    eventually("it ends", || upgraded.named().is_none());
    // The previous process, which is no child of this one, logs this at some time.
    eventually("the upgrade is logged", || {
        fs::read_to_string(&log).unwrap().contains("has taken over")
    });
    assert!(!Path::new(&socket).exists());
}

/// Another server that uses the PID file is refused after an upgrade too.
#[test]
fn a_third_one_is_still_refused() {
    let (mut upgraded, _) = Upgraded::start(&[]);
    upgraded.upgrade();
    let mut command = sample_server();
    let ending = ends(command.args(["--pid", &at(upgraded.dir.path(), "pid")]));
    assert_eq!(ending.code, Some(1), "{ending:?}");
    assert!(
        ending.errors.contains("a server that is running"),
        "{ending:?}"
    );
    let names = fs::read_dir(upgraded.dir.path()).unwrap();
    assert_eq!(names.count(), 2, "the executable and the pid file");
    upgraded.end();
}

/// The service manager learns the PID of the new process from the old one, which it trusts, and
/// only once the new process serves.
#[test]
fn the_service_manager_is_told_who_serves() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let next = || {
        let mut buffer = [0; 4096];
        let len = manager.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..len].to_vec()).unwrap()
    };
    let mut upgraded = Upgraded::spawn(sample_server().env("NOTIFY_SOCKET", &path), &[]);
    upgraded.settle();
    assert_eq!(next().trim(), "READY=1");
    upgraded.upgrade();
    assert_eq!(next().trim(), format!("MAINPID={}", upgraded.pid()));
    upgraded.end();
    assert_eq!(next().trim(), "STOPPING=1");
}

/// A left-over environment variable of an earlier upgrade does not start a handover.
#[test]
fn a_left_over_variable_is_nothing() {
    let mut command = sample_server();
    let variable = format!("{} p", std::process::id() + 1);
    command.env("NIX_SERVE_PREDECESSOR", variable);
    let (_server, addr) = Process::serving(&mut command);
    assert_eq!(Connection::connect(addr).get(INFO).status, 200);
    let path = format!("/{}.narinfo", hash_part(&sample("tree")));
    assert_eq!(Connection::connect(addr).get(&path).status, 200);
}
