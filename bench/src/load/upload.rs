//! Large uploads.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use anyhow::Result;
use testkit::http1::Connection;

use super::{Seen, on_threads};

/// Number of bytes per write.
const PIECE_LEN: usize = 256 << 10;

/// Uploads bodies of `body_len` bytes to `/upload` on `count` connections until `seconds` have
/// passed. Fails if a response is not 200.
pub(crate) fn run(
    address: SocketAddr,
    count: usize,
    body_len: usize,
    seconds: f64,
) -> Result<Seen> {
    let started = Instant::now();
    let count = on_threads(count, || Ok(one(address, body_len, started, seconds)?))?;
    Ok(Seen {
        count,
        duration: started.elapsed(),
        latencies_us: Vec::new(),
    })
}

fn one(address: SocketAddr, body_len: usize, started: Instant, seconds: f64) -> io::Result<u64> {
    let mut connection = Connection::try_connect(address)?;
    let piece = vec![b'x'; PIECE_LEN];
    let head = format!(
        "POST /upload HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/octet-stream\r\n\
         Content-Length: {body_len}\r\n\r\n"
    );
    let mut count = 0;
    // At least two uploads are made, because the first one grows the TCP windows.
    while count < 2 || started.elapsed().as_secs_f64() < seconds {
        connection.try_send(&head)?;
        let mut left = body_len;
        while left > 0 {
            let piece = piece.get(..left.min(PIECE_LEN)).unwrap_or_default();
            connection.try_send(piece)?;
            left -= piece.len();
        }
        let response = connection.try_next(false)?;
        if response
            .as_ref()
            .is_none_or(|response| response.status != 200)
        {
            return Err(io::Error::other(format!("{response:?}")));
        }
        count += 1;
    }
    Ok(count)
}
