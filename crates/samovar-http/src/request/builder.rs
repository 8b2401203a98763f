//! Requests without a connection, for tests of handlers.

use std::any::Any;
use std::fmt;
use std::io::{self, Cursor, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::Request;
use crate::client::Peer;
use crate::head::Head;
use crate::http::Status;
use crate::lane::Lane;
use crate::observer::Tag;
use crate::proto::Refusal;
use crate::proto::encode;
use crate::proto::head::{HeadIndex, HeadLimits, parse};
use crate::upload::{BodyError, RequestLink};

/// Builds a [`Request`] without a connection; created by [`Request::builder`].
pub struct RequestBuilder {
    /// The request line and the header lines added so far.
    head: Vec<u8>,
    has_host: bool,
    body: Vec<u8>,
    peer: Peer,
}

impl RequestBuilder {
    pub(super) fn new(method: &str, target: &str) -> Self {
        Self {
            head: format!("{method} {target} HTTP/1.1\r\n").into_bytes(),
            has_host: false,
            body: Vec::new(),
            peer: Peer::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        }
    }

    /// Adds a header field. Without a `Host`, the request gets `Host: localhost`.
    ///
    /// # Panics
    ///
    /// If the name is not a token, or the value contains a control character.
    #[must_use]
    #[track_caller]
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        let value = value.as_ref();
        assert!(encode::is_field_name(name), "{name:?} is no field name");
        assert!(
            encode::is_field_value(value),
            "control character in the value of {name}"
        );
        encode::field(&mut self.head, name, value);
        self.has_host |= name.eq_ignore_ascii_case("host");
        self
    }

    /// Sets the body. The request gets its `Content-Length`, unless the body is empty.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Sets the client. The default is the address 127.0.0.1 with port 0.
    #[must_use]
    pub fn peer(mut self, peer: Peer) -> Self {
        self.peer = peer;
        self
    }

    /// Creates the request.
    ///
    /// # Panics
    ///
    /// If a server with default [`Limits`](crate::Limits) would refuse the head: a malformed method
    /// or target, two `Host` fields, or a `Content-Length` that was added with
    /// [`header`](Self::header) beside a body.
    #[must_use]
    #[track_caller]
    pub fn build(self) -> Request {
        let mut raw = self.head;
        if !self.has_host {
            encode::field(&mut raw, "Host", b"localhost");
        }
        if !self.body.is_empty() {
            let len = self.body.len().to_string();
            encode::field(&mut raw, "Content-Length", len.as_bytes());
        }
        raw.extend_from_slice(b"\r\n");
        let mut index = HeadIndex::default();
        let parsed = parse(&raw, &HeadLimits::default(), &mut index);
        assert!(
            parsed == Ok(Some(raw.len())),
            "a server refuses this request: {parsed:?}"
        );
        let head = Head::new(&raw, &index, self.peer, None);
        let mut request = Request::of(head, Lane::Prompt, Tag::default());
        request.body = self.body;
        request
    }
}

impl fmt::Debug for RequestBuilder {
    /// Writes only the request line: header fields may contain credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.head.split(|byte| *byte == b'\r').next();
        write!(f, "{}", line.unwrap_or_default().escape_ascii())
    }
}

/// Makes the body of a request one that its handler reads as a stream, of up to `len_max` bytes.
pub(crate) fn stream_body(request: &mut Request, len_max: u64) {
    request.link = Some(Box::new(StreamedBody {
        bytes: Cursor::new(std::mem::take(&mut request.body)),
        left: len_max,
    }));
}

/// The body of a request without a connection, read as a stream.
#[derive(Debug)]
struct StreamedBody {
    bytes: Cursor<Vec<u8>>,
    /// Number of bytes that may still be read.
    left: u64,
}

impl RequestLink for StreamedBody {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.bytes.read(buffer)?;
        self.left = self
            .left
            .checked_sub(len as u64)
            .ok_or(BodyError::Refused(Refusal::BodyTooLarge))?;
        Ok(len)
    }

    /// Drops the response: no client waits for it.
    fn inform(&mut self, _: Status, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn wait(&self, is_ready: &mut dyn FnMut(Duration) -> bool) -> io::Result<()> {
        while !is_ready(Duration::from_millis(100)) {}
        Ok(())
    }

    fn is_streamed(&self) -> bool {
        true
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
