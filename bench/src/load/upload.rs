//! Large request bodies.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::Seen;

/// What is written at once.
const PIECE_LEN: usize = 256 << 10;

/// Sends bodies of `body_len` bytes to `/upload` on `count` connections.
///
/// # Errors
///
/// If an answer is not 200.
pub(crate) fn run(
    address: SocketAddr,
    count: usize,
    body_len: usize,
    seconds: f64,
) -> io::Result<Seen> {
    let started = Instant::now();
    let counts: Vec<io::Result<u64>> = std::thread::scope(|scope| {
        let one = || one(address, body_len, started, seconds);
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(one)).collect();
        let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined
            .map(|count| count.unwrap_or_else(|_| Err(io::Error::other("a client panicked"))))
            .collect()
    });
    Ok(Seen {
        count: counts.into_iter().sum::<io::Result<u64>>()?,
        duration: started.elapsed(),
        latencies_us: Vec::new(),
    })
}

fn one(address: SocketAddr, body_len: usize, started: Instant, seconds: f64) -> io::Result<u64> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.set_write_timeout(Some(Duration::from_secs(30)))?;
    let piece = vec![b'x'; PIECE_LEN];
    let head = format!(
        "POST /upload HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/octet-stream\r\n\
         Content-Length: {body_len}\r\n\r\n"
    );
    let mut count = 0;
    // Twice at least: the first one grows the windows.
    while count < 2 || started.elapsed().as_secs_f64() < seconds {
        stream.write_all(head.as_bytes())?;
        let mut left = body_len;
        while left > 0 {
            let piece = piece.get(..left.min(PIECE_LEN)).unwrap_or_default();
            stream.write_all(piece)?;
            left -= piece.len();
        }
        answer(&mut stream)?;
        count += 1;
    }
    Ok(count)
}

/// Reads an answer: a head, and a few bytes that say how much came.
fn answer(stream: &mut TcpStream) -> io::Result<()> {
    let mut received = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let len = stream.read(&mut piece)?;
        received.extend_from_slice(piece.get(..len).unwrap_or_default());
        let text = String::from_utf8_lossy(&received);
        if len == 0 || !"HTTP/1.1 200".starts_with(text.get(..12).unwrap_or(&text)) {
            return Err(io::Error::new(ErrorKind::InvalidData, text.into_owned()));
        }
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let head = head.to_ascii_lowercase();
        let announced = head.split_once("content-length: ");
        let announced = announced.and_then(|(_, rest)| rest.lines().next()?.parse().ok());
        if announced.is_none_or(|len: usize| body.len() >= len) {
            return Ok(());
        }
    }
}
