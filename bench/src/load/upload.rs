//! Uploads large bodies.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use testkit::http1::Connection;

/// Number of body bytes in each write.
const PIECE_LEN: usize = 256 << 10;

/// Connects to the server. Returns a function that uploads a body of `body_len` bytes to `/upload`,
/// and fails if the response is not 200.
pub(crate) fn start(address: SocketAddr, body_len: usize) -> Result<impl FnMut() -> Result<()>> {
    let mut connection = Connection::try_connect(address)?;
    let piece = vec![b'x'; PIECE_LEN];
    let head = format!(
        "POST /upload HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/octet-stream\r\n\
         Content-Length: {body_len}\r\n\r\n"
    );
    Ok(move || {
        connection.try_send(&head)?;
        let mut left = body_len;
        while left > 0 {
            let piece = piece.get(..left.min(PIECE_LEN)).unwrap_or_default();
            connection.try_send(piece)?;
            left -= piece.len();
        }
        let response = connection.try_next(false)?;
        let is_ok = response.as_ref().is_some_and(|it| it.status == 200);
        ensure!(is_ok, "{response:?}");
        Ok(())
    })
}
