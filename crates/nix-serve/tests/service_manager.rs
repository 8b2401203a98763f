//! As a systemd service, the server supports socket activation, and notifies systemd of readiness,
//! reloads, stopping and its watchdog.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;
mod support_process;

use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::{OwnStore, PATIENCE, eventually, hash_part, local, nix_serve, sample_root};
use support_process::{Connection, Process, at, refuses_to_start};

/// The service manager's end of a notify socket.
struct Manager {
    _dir: tempfile::TempDir,
    path: PathBuf,
    socket: UnixDatagram,
}

impl Manager {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        Self {
            _dir: dir,
            path,
            socket,
        }
    }

    /// Returns the next message, or `None` if none arrives within `time`.
    fn next_within(&self, time: Duration) -> Option<String> {
        self.socket.set_read_timeout(Some(time)).unwrap();
        let mut buffer = [0; 4096];
        match self.socket.recv(&mut buffer) {
            Ok(len) => Some(String::from_utf8(buffer[..len].to_vec()).unwrap()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Waits for a message with `state`. Only watchdog messages may precede it.
    #[track_caller]
    fn wait_for(&self, state: &str) -> String {
        let start = Instant::now();
        loop {
            let left = PATIENCE.saturating_sub(start.elapsed());
            let message = self
                .next_within(left)
                .unwrap_or_else(|| panic!("no {state}"));
            if message.lines().any(|line| line == state) {
                return message;
            }
            assert_eq!(message.trim(), "WATCHDOG=1", "waiting for {state}");
        }
    }
}

fn server_of(root: &Path) -> Command {
    let mut command = nix_serve();
    command.args(["--listen", "127.0.0.1:0", "--store", &local(root)]);
    command
}

#[test]
fn ready_reloading_stopping() {
    let manager = Manager::new();
    let mut command = server_of(&sample_root());
    let mut server = Process::spawn(command.env("NOTIFY_SOCKET", &manager.path));
    manager.wait_for("READY=1");
    // Once readiness was reported, requests must succeed.
    let addr = server.wait_for_address();
    assert_eq!(Connection::connect(addr).get("/nix-cache-info").status, 200);
    for _ in 0..2 {
        server.signal("HUP");
        let message = manager.wait_for("RELOADING=1");
        let time = message
            .lines()
            .find_map(|line| line.strip_prefix("MONOTONIC_USEC="));
        assert!(time.unwrap().parse::<u64>().unwrap() > 0, "{message}");
        manager.wait_for("READY=1");
    }
    server.signal("TERM");
    manager.wait_for("STOPPING=1");
    assert_eq!(server.wait(), Some(0));
    assert_eq!(manager.next_within(Duration::from_millis(1)), None);
}

/// The server sends STOPPING=1 before it finishes downloads: from then on the manager's stop
/// timeout runs, and its watchdog is off.
#[test]
fn stopping_is_said_before_downloads_are_finished() {
    let store = OwnStore::new();
    let path = store.add_file("big", &vec![1; 48 << 20]);
    let manager = Manager::new();
    let mut command = server_of(store.root());
    let (mut server, addr) = Process::serving(command.env("NOTIFY_SOCKET", &manager.path));
    manager.wait_for("READY=1");
    let mut connection = Connection::connect(addr);
    connection.send_request("GET", &format!("/nar/{}.nar", hash_part(&path)), &[]);
    connection.begin_reading(false);
    server.signal("QUIT");
    manager.wait_for("STOPPING=1");
    assert!(server.is_alive());
    let (rest, is_orderly) = connection.rest();
    assert!(rest.len() > 48 << 20 && is_orderly);
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn a_start_that_fails_is_never_ready() {
    let manager = Manager::new();
    let dir = tempfile::tempdir().unwrap();
    let mut command = server_of(dir.path());
    refuses_to_start(
        command.env("NOTIFY_SOCKET", &manager.path),
        &["the database does not exist"],
    );
    assert_eq!(manager.next_within(Duration::from_millis(1)), None);
}

#[test]
fn the_watchdog_hears_of_a_server_that_lives_and_of_no_other() {
    let manager = Manager::new();
    let mut command = server_of(&sample_root());
    command
        .env("NOTIFY_SOCKET", &manager.path)
        .env("WATCHDOG_USEC", "200000");
    let (mut server, _) = Process::serving(&mut command);
    manager.wait_for("READY=1");
    for _ in 0..3 {
        manager.wait_for("WATCHDOG=1");
    }
    server.signal("STOP");
    // A thread may be in a system call, and stops only at its end.
    eventually("all its threads stand still", || {
        let pid = server.child.id();
        testkit::procfs::threads(pid).iter().all(|thread| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat"));
            let (_, state) = stat
                .as_deref()
                .unwrap_or_default()
                .rsplit_once(") ")
                .unwrap();
            state.starts_with('T')
        })
    });
    // Discard messages sent before the server was stopped.
    while manager.next_within(Duration::from_millis(1)).is_some() {}
    assert_eq!(manager.next_within(Duration::from_millis(600)), None);
    server.signal("CONT");
    manager.wait_for("WATCHDOG=1");
    server.signal("TERM");
    manager.wait_for("STOPPING=1");
    assert_eq!(server.wait(), Some(0));
}

/// A watchdog for another PID gets no messages.
#[test]
fn a_watchdog_of_another_process_is_none_of_ours() {
    let manager = Manager::new();
    let mut command = server_of(&sample_root());
    command
        .env("NOTIFY_SOCKET", &manager.path)
        .env("WATCHDOG_USEC", "100000")
        .env("WATCHDOG_PID", "1");
    let _server = Process::serving(&mut command);
    manager.wait_for("READY=1");
    assert_eq!(manager.next_within(Duration::from_millis(300)), None);
}

/// Starts the binary with two sockets, from descriptor 3 on, as a service manager does. A shell
/// sets `LISTEN_PID`, because the PID is known only after the fork.
fn activated(first: OwnedFd, second: OwnedFd, arguments: &[&str]) -> Command {
    let script = "exec 3<&0 4<&1 </dev/null >/dev/null; LISTEN_FDS=2 LISTEN_PID=$$ exec \"$@\"";
    let mut command = Command::new("sh");
    command
        .args(["-c", script, "sh", env!("CARGO_BIN_EXE_nix-serve")])
        .args(arguments);
    command.args(["--store", &local(&sample_root())]);
    for (name, _) in nix_serve().get_envs() {
        command.env_remove(name);
    }
    command
        .stdin(Stdio::from(first))
        .stdout(Stdio::from(second))
        .stderr(Stdio::piped());
    command
}

/// Binds a TCP socket on a free port and a Unix socket, as a manager does. Returns the sockets and
/// their addresses.
fn manager_sockets(directory: &Path) -> (TcpListener, String, UnixListener, PathBuf) {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap().to_string();
    let path = directory.join("inherited");
    let unix = UnixListener::bind(&path).unwrap();
    (tcp, address, unix, path)
}

#[test]
fn inherited_sockets_replace_the_default_listener() {
    let dir = tempfile::tempdir().unwrap();
    let (tcp, address, unix, path) = manager_sockets(dir.path());
    let mut command = activated(tcp.into(), unix.into(), &[]);
    let mut server = Process::spawn(&mut command);
    drop(command);
    server.wait_for("the service manager's sockets");
    let addr = server.wait_for_address();
    assert_eq!(addr.to_string(), address);
    for _ in 0..8 {
        // Use more connections than there are threads, so that every thread accepts.
        assert_eq!(Connection::connect(addr).get("/nix-cache-info").status, 200);
        assert_eq!(Connection::unix(&path).get("/nix-cache-info").status, 200);
    }
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    // The socket file belongs to the manager, so it stays.
    assert!(path.exists());
}

#[test]
fn inherited_sockets_that_listen_names_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let (tcp, address, unix, path) = manager_sockets(dir.path());
    let given = ["--listen", &address, "--listen", path.to_str().unwrap()];
    let given = [&given[..], &["--listen", "127.0.0.1:1"]].concat();
    let mut command = activated(tcp.into(), unix.into(), &given);
    let mut server = Process::spawn(&mut command);
    drop(command);
    let addr = server.wait_for_address();
    assert_eq!(Connection::connect(addr).get("/nix-cache-info").status, 200);
    assert_eq!(Connection::unix(&path).get("/nix-cache-info").status, 200);
    assert_eq!(server.count("warning: not listening on 127.0.0.1:1"), 1);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
}

/// The server refuses inherited sockets that `--listen` does not cover: they could expose an
/// address that the operator meant to close.
#[test]
fn inherited_sockets_that_listen_does_not_name_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let elsewhere = at(dir.path(), "elsewhere");
    for given in [
        &["--listen", "127.0.0.2:5000"][..],
        &["--listen", &elsewhere],
        &["--host", "127.0.0.2"],
        &["--socket", &elsewhere],
    ] {
        let socket_dir = tempfile::tempdir().unwrap();
        let (tcp, address, unix, _) = manager_sockets(socket_dir.path());
        let mut server = Process::spawn(&mut activated(tcp.into(), unix.into(), given));
        assert_eq!(server.wait(), Some(1), "{given:?}");
        let expected =
            format!("the service manager passed the socket {address}, but --listen names");
        eventually("it says why", || server.count(&expected) == 1);
        let named = given[1].trim_end_matches(":5000");
        assert_eq!(server.count(named), 1, "{:?}", server.lines());
        assert_eq!(server.lines().len(), 1, "{:?}", server.lines());
        assert!(!Path::new(&elsewhere).exists());
    }
}

/// No client is refused while the service restarts, because the manager keeps the socket open.
#[test]
fn connections_wait_for_the_next_server() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = tcp.local_addr().unwrap();
    for _ in 0..3 {
        let mut early = Connection::connect(addr);
        early.send_request("GET", "/nix-cache-info", &[]);
        let copy = || OwnedFd::from(tcp.try_clone().unwrap());
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut server = Process::spawn(&mut activated(copy(), other.into(), &[]));
        assert_eq!(early.response(false).status, 200);
        server.signal("TERM");
        assert_eq!(server.wait(), Some(0));
        early.assert_closed();
    }
}

#[test]
fn a_descriptor_that_is_no_socket_is_one_line() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let file = tempfile::tempfile().unwrap();
    let mut server = Process::spawn(&mut activated(tcp.into(), file.into(), &[]));
    assert_eq!(server.wait(), Some(1));
    eventually("it says why", || {
        server.count("descriptor 1 of LISTEN_FDS is no stream") == 1
    });
}

/// Sockets that were passed to another PID are ignored.
#[test]
fn sockets_meant_for_another_process_are_left_alone() {
    let mut command = server_of(&sample_root());
    command.env("LISTEN_FDS", "1").env("LISTEN_PID", "1");
    let (server, addr) = Process::serving(&mut command);
    assert_eq!(server.count("service manager"), 0);
    assert_eq!(Connection::connect(addr).get("/nix-cache-info").status, 200);
}

/// `--daemonize` is refused with inherited sockets: a service manager needs the server in the
/// foreground.
#[test]
fn going_to_the_background_does_not_go_with_inherited_sockets() {
    let (first, second) = (
        TcpListener::bind("127.0.0.1:0").unwrap(),
        TcpListener::bind("127.0.0.1:0").unwrap(),
    );
    let mut command = activated(first.into(), second.into(), &["--daemonize"]);
    let mut server = Process::spawn(&mut command);
    assert_eq!(server.wait(), Some(1));
    eventually("it says why", || {
        server.count("--daemonize cannot be combined with sockets") == 1
    });
    assert_eq!(server.lines().len(), 1);
}

/// The first connection starts the server, by `systemd-socket-activate`.
#[test]
fn started_by_the_first_connection() {
    let tool = "systemd-socket-activate";
    if Command::new(tool).arg("--version").output().is_err() {
        println!("skipped: there is no {tool} here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = at(dir.path(), "socket");
    let mut command = Command::new(tool);
    command.args(["--listen", &socket, env!("CARGO_BIN_EXE_nix-serve")]);
    command.args(["--store", &local(&sample_root())]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut server = Process::spawn(&mut command);
    eventually("the manager listens", || {
        UnixStream::connect(&socket).is_ok()
    });
    let mut connection = Connection::unix(socket.as_ref());
    assert_eq!(connection.get("/nix-cache-info").status, 200);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
}
