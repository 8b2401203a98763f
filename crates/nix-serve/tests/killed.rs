//! A killed server leaves nothing behind that prevents the next start. Of two servers started on
//! one address, exactly one serves.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_process;

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use support::{PATIENCE, eventually, hash_part, of_sample, sample};
use support_process::{Connection, Process, at, refuses_to_start};

/// Returns the number of repetitions, which the environment variable `name` can raise.
fn count(name: &str, default: usize) -> usize {
    let number = std::env::var(name).ok();
    number.map_or(default, |text| text.parse().unwrap())
}

fn sample_server(listen: &[&str]) -> Command {
    let mut command = of_sample();
    for address in listen {
        command.args(["--listen", address]);
    }
    command
}

/// Returns an address on which no other server listens.
fn free_address() -> String {
    SocketAddr::from((Ipv4Addr::LOCALHOST, testkit::free_port())).to_string()
}

/// Sends one request. Returns `None` without a complete response, else whether the response was
/// right.
fn ask(stream: &mut (impl Read + Write), path: &str, expected: &[u8]) -> Option<bool> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).ok()?;
    let body = bytes.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    let len = String::from_utf8_lossy(&bytes[..body])
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: ")?.parse().ok());
    // A response truncated by the kill is shorter than announced.
    (len == Some(bytes.len() - body)).then_some(&bytes[body..] == expected)
}

fn ask_at(addr: SocketAddr, path: &str, expected: &[u8]) -> Option<bool> {
    let mut stream = TcpStream::connect(addr).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    ask(&mut stream, path, expected)
}

#[test]
fn killed_and_started_again_and_again_under_load() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, pid) = (at(dir.path(), "socket"), at(dir.path(), "pid"));
    let kept = dir.path().join("kept");
    fs::create_dir(&kept).unwrap();
    let address = free_address();
    let addr: SocketAddr = address.parse().unwrap();
    let start_one = || {
        let mut command = sample_server(&[&address, &socket]);
        command.args(["--pid", &pid, "--nar-cache"]).arg(&kept);
        Process::spawn(&mut command)
    };
    let narinfo = format!("/{}.narinfo", hash_part(&sample("tree")));
    let nar = format!("/nar/{}.nar", hash_part(&sample("tree")));
    let mut server = start_one();
    server.wait_for("serving");
    server.wait_for("unix:");
    let expected = [&*narinfo, &nar].map(|path| Connection::connect(addr).get(path).body);
    let (is_over, whole, broken) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let rounds = count("SAMOVAR_KILLS", 20);
    let mut times = Vec::new();
    std::thread::scope(|scope| {
        for (path, expected) in [&*narinfo, &nar].into_iter().zip(&expected) {
            let (is_over, whole, broken) = (&is_over, &whole, &broken);
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    match ask_at(addr, path, expected) {
                        Some(is_right) => {
                            assert!(is_right, "a whole answer that is wrong");
                            whole.fetch_add(1, Ordering::SeqCst);
                        }
                        None => {
                            broken.fetch_add(1, Ordering::SeqCst);
                            std::thread::sleep(Duration::from_millis(1));
                        }
                    }
                }
            });
        }
        for _ in 0..rounds {
            let before = whole.load(Ordering::SeqCst);
            eventually("answers", || whole.load(Ordering::SeqCst) > before + 5);
            server.child.kill().unwrap();
            server.child.wait().unwrap();
            let start = Instant::now();
            server = start_one();
            eventually("the right answer", || {
                ask_at(addr, &narinfo, &expected[0]) == Some(true)
            });
            times.push(start.elapsed());
            let number = fs::read_to_string(&pid).unwrap();
            assert_eq!(number, format!("{}\n", server.child.id()));
            let mut local = UnixStream::connect(&socket).unwrap();
            assert_eq!(ask(&mut local, &narinfo, &expected[0]), Some(true));
        }
        is_over.store(true, Ordering::SeqCst);
    });
    assert_eq!(fs::read_dir(&kept).unwrap().count(), 0, "left over");
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "more than the empty directory: {left:?}");
    times.sort();
    println!(
        "{rounds} kills: right again after {:?} in the median, {:?} at most; {} whole answers, all \
         right; {} cut or refused",
        times[times.len() / 2],
        times[times.len() - 1],
        whole.load(Ordering::SeqCst),
        broken.load(Ordering::SeqCst)
    );
}

/// A second server on the same address, socket or PID file fails with one line, and does not affect
/// the first.
#[test]
fn the_second_server_at_a_place_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, pid) = (at(dir.path(), "socket"), at(dir.path(), "pid"));
    let address = free_address();
    let mut command = sample_server(&[&address, &socket]);
    let mut first = Process::spawn(command.args(["--pid", &pid]));
    first.wait_for("unix:");
    let other = at(dir.path(), "other");
    refuses_to_start(
        &mut sample_server(&[&address]),
        &["another server", &address],
    );
    refuses_to_start(&mut sample_server(&[&socket]), &["another server", &socket]);
    refuses_to_start(
        sample_server(&[&other]).args(["--pid", &pid]),
        &["a server that is running", &pid],
    );
    assert!(!Path::new(&other).exists(), "its own socket is gone again");
    assert_eq!(
        Connection::connect(&*address).get("/nix-cache-info").status,
        200
    );
    assert_eq!(
        Connection::unix(socket.as_ref())
            .get("/nix-cache-info")
            .status,
        200
    );
    first.signal("TERM");
    assert_eq!(first.wait(), Some(0));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Starts two servers at the same moment: one must serve, and the other must exit with one line.
fn race(rounds: usize, mut servers: impl FnMut() -> [Command; 2]) {
    for round in 0..rounds {
        let mut pair = servers().map(|mut command| Process::spawn(&mut command));
        eventually("one has been refused", || {
            pair.iter_mut().any(|server| !server.is_alive())
        });
        // Exactly one server has exited, and logged why.
        let loser = usize::from(pair[0].is_alive());
        let [first, second] = &mut pair;
        let (winner, loser) = match loser {
            0 => (second, first),
            _ => (first, second),
        };
        assert_eq!(loser.wait(), Some(1), "round {round}: {:?}", loser.lines());
        winner.wait_for("serving");
        winner.signal("TERM");
        assert_eq!(
            winner.wait(),
            Some(0),
            "round {round}: {:?}",
            winner.lines()
        );
    }
}

#[test]
fn of_two_that_start_at_once_one_gets_the_port() {
    race(count("SAMOVAR_RACES", 20), || {
        let address = free_address();
        [(); 2].map(|()| sample_server(&[&address]))
    });
}

#[test]
fn of_two_that_start_at_once_one_gets_the_socket_file() {
    let dir = tempfile::tempdir().unwrap();
    let socket = at(dir.path(), "socket");
    race(count("SAMOVAR_RACES", 20), || {
        // Leave a socket file behind, as a killed server does.
        fs::remove_file(&socket).ok();
        drop(UnixListener::bind(&socket).unwrap());
        // A child of another test may have inherited the socket, until it executes its program.
        eventually("it is dead", || UnixStream::connect(&socket).is_err());
        [(); 2].map(|()| sample_server(&[&socket]))
    });
}

#[test]
fn of_two_that_start_at_once_one_gets_the_pid_file() {
    let dir = tempfile::tempdir().unwrap();
    let pid = at(dir.path(), "pid");
    race(count("SAMOVAR_RACES", 20), || {
        fs::write(&pid, "2147483647\n").unwrap();
        [(); 2].map(|()| {
            let mut command = sample_server(&["127.0.0.1:0"]);
            command.args(["--pid", &pid]);
            command
        })
    });
}

/// If another process keeps the directory locked, the start is delayed but succeeds.
#[test]
fn a_directory_that_is_locked_by_somebody_else() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, pid) = (at(dir.path(), "socket"), at(dir.path(), "pid"));
    let lock = fs::File::open(dir.path()).unwrap();
    lock.lock().unwrap();
    let mut server = Process::spawn(sample_server(&[&socket]).args(["--pid", &pid]));
    server.wait_for("serving");
    assert_eq!(
        Connection::unix(socket.as_ref())
            .get("/nix-cache-info")
            .status,
        200
    );
    drop(lock);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
}
