//! WebSocket frames: written exactly as the test gives them, and parsed strictly, without a library
//! that would correct either.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::http1::{Connection, Response};

/// First byte of a text message in one frame.
pub const TEXT: u8 = 0x81;
/// First byte of a binary message in one frame.
pub const BINARY: u8 = 0x82;
/// First byte of a close frame.
pub const CLOSE: u8 = 0x88;
/// First byte of a ping.
pub const PING: u8 = 0x89;
/// First byte of a pong.
pub const PONG: u8 = 0x8a;

/// The masking key with which [`frame`] masks its payload.
pub const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// Header lines of a valid opening handshake without `Host`.
pub const FIELDS: &str = "Upgrade: websocket\r\nConnection: Upgrade\r\n\
                          Sec-WebSocket-Version: 13\r\n\
                          Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// Returns a request for a WebSocket; `fields` are further header lines with their line ends.
pub fn handshake(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a.example\r\n{FIELDS}{fields}\r\n")
}

/// Appends a masked frame with the first byte `first`.
pub fn write_frame(bytes: &mut Vec<u8>, first: u8, key: [u8; 4], payload: &[u8]) {
    bytes.push(first);
    if let Ok(len @ ..126) = u8::try_from(payload.len()) {
        bytes.push(0x80 | len);
    } else if let Ok(len) = u16::try_from(payload.len()) {
        bytes.push(0x80 | 126);
        bytes.extend(len.to_be_bytes());
    } else {
        bytes.push(0x80 | 127);
        bytes.extend((payload.len() as u64).to_be_bytes());
    }
    bytes.extend(key);
    bytes.extend(payload.iter().zip(key.iter().cycle()).map(|(a, b)| a ^ b));
}

/// Returns a masked frame with the first byte `first`.
pub fn frame(first: u8, payload: impl AsRef<[u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_frame(&mut bytes, first, KEY, payload.as_ref());
    bytes
}

/// Returns a close frame.
pub fn close(code: u16, reason: impl AsRef<[u8]>) -> Vec<u8> {
    frame(CLOSE, [&code.to_be_bytes(), reason.as_ref()].concat())
}

/// A frame that a server has sent, parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// First byte of the frame: FIN, reserved bits and opcode.
    pub first: u8,
    /// Payload of the frame, which servers must not mask.
    pub payload: &'a [u8],
    /// Length of the whole frame, header and payload, in bytes.
    pub len: usize,
}

/// Parses the frame at the start of `bytes`; `None` while it is incomplete.
///
/// # Errors
///
/// If the frame is masked, or its length is written in more bytes than needed.
pub fn parse_frame(bytes: &[u8]) -> io::Result<Option<Frame<'_>>> {
    let [first, second, rest @ ..] = bytes else {
        return Ok(None);
    };
    let (header_len, len) = match (second & 0x7f, rest) {
        (len @ ..126, _) => (2_usize, u64::from(len)),
        (126, [high, low, ..]) => (4, u64::from(u16::from_be_bytes([*high, *low]))),
        (127, _) if rest.len() >= 8 => {
            let len = rest.first_chunk().copied().unwrap_or_default();
            (10, u64::from_be_bytes(len))
        }
        _ => return Ok(None),
    };
    let is_short = header_len == 4 && len < 126 || header_len == 10 && len < 65_536;
    if second & 0x80 != 0 || is_short {
        return Err(io::Error::new(ErrorKind::InvalidData, "malformed frame"));
    }
    let len = usize::try_from(len).map_err(|_too_long| ErrorKind::InvalidData)?;
    let payload = header_len
        .checked_add(len)
        .and_then(|end| bytes.get(header_len..end));
    Ok(payload.map(|payload| Frame {
        first: *first,
        payload,
        len: header_len + len,
    }))
}

/// A WebSocket client on which the test writes and reads single frames.
#[derive(Debug)]
pub struct Client<S = TcpStream> {
    /// Underlying connection.
    pub connection: Connection<S>,
    /// Response of the server to the opening handshake.
    pub response: Response,
    buffer: Vec<u8>,
}

impl Client {
    /// Opens a WebSocket.
    #[track_caller]
    pub fn open(address: SocketAddr, path: &str) -> Self {
        Self::with(address, handshake(path, ""))
    }

    /// Opens a WebSocket with a handshake request from the caller, which frames may follow.
    #[track_caller]
    pub fn with(address: SocketAddr, request: impl AsRef<[u8]>) -> Self {
        let client = Self::ask(address, request);
        assert_eq!(client.response.status, 101, "{}", client.response.head);
        client
    }

    /// Sends a request and reads the head of its response, which may have any status.
    #[track_caller]
    pub fn ask(address: SocketAddr, request: impl AsRef<[u8]>) -> Self {
        Self::over(Connection::connect(address), request)
    }
}

impl<S: Read + Write> Client<S> {
    /// Like [`Client::ask`], over a connection that is already open.
    #[track_caller]
    pub fn over(mut connection: Connection<S>, request: impl AsRef<[u8]>) -> Self {
        connection.send(request);
        let response = connection.begin_reading(false);
        Self {
            connection,
            response,
            buffer: Vec::new(),
        }
    }

    /// Sends raw bytes. Errors are ignored, because a server that has failed the connection may not
    /// read everything; the next read reports them.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        drop(self.connection.try_send(bytes));
    }

    /// Sends a text message.
    #[track_caller]
    pub fn text(&mut self, text: &str) {
        self.send(frame(TEXT, text));
    }

    /// Returns first byte and payload of the next frame; `None` at the end of the stream, whether
    /// closed or reset.
    #[track_caller]
    pub fn next_frame(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            if let Some(frame) = parse_frame(&self.buffer).unwrap() {
                let (first, payload) = (frame.first, frame.payload.to_vec());
                // Bit 1 (RSV1) marks a compressed message, if compression was negotiated.
                let compresses = self.response.header("sec-websocket-extensions").is_some();
                let reserved = if compresses { 0x30 } else { 0x70 };
                assert_eq!(first & reserved, 0, "reserved bits");
                self.buffer.drain(..frame.len);
                return Some((first, payload));
            }
            let mut piece = [0; 65536];
            match self.connection.read(&mut piece) {
                Ok(0) => {
                    assert!(self.buffer.is_empty(), "half a frame: {:x?}", self.buffer);
                    return None;
                }
                Ok(len) => self.buffer.extend_from_slice(&piece[..len]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no frame: {error}"),
            }
        }
    }

    /// Asserts that the next frame has this first byte and payload.
    #[track_caller]
    pub fn expect(&mut self, first: u8, payload: impl AsRef<[u8]>) {
        let (got, bytes) = self.next_frame().expect("a frame");
        let payload = payload.as_ref();
        assert!(
            got == first && bytes == payload,
            "{got:#x} {:?}, not {first:#x} {:?}",
            bytes.escape_ascii().to_string(),
            payload.escape_ascii().to_string(),
        );
    }

    /// Asserts that the next frame is a complete text message.
    #[track_caller]
    pub fn expect_text(&mut self, text: &str) {
        self.expect(TEXT, text);
    }

    /// Asserts a close frame with this code, and then the end of the stream.
    #[track_caller]
    pub fn expect_close(&mut self, code: u16) {
        let (first, payload) = self.next_frame().expect("a close frame");
        assert_eq!(first, CLOSE, "{:?}", payload.escape_ascii().to_string());
        assert_eq!(payload.get(..2), Some(&code.to_be_bytes()[..]));
        assert_eq!(self.next_frame(), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_masked_and_their_lengths_are_minimal() {
        assert_eq!(
            frame(TEXT, b"x"),
            [0x81, 0x81, 0x37, 0xfa, 0x21, 0x3d, b'x' ^ 0x37]
        );
        assert_eq!(frame(TEXT, [0; 125]).len(), 2 + 4 + 125);
        assert_eq!(frame(TEXT, [0; 126]).len(), 4 + 4 + 126);
        assert_eq!(frame(TEXT, vec![0; 65_536]).len(), 10 + 4 + 65_536);
    }

    #[test]
    fn frames_are_parsed_once_they_are_complete() {
        let bytes = [&[0x82, 126, 0, 126][..], &[7; 126], b"\x8a\x00"].concat();
        for len in 0..130 {
            assert!(parse_frame(&bytes[..len]).unwrap().is_none(), "{len}");
        }
        let frame = parse_frame(&bytes).unwrap().unwrap();
        assert_eq!(
            (frame.first, frame.payload, frame.len),
            (BINARY, &[7; 126][..], 130)
        );
        assert!(parse_frame(&[0x82, 126, 0, 125]).is_err());
        assert!(parse_frame(&[0x82, 0x81, 0, 0, 0, 0, 0]).is_err());
        assert!(parse_frame(&[0x82, 127, 0, 0, 0, 0, 0, 0, 0xff, 0xff]).is_err());
    }
}
