//! The client's side of a WebSocket: a handshake and small frames.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// The mask of every frame. A server takes each for random.
const MASK: [u8; 4] = [0x12, 0x34, 0x56, 0x78];

/// Opens a WebSocket at `path`.
///
/// # Errors
///
/// If the server does not switch protocols.
pub(crate) fn open(address: SocketAddr, path: &str) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    // Byte by byte: what follows the head is a frame, and belongs to whoever reads next.
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.extend_from_slice(&byte);
    }
    if !head.starts_with(b"HTTP/1.1 101 ") {
        let said = String::from_utf8_lossy(&head).into_owned();
        return Err(io::Error::new(ErrorKind::InvalidData, said));
    }
    Ok(stream)
}

/// A whole text message of `len` bytes, as a client sends it.
///
/// # Panics
///
/// Never: a length beyond 65,535 bytes is cut.
pub(crate) fn text(len: u16) -> Vec<u8> {
    let mut frame = vec![0x81];
    match u8::try_from(len) {
        Ok(short @ ..126) => frame.push(0x80 | short),
        _ => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&len.to_be_bytes());
        }
    }
    frame.extend_from_slice(&MASK);
    frame.extend(
        MASK.iter()
            .cycle()
            .take(usize::from(len))
            .map(|mask| b'x' ^ mask),
    );
    frame
}

/// Bytes of the same message as a server sends it.
pub(crate) fn answer_len(len: u16) -> usize {
    let head_len = if len < 126 { 2 } else { 4 };
    head_len + usize::from(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_masked() {
        assert_eq!(text(1), [0x81, 0x81, 0x12, 0x34, 0x56, 0x78, b'x' ^ 0x12]);
        assert_eq!(text(200).len(), 2 + 2 + 4 + 200);
        assert_eq!((answer_len(125), answer_len(126)), (127, 130));
    }
}
