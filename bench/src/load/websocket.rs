//! Client's side of a WebSocket: opening handshake, and text messages of equal length.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};

use testkit::http1::Connection;
use testkit::websocket::{TEXT, frame, handshake};

/// Opens a WebSocket at `path`. Fails if the server does not switch protocols.
pub(crate) fn open(address: SocketAddr, path: &str) -> io::Result<TcpStream> {
    let mut connection = Connection::try_connect(address)?;
    connection.try_send(handshake(path, ""))?;
    let head = connection.try_head(false)?;
    if head.is_none_or(|head| head.status != 101) || !connection.unused().is_empty() {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            "no WebSocket, or a message before the first",
        ));
    }
    Ok(connection.stream)
}

/// Returns a text message of `len` bytes as a masked client frame.
pub(crate) fn text(len: u16) -> Vec<u8> {
    frame(TEXT, vec![b'x'; usize::from(len)])
}

/// Returns the length of the same message as an unmasked server frame.
pub(crate) fn answer_len(len: u16) -> usize {
    let head_len = if len < 126 { 2 } else { 4 };
    head_len + usize::from(len)
}
