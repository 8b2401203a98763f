//! A raw WebSocket client: writes the frames it is told to, reads those that come.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::connect;

const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

pub(crate) const TEXT: u8 = 0x81;
pub(crate) const BINARY: u8 = 0x82;
pub(crate) const CLOSE: u8 = 0x88;
pub(crate) const PING: u8 = 0x89;
pub(crate) const PONG: u8 = 0x8a;

/// A masked frame with this first byte.
pub(crate) fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
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
pub(crate) fn close(code: u16, reason: &str) -> Vec<u8> {
    frame(CLOSE, &[&code.to_be_bytes(), reason.as_bytes()].concat())
}

/// A request for a WebSocket, with more fields.
pub(crate) fn handshake(path: &str, fields: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: a.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{fields}\r\n"
    )
}

pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    pub(crate) head: String,
    buffer: Vec<u8>,
}

impl Client {
    /// Opens a WebSocket; fails the test if the server does not.
    #[track_caller]
    pub(crate) fn open(addr: SocketAddr, path: &str) -> Self {
        Self::ask(addr, handshake(path, ""))
    }

    /// The same with a whole request of one's own.
    #[track_caller]
    pub(crate) fn ask(addr: SocketAddr, request: impl AsRef<[u8]>) -> Self {
        let mut stream = connect(addr);
        stream.write_all(request.as_ref()).unwrap();
        let mut client = Self {
            stream,
            head: String::new(),
            buffer: Vec::new(),
        };
        let len = loop {
            if let Some(at) = client
                .buffer
                .windows(4)
                .position(|part| part == b"\r\n\r\n")
            {
                break at + 4;
            }
            assert!(client.more(), "no answer to the handshake");
        };
        client.head = String::from_utf8(client.buffer.drain(..len).collect()).unwrap();
        assert!(client.head.starts_with("HTTP/1.1 101 "), "{}", client.head);
        client
    }

    /// `false` at the end of the stream, however it ends.
    fn more(&mut self) -> bool {
        let mut piece = [0; 65536];
        match self.stream.read(&mut piece) {
            Ok(len) => {
                self.buffer.extend_from_slice(&piece[..len]);
                len > 0
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => unreachable!("nothing comes: {error}"),
        }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.send(frame(TEXT, text.as_bytes()));
    }

    /// The next frame: first byte and payload. `None` at the end of the stream.
    pub(crate) fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            if let Some((header_len, len)) = self.header()
                && self.buffer.len() >= header_len + len
            {
                let bytes: Vec<u8> = self.buffer.drain(..header_len + len).collect();
                return Some((bytes[0], bytes[header_len..].to_vec()));
            }
            if !self.more() {
                return None;
            }
        }
    }

    fn header(&self) -> Option<(usize, usize)> {
        let bytes = &self.buffer;
        let second = *bytes.get(1)?;
        assert_eq!(second & 0x80, 0, "a server's frame is not masked");
        match second {
            126 => {
                let len = bytes.get(2..4)?.try_into().unwrap();
                Some((4, u16::from_be_bytes(len).into()))
            }
            127 => {
                let len = bytes.get(2..10)?.try_into().unwrap();
                Some((10, u64::from_be_bytes(len).try_into().unwrap()))
            }
            len => Some((2, len.into())),
        }
    }

    #[track_caller]
    pub(crate) fn expect(&mut self, first: u8, payload: impl AsRef<[u8]>) {
        let (got, bytes) = self.next().expect("a frame");
        let payload = payload.as_ref();
        assert!(
            got == first && bytes == payload,
            "{got:#x} {:?}, not {first:#x} {:?}",
            bytes.escape_ascii().to_string(),
            payload.escape_ascii().to_string(),
        );
    }

    #[track_caller]
    pub(crate) fn expect_text(&mut self, text: &str) {
        self.expect(TEXT, text);
    }

    /// A close frame with this code, and then the end of the stream.
    #[track_caller]
    pub(crate) fn expect_close(&mut self, code: u16) {
        let (first, payload) = self.next().expect("a close frame");
        assert_eq!(first, CLOSE, "{:?}", payload.escape_ascii().to_string());
        assert_eq!(payload.get(..2), Some(&code.to_be_bytes()[..]));
        assert_eq!(self.next(), None);
    }
}
