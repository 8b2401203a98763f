//! Responses and their bodies.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, Cursor, Read};
use std::ops::Range;
use std::sync::Arc;

use crate::body::{Source, sources};
use crate::channel::{self, Producer, Sender, Writer};
use crate::exec::Lane;
use crate::fields::{self, is_settable};
use crate::http::Status;
use crate::later::{Later, Responder};
use crate::ws::Upgraded;

/// The body of a response.
#[non_exhaustive]
pub enum Body {
    /// No body.
    Empty,
    /// Bytes of this response alone, or static ones.
    Bytes(Cow<'static, [u8]>),
    /// Bytes shared by many responses.
    Shared(Arc<[u8]>),
    /// Produced piece by piece while the client reads.
    Source(Box<dyn Source>),
}

impl Body {
    /// A whole file, at its present length. Unless its bytes have to be changed, the kernel sends
    /// it from the page cache.
    ///
    /// # Errors
    ///
    /// If its length cannot be read, or it is not a regular file: a pipe could block a worker for
    /// ever.
    pub fn file(file: File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a regular file",
            ));
        }
        Ok(Self::file_range(file, 0..metadata.len()))
    }

    /// A range of a file. If the file turns out to be shorter, the connection is reset.
    pub fn file_range(file: impl Into<Arc<File>>, range: Range<u64>) -> Self {
        Self::Source(Box::new(sources::FileRange::new(file.into(), range)))
    }

    /// The bytes of a reader, until its end. It is read on workers as fast as the client reads, so
    /// it may block on a disk; use a [`channel`](Self::channel) for one that waits for long.
    pub fn reader(reader: impl Read + Send + 'static) -> Self {
        Self::Source(Box::new(sources::Reader::new(reader, None)))
    }

    /// The bytes of a reader whose length is known. If it yields more or fewer bytes, the
    /// connection is reset.
    pub fn reader_of_len(reader: impl Read + Send + 'static, len: u64) -> Self {
        Self::Source(Box::new(sources::Reader::new(reader.take(len), Some(len))))
    }

    /// The pieces of an iterator, each produced when the client has read the one before.
    ///
    /// ```
    /// use samovar_http::Body;
    ///
    /// let countdown = Body::pieces((0..10).rev().map(|i| Ok(format!("{i}\n").into_bytes())));
    /// ```
    pub fn pieces<I>(pieces: I) -> Self
    where
        I: IntoIterator<Item = io::Result<Vec<u8>>>,
        I::IntoIter: Send + 'static,
    {
        Self::Source(Box::new(sources::Pieces::new(pieces.into_iter())))
    }

    /// A body written by any thread, for server-sent events and the like. It occupies no thread
    /// while it waits.
    pub fn channel() -> (Sender, Self) {
        let (sender, receiver) = channel::channel();
        (sender, Self::Source(Box::new(receiver)))
    }

    /// The length in bytes, if known.
    pub fn len(&self) -> Option<u64> {
        match self {
            Self::Source(source) => source.len(),
            _ => self.in_memory().map(|bytes| bytes.len() as u64),
        }
    }

    /// The bytes of a body in memory.
    pub(crate) fn in_memory(&self) -> Option<&[u8]> {
        match self {
            Self::Empty => Some(&[]),
            Self::Bytes(bytes) => Some(bytes),
            Self::Shared(bytes) => Some(bytes),
            Self::Source(_) => None,
        }
    }

    pub(crate) fn into_source(self) -> Box<dyn Source> {
        fn memory(bytes: impl AsRef<[u8]> + Send + 'static) -> Box<dyn Source> {
            let len = bytes.as_ref().len() as u64;
            Box::new(sources::Reader::new(Cursor::new(bytes), Some(len)))
        }
        match self {
            Self::Empty => memory([]),
            Self::Bytes(bytes) => memory(bytes),
            Self::Shared(bytes) => memory(bytes),
            Self::Source(source) => source,
        }
    }

    /// Whether the body is known to be empty.
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Self::Bytes(text.as_bytes().into())
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Self::Bytes(text.into_bytes().into())
    }
}

impl From<&'static [u8]> for Body {
    fn from(bytes: &'static [u8]) -> Self {
        Self::Bytes(bytes.into())
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes.into())
    }
}

impl From<Arc<[u8]>> for Body {
    fn from(bytes: Arc<[u8]>) -> Self {
        Self::Shared(bytes)
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.len() {
            Some(len) => write!(f, "{len} bytes"),
            None => f.write_str("unknown length"),
        }
    }
}

/// A response: status, header fields and body.
///
/// The engine adds `Content-Length` or `Transfer-Encoding`, `Date` and `Connection`; a handler
/// cannot set these. A HEAD request gets the same head without the body.
#[derive(Debug)]
pub struct Response {
    pub(crate) status: Status,
    pub(crate) fields: Vec<u8>,
    pub(crate) body: Body,
    /// Length of the body in bytes, if known.
    pub(crate) body_len: Option<u64>,
    pub(crate) has_trailers: bool,
    /// Never compressed.
    pub(crate) is_uncompressed: bool,
    /// Set for a deferred response; everything else is ignored.
    pub(crate) later: Option<Arc<Later>>,
    /// The WebSocket that the connection becomes once the head is sent.
    pub(crate) upgrade: Option<Box<Upgraded>>,
    /// Writes the body once the head is sent.
    pub(crate) producer: Option<Producer>,
    /// Set if the handler is to be called again, in this lane; everything else is ignored.
    pub(crate) requeue: Option<Lane>,
}

impl Response {
    /// A response without header fields.
    pub fn new(status: Status, body: impl Into<Body>) -> Self {
        let body = body.into();
        Self {
            status,
            fields: Vec::new(),
            body_len: body.len(),
            body,
            has_trailers: false,
            is_uncompressed: false,
            later: None,
            upgrade: None,
            producer: None,
            requeue: None,
        }
    }

    /// Requeues the request: the handler is called once more with it, as if it had been
    /// [dispatched](crate::Reply::dispatch). For a handler that has finished its
    /// [costly](crate::Reply::dispatch_costly) part. If the queue is full, the client gets 503.
    ///
    /// No part of a [streamed](crate::Intake::Streamed) body may have been read.
    pub fn requeue() -> Self {
        Self::requeue_in(Lane::Prompt)
    }

    /// Requeues the request in the [slow lane](crate::Reply::dispatch_slow).
    pub fn requeue_slow() -> Self {
        Self::requeue_in(Lane::Slow)
    }

    fn requeue_in(lane: Lane) -> Self {
        let mut response = Self::new(Status::OK, Body::Empty);
        response.requeue = Some(lane);
        response
    }

    /// Defers the response. The handler returns the placeholder at once, so no thread waits; any
    /// thread can complete it later through the [`Responder`].
    pub fn later() -> (Responder, Self) {
        let later = Arc::new(Later::default());
        let mut response = Self::new(Status::OK, Body::Empty);
        response.later = Some(Arc::clone(&later));
        (Responder::new(later), response)
    }

    /// A response whose body is written by a function, after the head is sent. The function runs on
    /// a worker and may block; while the client is slow, its worker slot is lent to others. If it
    /// returns an error or panics, the connection is reset, so that the client does not take a part
    /// for the whole.
    ///
    /// ```
    /// use std::io::Write;
    /// use samovar_http::{Response, http::Status};
    ///
    /// let report = Response::push(Status::OK, |out| {
    ///     for row in 0..1_000_000 {
    ///         writeln!(out, "row {row}")?;
    ///     }
    ///     Ok(())
    /// });
    /// ```
    pub fn push(
        status: Status,
        write: impl FnOnce(&mut Writer<'_>) -> io::Result<()> + Send + 'static,
    ) -> Self {
        let (sender, body) = Body::channel();
        let mut response = Self::new(status, body);
        response.producer = Some(Producer::new(sender, Box::new(write)));
        response
    }

    /// Plain text, in UTF-8.
    pub fn text(status: Status, text: impl Into<Cow<'static, str>>) -> Self {
        let text = text.into();
        // ASCII is read the same by all clients without a charset; anything else is not.
        let media_type = if text.is_ascii() {
            "text/plain"
        } else {
            "text/plain; charset=utf-8"
        };
        Self::of_type(status, media_type, text_bytes(text))
    }

    /// A page of HTML, in UTF-8.
    pub fn html(status: Status, page: impl Into<Cow<'static, str>>) -> Self {
        Self::of_type(status, "text/html; charset=utf-8", text_bytes(page.into()))
    }

    /// Serialized JSON, such as from `serde_json::to_string(&value)?`.
    pub fn json(status: Status, json: impl Into<Cow<'static, str>>) -> Self {
        Self::of_type(status, "application/json", text_bytes(json.into()))
    }

    /// A redirect: 301 or 308 is permanent, 302 or 307 temporary, 303 leads to the result of a
    /// POST. `location` is a URL or a path, in ASCII, percent-encoded. A path from untrusted input
    /// must start with exactly one slash: `//host` and `/\host` lead to other sites.
    ///
    /// # Panics
    ///
    /// As [`header`](Self::header).
    #[track_caller]
    pub fn redirect(status: Status, location: &str) -> Self {
        Self::new(status, Body::Empty).header("Location", location)
    }

    fn of_type(status: Status, media_type: &str, bytes: Cow<'static, [u8]>) -> Self {
        Self::new(status, Body::Bytes(bytes)).header("Content-Type", media_type)
    }

    /// Adds a header field. An existing field of the same name stays, as `Set-Cookie` needs it;
    /// [`set_header`](Self::set_header) replaces it.
    ///
    /// # Panics
    ///
    /// If the name is not a token, the value has a control character, or the engine writes the
    /// field itself. On a worker a panic becomes a 500, so a hostile value cannot split a response;
    /// check untrusted values before.
    #[must_use]
    #[track_caller]
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        fields::add(&mut self.fields, name, value.as_ref());
        self
    }

    /// Sets a header field; replaces all fields of this name, which is compared without case. For
    /// another `Content-Type` than that of [`text`](Self::text), or in middleware.
    ///
    /// ```
    /// use samovar_http::{Response, http::Status};
    ///
    /// let style = Response::text(Status::OK, "body { color: #321 }\n")
    ///     .set_header("Content-Type", "text/css; charset=utf-8");
    /// ```
    ///
    /// # Panics
    ///
    /// As [`header`](Self::header).
    #[must_use]
    #[track_caller]
    pub fn set_header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        let lines = self.fields.split_inclusive(|byte| *byte == b'\n');
        let others = lines.filter(|line| !is_field_of(line, name));
        self.fields = others.flatten().copied().collect();
        self.header(name, value)
    }

    /// Announces trailer fields, which are known only after the body, such as a digest. The body's
    /// [`Source::trailers`](crate::Source::trailers) yields them. They are sent to clients that
    /// accept them (`TE: trailers`).
    ///
    /// # Panics
    ///
    /// As [`header`](Self::header).
    #[must_use]
    #[track_caller]
    pub fn trailers(self, names: &[&str]) -> Self {
        for name in names {
            assert!(is_settable(name), "{name:?} cannot be a trailer");
        }
        let mut response = self.header("Trailer", names.join(", "));
        response.has_trailers = true;
        response
    }

    /// Excludes the body from [compression](crate::Builder::compression). For a body with both a
    /// secret and text that an attacker can choose: the compressed length would leak the secret.
    #[must_use]
    pub fn uncompressed(mut self) -> Self {
        self.is_uncompressed = true;
        self
    }

    /// Whether a header field of this name is set; the case of letters is ignored.
    pub fn has_header(&self, name: &str) -> bool {
        let mut lines = self.fields.split(|byte| *byte == b'\n');
        lines.any(|line| is_field_of(line, name))
    }

    /// Whether the whole response is in memory.
    pub(crate) fn is_in_memory(&self) -> bool {
        !matches!(self.body, Body::Source(_)) && self.later.is_none() && self.upgrade.is_none()
    }

    /// The status.
    pub fn status(&self) -> Status {
        self.status
    }

    /// The body.
    pub fn body(&self) -> &Body {
        &self.body
    }
}

fn text_bytes(text: Cow<'static, str>) -> Cow<'static, [u8]> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

/// Whether a header line has this name.
fn is_field_of(line: &[u8], name: &str) -> bool {
    let field = line.split(|byte| *byte == b':').next();
    field.is_some_and(|field| field.eq_ignore_ascii_case(name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "control character")]
    fn a_value_cannot_split_the_head() {
        let _split = Response::new(Status::OK, Body::Empty).header("X-A", "b\r\nX-C: d");
    }

    #[test]
    fn a_field_is_added_or_takes_the_place_of_others() {
        let response = Response::text(Status::OK, "body {}")
            .header("X-A", "1")
            .header("Set-Cookie", "a=1")
            .header("set-cookie", "b=2")
            .set_header("content-type", "text/css")
            .set_header("X-A", "2");
        let expected =
            b"Set-Cookie: a=1\r\nset-cookie: b=2\r\ncontent-type: text/css\r\nX-A: 2\r\n";
        assert_eq!(
            response.fields.escape_ascii().to_string(),
            expected.escape_ascii().to_string()
        );
    }

    #[test]
    #[should_panic(expected = "may set")]
    fn framing_belongs_to_the_engine() {
        let _framed = Response::new(Status::OK, Body::Empty).header("content-LENGTH", "5");
    }
}
