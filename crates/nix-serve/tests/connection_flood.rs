//! A client that opens as many connections as it can does not prevent others from being served,
//! whether it stays silent, idles, sends endless request heads or reconnects without pause.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it measured"
)]

#[path = "support/burden.rs"]
mod burden;
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use burden::{
    connect_from, cpu_time, descriptor_count, is_readable, percentile_99, with_descriptors,
};
use support::{ServerProcess, eventually, hash_part, local, sample, sample_root};

/// Descriptor limit of the server; half of it is for connections.
const DESCRIPTORS: u64 = 1024;
const CONNECTIONS: usize = 512;
/// Source address of the flood. Other clients use another address.
const ATTACKER: [u8; 4] = [127, 0, 0, 66];
const GOOD: [u8; 4] = [127, 0, 0, 7];
const ASKED: usize = 100;
/// Clients during the flood may be slower than without it by this factor, plus a constant: other
/// processes run too.
const FACTOR: u32 = 10;
const SLACK: Duration = Duration::from_millis(100);
/// Number of measurements of which one must meet the limit. A busy machine delays some requests of
/// some measurements, and a server that neglects the clients some of every measurement.
const ROUNDS: usize = 10;

fn start() -> ServerProcess {
    let store = local(&sample_root());
    ServerProcess::start(with_descriptors(DESCRIPTORS).args(["--store", &store]))
}

/// Connects, sends a request, and returns the start of the response.
fn ask(addr: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = connect_from(GOOD, addr)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    answer.truncate(12);
    Ok(answer)
}

/// Connects and sends a request many times; every request must be answered. Returns the 99th
/// percentile of the times.
#[track_caller]
fn good_clients(addr: SocketAddr) -> Duration {
    let path = format!("/{}.narinfo", hash_part(&sample("tree")));
    let times = (0..ASKED).map(|_| {
        let start = Instant::now();
        assert_eq!(ask(addr, &path).unwrap(), "HTTP/1.1 200");
        start.elapsed()
    });
    percentile_99(times.collect())
}

/// Measures the clients during a flood, until they are delayed by at most `limit`. Returns the
/// number of measurements.
#[track_caller]
fn good_clients_within(limit: Duration, addr: SocketAddr, what: &str) -> usize {
    for round in 1..=ROUNDS {
        let beside = good_clients(addr);
        println!("{what}: p99 {beside:?} beside, at most {limit:?} expected");
        if beside <= limit {
            return round;
        }
    }
    unreachable!("{what}: clients are delayed by more than {limit:?} each time")
}

#[track_caller]
fn attack(what: &str, server: &ServerProcess, open: impl Fn() -> TcpStream) {
    let (addr, pid) = (server.addr, server.child.id());
    let alone = good_clients(addr);
    let before = descriptor_count(pid);
    let held: Vec<TcpStream> = (0..CONNECTIONS).map(|_| open()).collect();
    let rounds = good_clients_within(alone * FACTOR + SLACK, addr, what);
    // The server has evicted some connections, but no more than needed.
    let closed = held.iter().filter(|stream| is_readable(stream)).count();
    assert!(
        (1..=2 * ASKED * rounds).contains(&closed),
        "{closed} were closed, {what}"
    );
    drop(held);
    eventually("nothing is left of it", || descriptor_count(pid) <= before);
}

/// Clients are served although another one holds as many connections as it can.
#[test]
fn whoever_holds_all_connections_keeps_nobody_out() {
    let server = start();
    let addr = server.addr;
    attack("silent", &server, || connect_from(ATTACKER, addr).unwrap());
    attack("half a head", &server, || {
        let mut stream = connect_from(ATTACKER, addr).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost").unwrap();
        stream
    });
    attack("at rest", &server, || {
        let mut stream = connect_from(ATTACKER, addr).unwrap();
        stream
            .write_all(b"GET /nix-cache-info HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        assert_ne!(stream.read(&mut [0; 4096]).unwrap(), 0);
        stream
    });
    server.signal("USR1");
    let counts = server.wait_for("events since the start");
    assert!(counts.contains(" connection_evicted="), "{counts}");
}

/// Clients are served although others open and close, or reset, connections as fast as possible.
#[test]
fn knocking_without_end_keeps_nobody_out() {
    let server = start();
    let (addr, pid) = (server.addr, server.child.id());
    let alone = good_clients(addr);
    let before = descriptor_count(pid);
    let (is_over, knocked) = (AtomicBool::new(false), AtomicUsize::new(0));
    let cpu = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut held = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    // Keep each connection open for a while, so that the limit is always reached.
                    held.extend(connect_from(ATTACKER, addr));
                    if held.len() > CONNECTIONS {
                        held.clear();
                    }
                    knocked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        eventually("the flood is there", || {
            knocked.load(Ordering::Relaxed) > 2 * CONNECTIONS
        });
        let (cpu, counted) = (cpu_time(pid), knocked.load(Ordering::Relaxed));
        // If flood and server share the cores, the scheduler can delay a client by a second.
        good_clients_within(alone * FACTOR + 10 * SLACK, addr, "knocking");
        let counted = knocked.load(Ordering::Relaxed) - counted;
        let cpu = (cpu_time(pid) - cpu) / u32::try_from(counted.max(1)).unwrap();
        is_over.store(true, Ordering::Relaxed);
        cpu
    });
    println!("knocking: p99 {alone:?} alone; {cpu:?} of CPU each");
    eventually("nothing is left of it", || descriptor_count(pid) <= before);
}
