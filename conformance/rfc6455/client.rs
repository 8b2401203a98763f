//! WebSocket client of the tests, connected to the server under test.

use std::ops::{Deref, DerefMut};

use testkit::websocket::{self, CLOSE};
pub(crate) use testkit::websocket::{close, frame};

use crate::server;

/// Header lines of a valid handshake.
pub(crate) const FIELDS: &str = "Host: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                                 Sec-WebSocket-Version: 13\r\n\
                                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

// Each frame that it reads is checked by testkit. RFC 6455, 5.1: "A server MUST NOT mask any frames
// that it sends to the client." 5.2, of the reserved bits: "MUST be 0 unless an extension is
// negotiated that defines meanings for non-zero values." And 5.2: "in all cases, the minimal number
// of bytes MUST be used to encode the length".
/// WebSocket connection to the server under test.
pub(crate) struct Client(websocket::Client);

impl Deref for Client {
    type Target = websocket::Client;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Client {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Client {
    #[track_caller]
    pub(crate) fn open() -> Self {
        Self::with("", b"")
    }

    /// Opens a WebSocket with additional header fields, and sends `early` in the same write as the
    /// request.
    #[track_caller]
    pub(crate) fn with(fields: &str, early: &[u8]) -> Self {
        let client = Self::ask(&format!("GET /ws HTTP/1.1\r\n{FIELDS}{fields}\r\n"), early);
        assert_eq!(client.status(), 101, "{}", client.response.head);
        client
    }

    /// Sends a request and reads the head of its response.
    #[track_caller]
    pub(crate) fn ask(request: &str, early: &[u8]) -> Self {
        let bytes = [request.as_bytes(), early].concat();
        Self(websocket::Client::ask(server::addr(), bytes))
    }

    pub(crate) fn status(&self) -> u16 {
        self.response.status
    }

    /// Returns all values of a field of the response.
    pub(crate) fn values(&self, name: &str) -> Vec<&str> {
        self.response.headers(name).collect()
    }

    /// Expects the server to fail the connection, that is, to close it with or without a close
    /// frame with `code`.
    #[track_caller]
    pub(crate) fn expect_failure(&mut self, code: u16) {
        if let Some((first, payload)) = self.next_frame() {
            let text = payload.escape_ascii();
            assert_eq!(first, CLOSE, "the connection goes on: {text}");
            assert_eq!(payload.get(..2), Some(&code.to_be_bytes()[..]));
            assert_eq!(self.next_frame(), None);
        }
    }
}
