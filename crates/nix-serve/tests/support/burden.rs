//! Measures a server's use of resources, and has clients that increase it.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::{PATIENCE, bare, eventually, nix_serve};

/// Raises this process's limit of descriptors to the maximum; returns the limit.
pub fn raise_descriptors() -> u64 {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    maximum.unwrap_or(u64::MAX)
}

/// Returns the resident memory of a process in bytes.
#[track_caller]
pub fn resident_len(pid: u32) -> u64 {
    testkit::procfs::memory(pid, "status", "VmRSS").unwrap()
}

/// Returns how many descriptors a process has open.
#[track_caller]
pub fn descriptor_count(pid: u32) -> usize {
    testkit::procfs::descriptor_count(pid).unwrap()
}

/// Returns the CPU time that the living threads of a process have used.
pub fn cpu_time(pid: u32) -> Duration {
    testkit::procfs::living_threads_cpu_time(pid)
}

/// Opens a connection to the server.
#[track_caller]
pub fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Opens a connection from another loopback address.
///
/// # Errors
///
/// The errors of `connect`.
pub fn connect_from(from: [u8; 4], addr: SocketAddr) -> io::Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddr::from((from, 0)))?;
    connect(&socket, &addr)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Returns the server's command, with a limit of `count` descriptors.
pub fn with_descriptors(count: u64) -> Command {
    let mut command = bare("prlimit");
    command.arg(format!("--nofile={count}:{count}"));
    command.arg(nix_serve().get_program());
    command
}

/// Returns the 99th percentile of the times.
#[track_caller]
pub fn percentile_99(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

/// Sends a request and reads nothing of the response.
#[track_caller]
pub fn ask(stream: &mut TcpStream, method: &str, path: &str, body: &[u8]) {
    let len = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
}

/// Opens `count` connections that request `path` and do not read. Returns once every response has
/// started.
#[track_caller]
pub fn slow_readers(addr: SocketAddr, count: usize, path: &str) -> Vec<TcpStream> {
    let mut streams = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = connect(addr);
        ask(&mut stream, "GET", path, b"");
        streams.push(stream);
    }
    wait_for_all(&streams);
    streams
}

/// Waits until data has arrived on every stream.
#[track_caller]
pub fn wait_for_all(streams: &[TcpStream]) {
    for stream in streams {
        eventually("an answer begins", || is_readable(stream));
    }
}

/// Returns whether the stream has data or an end of file to read.
pub fn is_readable(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let peeked = stream.peek(&mut [0]);
    stream.set_nonblocking(false).unwrap();
    !matches!(peeked, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}
