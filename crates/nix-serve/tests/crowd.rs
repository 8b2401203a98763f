//! Ten thousand idle clients and five hundred that do not read cost no more memory than documented,
//! and do not delay others. `CROWD=1` runs the full size, which needs 12,000 descriptors; the
//! default is a tenth.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/burden.rs"]
mod burden;
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use burden::{connect, cpu_time, percentile_99, raise_descriptors, resident_len, slow_readers};
use support::{OwnStore, ServerProcess, eventually, hash_part};
use testkit::http1::Connection;
use testkit::limit;

const ASKED: u32 = 2000;
/// Number of measurements of which one must meet the limit. A busy machine delays some requests of
/// some measurements, and a server that neglects the client some of every measurement.
const ROUNDS: u32 = 10;

/// Maximum memory per idle connection, bytes, including a cached narinfo.
const RESTING_LEN: u64 = 2 * 1024;
/// Maximum memory per client that does not read, bytes.
const READER_LEN: u64 = 64 * 1024;
/// Maximum memory per idle HTTP/2 connection, bytes, including its windows and header tables.
const RESTING_HTTP2_LEN: u64 = 24 * 1024;
/// Memory in addition: overhead of the allocator, and the fixed budget for bodies in flight.
const REST_LEN: u64 = 64 << 20;

/// Counts the open sockets of a process. Other descriptors do not count: workers keep their
/// connections to the database open.
fn socket_count(pid: u32) -> usize {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = descriptors
        .flatten()
        .filter_map(|one| std::fs::read_link(one.path()).ok());
    links
        .filter(|link| link.to_string_lossy().starts_with("socket:"))
        .count()
}

/// Sends many requests on one connection; returns the 99th percentile of their times.
#[track_caller]
fn good_client(addr: SocketAddr, path: &str) -> Duration {
    let mut connection = Connection::connect(addr);
    let times = (0..ASKED).map(|_| {
        let start = Instant::now();
        assert_eq!(connection.get(path).status, 200);
        start.elapsed()
    });
    percentile_99(times.collect())
}

/// Measures a client beside a crowd, until it is hardly slower than alone. Returns the last
/// measurement and the number of measurements.
#[track_caller]
fn good_client_beside(addr: SocketAddr, path: &str, alone: Duration) -> (Duration, u32) {
    let limit = alone * 10 + Duration::from_millis(50);
    let mut rounds = (1..=ROUNDS).map(|round| (good_client(addr, path), round));
    let found = rounds.find(|(beside, _)| *beside <= limit);
    found.unwrap_or_else(|| unreachable!("above {limit:?} each time, {alone:?} alone"))
}

#[test]
fn idle_and_slow_clients_take_bounded_memory_and_delay_no_others() {
    let part = if std::env::var_os("CROWD").is_some() {
        1
    } else {
        10
    };
    let (resting, readers) = (10_000 / part, 500 / part);
    assert!(raise_descriptors() > 12_000 / part as u64);
    let store = OwnStore::new();
    let long = store.add_file("long", &vec![b'x'; 32 << 20]);
    let narinfo = format!("/{}.narinfo", hash_part(&long));
    let nar = format!("/nar/{}.nar", hash_part(&long));
    let server = ServerProcess::of_store(store.root());
    let pid = server.child.id();
    let sockets = socket_count(pid);
    // The NAR is verified by now and sent by sendfile; the narinfo is in memory.
    assert!(server.get(&nar).is_complete);
    let alone = good_client(server.addr, &narinfo);
    eventually("its connection is closed", || socket_count(pid) == sockets);
    let before = resident_len(pid);
    let crowd: Vec<TcpStream> = (0..resting).map(|_| connect(server.addr)).collect();
    eventually("all are accepted", || {
        socket_count(pid) >= sockets + resting
    });
    let with_resting = resident_len(pid);
    let slow = slow_readers(server.addr, readers, &nar);
    let with_readers = resident_len(pid);
    let cpu = cpu_time(pid);
    let (beside, rounds) = good_client_beside(server.addr, &narinfo, alone);
    let cpu = (cpu_time(pid) - cpu) / (rounds * ASKED);
    println!(
        "{resting} at rest: {} bytes each; {readers} who do not read: {} KiB each; {} MiB in sum; \
         p99 {alone:?} alone, {beside:?} beside them, {cpu:?} of CPU a request",
        with_resting.saturating_sub(before) / resting as u64,
        with_readers.saturating_sub(with_resting) / readers as u64 / 1024,
        with_readers >> 20,
    );
    limit::memory_at_most(
        "memory for idle clients and slow readers",
        with_readers.saturating_sub(before),
        resting as u64 * RESTING_LEN + readers as u64 * READER_LEN + REST_LEN,
    );
    drop((crowd, slow));
    eventually("nothing is left of them", || socket_count(pid) <= sockets);
}

/// Sends the HTTP/2 preface without settings; returns once the server's settings arrive.
fn connect_http2(addr: SocketAddr) -> TcpStream {
    let mut stream = connect(addr);
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .unwrap();
    stream.read_exact(&mut [0; 9]).unwrap();
    stream
}

#[test]
fn idle_and_slow_http2_clients_take_bounded_memory_and_delay_no_others() {
    let resting = match std::env::var_os("CROWD") {
        Some(_) => 2000,
        None => 400,
    };
    raise_descriptors();
    let store = OwnStore::new();
    let path = store.add_file("small", b"x");
    let narinfo = format!("/{}.narinfo", hash_part(&path));
    let server = ServerProcess::of_store(store.root());
    let pid = server.child.id();
    let sockets = socket_count(pid);
    let alone = good_client(server.addr, &narinfo);
    let before = resident_len(pid);
    let crowd: Vec<TcpStream> = (0..resting).map(|_| connect_http2(server.addr)).collect();
    let held = resident_len(pid).saturating_sub(before);
    let (beside, _) = good_client_beside(server.addr, &narinfo, alone);
    println!(
        "{resting} at rest over HTTP/2: {} bytes each; p99 {alone:?} alone, {beside:?} beside them",
        held / resting
    );
    limit::memory_at_most(
        "memory for idle HTTP/2 clients",
        held,
        resting * RESTING_HTTP2_LEN + (4 << 20),
    );
    drop(crowd);
    eventually("nothing is left of them", || socket_count(pid) <= sockets);
}
