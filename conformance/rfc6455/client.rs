//! A WebSocket client that does as it is told and hides nothing.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::server;

/// How long a server may be silent. Only a failing test waits for this.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// The masking key of all frames.
const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// A masked frame: its first byte, and its payload.
pub(crate) fn frame(first: u8, payload: impl AsRef<[u8]>) -> Vec<u8> {
    let payload = payload.as_ref();
    let mut bytes = vec![first];
    match payload.len() {
        len @ ..126 => bytes.push(0x80 | u8::try_from(len).unwrap()),
        len @ ..65536 => {
            bytes.push(0xfe);
            bytes.extend(u16::try_from(len).unwrap().to_be_bytes());
        }
        len => {
            bytes.push(0xff);
            bytes.extend((len as u64).to_be_bytes());
        }
    }
    bytes.extend(KEY);
    bytes.extend(payload.iter().zip(KEY.iter().cycle()).map(|(a, b)| a ^ b));
    bytes
}

/// A close frame.
pub(crate) fn close(code: u16, reason: &[u8]) -> Vec<u8> {
    frame(0x88, [&code.to_be_bytes(), reason].concat())
}

/// The fields of a handshake that is in order.
pub(crate) const FIELDS: &str = "Host: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                                 Sec-WebSocket-Version: 13\r\n\
                                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// What a server sends before it closes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// First byte and payload of a frame.
    Frame(u8, Vec<u8>),
    /// The end of the stream.
    End,
}

pub(crate) struct Client {
    stream: TcpStream,
    pub(crate) head: String,
    buffer: Vec<u8>,
}

impl Client {
    pub(crate) fn open() -> Self {
        Self::with("", b"")
    }

    /// Opens a WebSocket with more fields, and sends bytes right behind the request.
    #[track_caller]
    pub(crate) fn with(fields: &str, early: &[u8]) -> Self {
        let client = Self::ask(&format!("GET /ws HTTP/1.1\r\n{FIELDS}{fields}\r\n"), early);
        assert!(client.head.starts_with("HTTP/1.1 101 "), "{}", client.head);
        client
    }

    /// Sends a request and reads the head of its answer.
    #[track_caller]
    pub(crate) fn ask(request: &str, early: &[u8]) -> Self {
        let mut stream = TcpStream::connect(server::addr()).unwrap();
        stream.set_read_timeout(Some(SILENCE_MAX)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
            .write_all(&[request.as_bytes(), early].concat())
            .unwrap();
        let mut client = Self {
            stream,
            head: String::new(),
            buffer: Vec::new(),
        };
        let len = loop {
            let end = client
                .buffer
                .windows(4)
                .position(|part| part == b"\r\n\r\n");
            if let Some(at) = end {
                break at + 4;
            }
            assert!(client.more(), "no answer to the handshake");
        };
        client.head = String::from_utf8(client.buffer.drain(..len).collect()).unwrap();
        client
    }

    pub(crate) fn status(&self) -> u16 {
        self.head.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// All values of a field of the answer.
    pub(crate) fn values(&self, name: &str) -> Vec<&str> {
        let lines = self
            .head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(':'));
        lines
            .filter(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
            .collect()
    }

    fn more(&mut self) -> bool {
        let mut piece = [0; 65536];
        match self.stream.read(&mut piece) {
            Ok(len) => {
                self.buffer.extend_from_slice(&piece[..len]);
                len > 0
            }
            Err(error) => {
                assert_eq!(
                    error.kind(),
                    ErrorKind::ConnectionReset,
                    "the server is silent"
                );
                false
            }
        }
    }

    /// A server that has failed the connection may not read everything.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap_or_default();
    }

    pub(crate) fn next(&mut self) -> Sent {
        loop {
            if let Some((header_len, len)) = self.header()
                && self.buffer.len() >= header_len + len
            {
                let bytes: Vec<u8> = self.buffer.drain(..header_len + len).collect();
                return Sent::Frame(bytes[0], bytes[header_len..].to_vec());
            }
            if !self.more() {
                assert!(self.buffer.is_empty(), "half a frame: {:x?}", self.buffer);
                return Sent::End;
            }
        }
    }

    fn header(&self) -> Option<(usize, usize)> {
        let bytes = &self.buffer;
        let second = *bytes.get(1)?;
        // RFC 6455, 5.1: "A server MUST NOT mask any frames that it sends to the client."
        assert_eq!(second & 0x80, 0, "masked frame");
        // 5.2: "MUST be 0 unless an extension is negotiated that defines meanings for non-zero
        // values."
        let reserved = if self.values("Sec-WebSocket-Extensions").is_empty() {
            0x70
        } else {
            0x30
        };
        assert_eq!(bytes[0] & reserved, 0, "reserved bits");
        // 5.2: "in all cases, the minimal number of bytes MUST be used to encode the length"
        match second {
            126 => {
                let len = u16::from_be_bytes(bytes.get(2..4)?.try_into().unwrap());
                assert!(len > 125, "length in too many bytes");
                Some((4, len.into()))
            }
            127 => {
                let len = u64::from_be_bytes(bytes.get(2..10)?.try_into().unwrap());
                assert!(len > 65535, "length in too many bytes");
                Some((10, len.try_into().unwrap()))
            }
            len => Some((2, len.into())),
        }
    }

    #[track_caller]
    pub(crate) fn expect(&mut self, first: u8, payload: impl AsRef<[u8]>) {
        assert_eq!(self.next(), Sent::Frame(first, payload.as_ref().to_vec()));
    }

    /// The connection is failed: perhaps a close frame with this code, and then the end.
    #[track_caller]
    pub(crate) fn expect_failure(&mut self, code: u16) {
        match self.next() {
            Sent::End => {}
            Sent::Frame(first, payload) => {
                assert_eq!(
                    first,
                    0x88,
                    "not failed: {:?}",
                    payload.escape_ascii().to_string()
                );
                assert_eq!(payload.get(..2), Some(&code.to_be_bytes()[..]));
                assert_eq!(self.next(), Sent::End);
            }
        }
    }
}
