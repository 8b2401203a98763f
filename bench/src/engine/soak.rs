//! Soak: memory and open descriptors stay constant over many requests of every kind.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::contender::{BLOCKING_THREADS, Files, Kind};
use crate::process::Server;

/// Concurrent clients.
const CLIENTS: u64 = 8;

/// Pipelined requests in a batch, and batches on one connection.
const BATCH: usize = 16;
const BATCHES_PER_CONNECTION: u64 = 8;

/// Number of samples of memory and descriptors.
const SAMPLES: u64 = 20;

/// Maximum growth of memory after the first tenth of the requests, in bytes.
const GROWTH_MAX: u64 = 1 << 20;

/// Sends `requests` requests to a fresh server of ours; prints memory and descriptors on the way.
///
/// # Errors
///
/// Returns an error if a response is wrong, or memory or descriptors grow.
pub(crate) fn run(files: &Files, requests: u64) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let server = Kind::Inline.start(files, cores, BLOCKING_THREADS)?;
    let descriptors = server.descriptor_count();
    let started = Instant::now();
    println!("| requests | seconds | anonymous KiB | descriptors |\n|---|---|---|---|");
    let (mut done, mut warm_len, mut last_len) = (0, 0, 0);
    for index in 0..SAMPLES {
        done += some(server.address, requests / SAMPLES)?;
        let left = descriptors_left(&server, descriptors)?;
        last_len = server.anonymous_len();
        if index < SAMPLES / 10 {
            warm_len = last_len;
        }
        let seconds = started.elapsed().as_secs();
        println!("| {done} | {seconds} | {} | {left} |", last_len / 1024);
    }
    let cpu_us = server.cpu().as_secs_f64() * 1e6;
    println!(
        "\n{:.2} µs CPU of the server for each request",
        cpu_us / to_f64(done)
    );
    if last_len > warm_len + GROWTH_MAX {
        bail!("memory grew from {warm_len} to {last_len} bytes");
    }
    Ok(())
}

/// Returns the number of open descriptors after the server has noticed that connections are closed.
fn descriptors_left(server: &Server, expected: usize) -> Result<usize> {
    let started = Instant::now();
    loop {
        let count = server.descriptor_count();
        if count <= expected {
            return Ok(count);
        }
        if started.elapsed() > Duration::from_secs(10) {
            bail!("{count} descriptors are open, and {expected} were before");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends about `requests` requests from several clients; returns their exact number.
fn some(address: SocketAddr, requests: u64) -> Result<u64> {
    let each = BATCH as u64 * BATCHES_PER_CONNECTION;
    let connections = requests.div_ceil(CLIENTS * each);
    let one = || (0..connections).try_for_each(|_| connection(address));
    let ended: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(one)).collect();
        threads
            .into_iter()
            .map(std::thread::ScopedJoinHandle::join)
            .collect()
    });
    for ended in ended {
        ended
            .ok()
            .context("a client panicked")?
            .context("an answer")?;
    }
    Ok(connections * CLIENTS * each)
}

/// Sends batches of requests on one connection, the last with `Connection: close`.
fn connection(address: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut received = Vec::with_capacity(1 << 16);
    for index in 1..=BATCHES_PER_CONNECTION {
        let is_last = index == BATCHES_PER_CONNECTION;
        stream.write_all(&batch(is_last))?;
        for expected in EXPECTED {
            answer(&mut stream, &mut received, expected)?;
        }
    }
    // All responses were received, so only the end of the connection may follow.
    match stream.read(&mut [0])? {
        0 if received.is_empty() => Ok(()),
        _ => Err(io::Error::new(
            ErrorKind::InvalidData,
            "more than was asked for",
        )),
    }
}

/// Expected status and body length of each response in a batch.
const EXPECTED: [(u16, usize); BATCH] = {
    let mut expected = [(200, 13); BATCH];
    expected[1] = (200, 27);
    expected[3] = (404, 0);
    expected[5] = (200, 5);
    expected[7] = (200, 2);
    expected[9] = (200, 0);
    expected[11] = (404, 0);
    expected[13] = (200, 500);
    expected
};

fn batch(is_last: bool) -> Vec<u8> {
    let mut batch = Vec::new();
    for index in 0..BATCH {
        let (method, target, rest) = match index {
            1 => ("GET", "/json", String::new()),
            3 | 11 => ("GET", "/none", String::new()),
            5 => (
                "POST",
                "/upload",
                format!("Content-Length: 1000\r\n\r\n{}", "x".repeat(1000)),
            ),
            7 => {
                let chunks = "3\r\nabc\r\n5;a=b\r\nhello\r\n0\r\nTrailer: x\r\n\r\n";
                (
                    "POST",
                    "/upload",
                    format!("Transfer-Encoding: chunked\r\n\r\n{chunks}"),
                )
            }
            9 => ("HEAD", "/text", String::new()),
            13 => ("GET", "/text500", String::new()),
            _ => ("GET", "/text", String::new()),
        };
        let close = if is_last && index + 1 == BATCH {
            "Connection: close\r\n"
        } else {
            ""
        };
        let end = if rest.is_empty() { "\r\n" } else { &rest };
        batch.extend(
            format!("{method} {target} HTTP/1.1\r\nHost: a\r\nUser-Agent: soak\r\n{close}{end}")
                .into_bytes(),
        );
    }
    batch
}

/// Parses one response from the front of `received`, reading more as needed.
fn answer(
    stream: &mut TcpStream,
    received: &mut Vec<u8>,
    (status, body_len): (u16, usize),
) -> io::Result<()> {
    let mut piece = [0; 16384];
    loop {
        let head_len = received.windows(4).position(|part| part == b"\r\n\r\n");
        if let Some(head_len) = head_len
            && received.len() >= head_len + 4 + body_len
        {
            let expected = format!("HTTP/1.1 {status}");
            if !received.starts_with(expected.as_bytes()) {
                let said = String::from_utf8_lossy(received).into_owned();
                return Err(io::Error::new(ErrorKind::InvalidData, said));
            }
            received.drain(..head_len + 4 + body_len);
            return Ok(());
        }
        match stream.read(&mut piece)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            len => received.extend_from_slice(piece.get(..len).unwrap_or_default()),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn to_f64(count: u64) -> f64 {
    count as f64
}
