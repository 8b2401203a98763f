//! A server without responses in progress stops at once. Otherwise it finishes them first. A
//! truncated response cannot be mistaken for a complete one.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_process;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use samovar_server::server::STOP_TIME;
use support::{OwnStore, PATIENCE, eventually, hash_part, local, nix_serve};
use support_process::{Connection, Process, serve_sample, signal};
use testkit::procfs::stat_fields;

/// Length of a file, bytes: more than the socket buffers hold, so that a download stays in progress
/// until the client reads it.
const BIG_LEN: usize = 48 << 20;
/// Maximum time for "at once" on a busy machine, less than the ten seconds that downloads get.
const AT_ONCE: Duration = Duration::from_secs(9);

/// A server of a store with one big file.
struct Big {
    _store: OwnStore,
    server: Process,
    addr: SocketAddr,
    url: String,
}

impl Big {
    fn serve() -> Self {
        Self::serve_by(nix_serve())
    }

    fn serve_by(mut command: Command) -> Self {
        let store = OwnStore::new();
        let path = store.add_file("big", &vec![1; BIG_LEN]);
        command.args(["--listen", "127.0.0.1:0", "--store", &local(store.root())]);
        let (server, addr) = Process::serving(&mut command);
        Self {
            _store: store,
            server,
            addr,
            url: format!("/nar/{}.nar", hash_part(&path)),
        }
    }

    /// Starts a download and reads only some bytes of it.
    fn start_download(&self) -> Download {
        let mut connection = Connection::connect(self.addr);
        connection.send_request("GET", &self.url, &[]);
        let head = connection.begin_reading(false).head;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let len = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "));
        let len = len.unwrap().parse().unwrap();
        let first = connection.take_bytes(1 << 20);
        Download {
            connection,
            len,
            read: first.len(),
        }
    }
}

struct Download {
    connection: Connection,
    len: usize,
    read: usize,
}

impl Download {
    /// Reads to the end; returns whether the body was complete.
    fn finish(mut self) -> bool {
        let (rest, is_orderly) = self.connection.rest();
        self.read += rest.len();
        let is_whole = self.read == self.len;
        assert!(self.read <= self.len);
        // A truncated body is shorter than announced.
        assert!(is_whole || self.read < self.len);
        is_whole && is_orderly
    }
}

/// Waits until the server accepts no more connections.
#[track_caller]
fn stops_listening(addr: SocketAddr) {
    eventually("it stops listening", || TcpStream::connect(addr).is_err());
}

/// A server without responses in progress stops at once.
#[test]
fn at_once_when_nobody_waits_for_an_answer() {
    for signal in ["TERM", "INT", "QUIT"] {
        let (mut server, addr) = serve_sample(&[]);
        let mut kept = Connection::connect(addr);
        assert_eq!(kept.get("/nix-cache-info").status, 200);
        let mut fresh = Connection::connect(addr);
        let start = Instant::now();
        server.signal(signal);
        assert_eq!(server.wait(), Some(0), "{signal}");
        assert!(start.elapsed() < AT_ONCE, "{signal}: {:?}", start.elapsed());
        kept.assert_closed();
        fresh.assert_closed();
        assert!(TcpStream::connect(addr).is_err());
        assert_eq!(server.count("were aborted"), 0);
    }
}

#[test]
fn a_download_under_way_is_finished() {
    for signal in ["TERM", "INT", "QUIT"] {
        let mut big = Big::serve();
        let download = big.start_download();
        big.server.signal(signal);
        big.server.wait_for("stopping: ");
        stops_listening(big.addr);
        assert!(big.server.is_alive());
        assert!(download.finish(), "{signal}");
        assert_eq!(big.server.wait(), Some(0), "{signal}");
        assert_eq!(big.server.count("were aborted"), 0);
    }
}

/// If a client stops reading, the server ends before a service manager would kill it, and logs the
/// aborted download.
#[test]
fn a_download_that_stands_still_is_cut_when_time_is_up() {
    let mut big = Big::serve();
    let download = big.start_download();
    let start = Instant::now();
    big.server.signal("TERM");
    assert_eq!(big.server.wait(), Some(0));
    let waited = start.elapsed();
    assert!(waited >= STOP_TIME, "{waited:?}");
    assert!(!download.finish());
}

/// Until systemd has started a service again that binds its own sockets, clients are refused. So it
/// gives a slow download less time.
#[test]
fn a_service_that_binds_its_own_sockets_ends_sooner() {
    let mut big = Big::serve_by(as_service());
    let download = big.start_download();
    let start = Instant::now();
    big.server.signal("TERM");
    assert_eq!(big.server.wait(), Some(0));
    assert_ends_sooner(start);
    assert!(!download.finish());
}

/// The process that has replaced another one is the main process of the service, too; and the old
/// one, which finishes its downloads, does not delay the restart, at which systemd stops both.
#[test]
fn a_service_ends_sooner_also_after_an_upgrade() {
    let mut big = Big::serve_by(as_service());
    let old_download = big.start_download();
    big.server.signal("USR2");
    let line = big.server.wait_for("has taken over");
    let mut words = line.split(' ').skip_while(|word| *word != "process");
    let new = words.nth(1).unwrap().parse().unwrap();
    let new_download = big.start_download();
    let start = Instant::now();
    signal(new, "TERM");
    big.server.signal("TERM");
    assert_eq!(big.server.wait(), Some(0));
    assert_ends_sooner(start);
    eventually("the new process ends", || !runs(new));
    assert_ends_sooner(start);
    assert!(!old_download.finish());
    assert!(!new_download.finish());
}

#[track_caller]
fn assert_ends_sooner(start: Instant) {
    let waited = start.elapsed();
    assert!(waited >= Duration::from_secs(2), "{waited:?}");
    assert!(waited < AT_ONCE, "{waited:?}");
}

/// Returns whether a process runs. One that has ended may be a zombie.
fn runs(pid: u32) -> bool {
    stat_fields(pid).is_some_and(|fields| fields[0] != "Z")
}

/// Returns a command of a server that seems to be started by systemd.
fn as_service() -> Command {
    let program = nix_serve();
    let mut command = Command::new("sh");
    // systemd sets this variable to the number of the process that it starts.
    let script = "SYSTEMD_EXEC_PID=$$ exec \"$@\"";
    command
        .args(["-c", script, "sh"])
        .arg(program.get_program());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.args(program.get_args());
    command
}

#[test]
fn the_second_signal_cuts_at_once() {
    for signals in [["TERM", "TERM"], ["INT", "INT"], ["TERM", "INT"]] {
        let mut big = Big::serve();
        let download = big.start_download();
        big.server.signal(signals[0]);
        big.server.wait_for("stopping: ");
        stops_listening(big.addr);
        let start = Instant::now();
        big.server.signal(signals[1]);
        assert_eq!(big.server.wait(), Some(0), "{signals:?}");
        assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
        assert!(!download.finish(), "{signals:?}");
    }
}

/// After QUIT the server waits for downloads without a limit; a later TERM sets one.
#[test]
fn a_draining_server_can_be_hurried() {
    let mut big = Big::serve();
    let download = big.start_download();
    big.server.signal("QUIT");
    big.server.wait_for("stopping: ");
    stops_listening(big.addr);
    big.server.signal("TERM");
    // The first TERM gives downloads ten seconds; the second aborts them.
    assert!(big.server.is_alive());
    let start = Instant::now();
    eventually("it ends", || {
        if big.server.is_alive() {
            // Repeat the signal: two pending signals of one kind merge into one.
            big.server.signal("TERM");
        }
        !big.server.is_alive()
    });
    assert!(start.elapsed() < AT_ONCE);
    assert_eq!(big.server.wait(), Some(0));
    assert!(!download.finish());
}

/// A request during the shutdown gets a complete response with `Connection: close`, or none.
#[test]
fn answers_while_ending_are_whole_and_say_that_they_are_the_last() {
    let mut big = Big::serve();
    let download = big.start_download();
    // Send half a request; the other half follows during the shutdown.
    let mut late = Connection::connect(big.addr);
    assert_eq!(late.get("/nix-cache-info").status, 200);
    late.send(b"GET /nix-cache-info HTTP/1.1\r\nHo");
    std::thread::yield_now();
    big.server.signal("QUIT");
    big.server.wait_for("stopping: ");
    stops_listening(big.addr);
    late.send(b"st: a\r\n\r\n");
    let (bytes, _) = late.rest();
    let text = String::from_utf8(bytes).unwrap();
    if !text.is_empty() {
        assert!(text.starts_with("HTTP/1.1 200 ") && text.contains("\r\nConnection: close\r\n"));
        assert!(text.ends_with("Priority: 30\n"), "{text}");
    }
    assert!(download.finish());
    assert_eq!(big.server.wait(), Some(0));
}

/// A truncated body of unknown length does not end with a last chunk.
#[test]
fn a_log_that_is_cut_does_not_look_whole() {
    let store = OwnStore::new();
    let dir = store.root().join("nix/var/log/nix/drvs/zz");
    std::fs::create_dir_all(&dir).unwrap();
    let name = format!("{}-big.drv", "z".repeat(32));
    std::fs::write(dir.join(&name[2..]), vec![b'x'; BIG_LEN]).unwrap();
    let mut command = nix_serve();
    command.args(["--listen", "127.0.0.1:0", "--store", &local(store.root())]);
    let (mut server, addr) = Process::serving(&mut command);
    let mut connection = Connection::connect(addr);
    connection.send_request("GET", &format!("/log/{name}"), &[]);
    let head = connection.begin_reading(false).head;
    assert!(head.contains("Transfer-Encoding: chunked"), "{head}");
    server.signal("TERM");
    server.wait_for("stopping: ");
    stops_listening(addr);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let (bytes, _) = connection.rest();
    assert!(bytes.len() < BIG_LEN);
    assert!(!bytes.ends_with(b"0\r\n\r\n"));
}

#[test]
fn the_socket_file_goes_with_the_server() {
    let dir = tempfile::tempdir().unwrap();
    for signal in ["TERM", "INT", "QUIT"] {
        let socket = dir.path().join("socket");
        let mut server = serve_sample(&["--listen", socket.to_str().unwrap()]).0;
        let mut connection = Connection::unix(&socket);
        assert_eq!(connection.get("/nix-cache-info").status, 200);
        server.signal(signal);
        assert_eq!(server.wait(), Some(0));
        assert!(!socket.exists(), "{signal}");
        connection.assert_closed();
    }
}

/// The server removes only its own socket file: another server may listen at this path by now.
#[test]
fn the_socket_file_of_another_server_stays() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let (mut first, _) = serve_sample(&["--listen", socket.to_str().unwrap()]);
    std::fs::rename(&socket, dir.path().join("moved")).unwrap();
    let (_second, _) = serve_sample(&["--listen", socket.to_str().unwrap()]);
    first.signal("TERM");
    assert_eq!(first.wait(), Some(0));
    assert_eq!(Connection::unix(&socket).get("/nix-cache-info").status, 200);
}

/// Truncation is visible on a Unix socket, although it has no reset.
#[test]
fn a_download_that_is_cut_on_a_unix_socket() {
    let store = OwnStore::new();
    let path = store.add_file("big", &vec![1; BIG_LEN]);
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let mut command = nix_serve();
    command
        .args(["--store", &local(store.root())])
        .arg("--listen")
        .arg(&socket);
    let mut server = Process::spawn(&mut command);
    server.wait_for("serving");
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!(
        "GET /nar/{}.nar HTTP/1.1\r\nHost: a\r\n\r\n",
        hash_part(&path)
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut byte = [0];
    stream.read_exact(&mut byte).unwrap();
    server.signal("TERM");
    server.wait_for("stopping: ");
    eventually("it stops listening", || {
        UnixStream::connect(&socket).is_err()
    });
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).ok();
    assert!(rest.len() < BIG_LEN);
}
