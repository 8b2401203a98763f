//! Responses and their bodies.

pub(crate) mod alone;
mod channel;
mod fields;
pub(crate) mod into_response;
mod later;
mod reply;

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, Cursor, Read};
use std::ops::Range;
use std::sync::Arc;

use crate::body::{Source, sources};
use crate::http::Status;
use crate::lane::Lane;
use crate::ws::Accepted;

pub use self::channel::{SendError, Sender};
pub(crate) use self::fields::is_settable;
pub use self::into_response::IntoResponse;
pub(crate) use self::later::Later;
pub use self::later::Responder;
pub use self::reply::{Inline, Prepared, Reply, Turn};
pub(crate) use self::reply::{Outcome, Place};

/// The body of a response.
#[non_exhaustive]
pub enum Body {
    /// No body.
    Empty,
    /// Bytes owned by this response, or static bytes.
    Bytes(Cow<'static, [u8]>),
    /// Bytes shared with other responses.
    Shared(Arc<[u8]>),
    /// A source that produces the bytes while the client reads.
    Source(Box<dyn Source>),
}

impl Body {
    /// Creates a body from a whole file of its current length. The kernel sends the bytes from the
    /// page cache, unless they have to be transformed, for example compressed.
    ///
    /// # Errors
    ///
    /// If the file's length cannot be read, or if it is not a regular file: a pipe could block a
    /// worker forever.
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

    /// Creates a body from a range of a file. If the file is shorter, the connection is reset.
    pub fn file_range(file: impl Into<Arc<File>>, range: Range<u64>) -> Self {
        Self::Source(Box::new(sources::FileRange::new(file.into(), range)))
    }

    /// Creates a body from all bytes of a reader. Workers read it as fast as the client accepts
    /// bytes. It may block for any time: meanwhile it occupies a thread and no worker slot, and the
    /// connection is closed if the client leaves. With many clients that wait for long, a
    /// [`channel`](Self::channel) is cheaper. If the reader computes,
    /// [`keeping_slot`](Self::keeping_slot) limits how many do so at the same time.
    pub fn reader(reader: impl Read + Send + 'static) -> Self {
        Self::Source(Box::new(sources::Reader::new(reader, None)))
    }

    /// Creates a body from the first `len` bytes of a reader. If the reader has fewer, the
    /// connection is reset.
    pub fn reader_of_len(reader: impl Read + Send + 'static, len: u64) -> Self {
        Self::Source(Box::new(sources::Reader::new(reader.take(len), Some(len))))
    }

    /// Creates a body from the pieces of an iterator. Each piece is produced after the client has
    /// read the previous one.
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

    /// Keeps the worker slot while the body of a [`reader`](Self::reader) or the iterator of
    /// [`pieces`](Self::pieces) is read. For readers that compute or read files, and wait for
    /// nothing else: the slots limit how many of them work at the same time.
    pub fn keeping_slot(self) -> Self {
        match self {
            Self::Source(source) => Self::Source(Box::new(sources::KeepingSlot(source))),
            body => body,
        }
    }

    /// Creates a body that any thread can write through the [`Sender`], for example for server-sent
    /// events. It occupies no thread while it waits for data.
    pub fn channel() -> (Sender, Self) {
        let (sender, receiver) = channel::channel();
        (sender, Self::Source(Box::new(receiver)))
    }

    /// Returns the length in bytes; `None` if it is not known in advance.
    pub fn len(&self) -> Option<u64> {
        match self {
            Self::Source(source) => source.len(),
            _ => self.in_memory().map(|bytes| bytes.len() as u64),
        }
    }

    /// Returns the bytes of a body in memory; `None` for a source.
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

    /// Returns whether the body is known to be empty.
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
/// The engine adds `Content-Length` or `Transfer-Encoding`, `Date` and `Connection`; handlers
/// cannot set these fields. The response to a HEAD request has the same head and no body.
#[derive(Debug)]
pub struct Response {
    pub(crate) status: Status,
    pub(crate) fields: Vec<u8>,
    pub(crate) body: Body,
    /// Length of the body in bytes; `None` if it is not known in advance.
    pub(crate) body_len: Option<u64>,
    /// Whether the body must not be compressed.
    pub(crate) is_uncompressed: bool,
    /// The deferred response. If it is set, only `fields` and `is_uncompressed` have an effect
    /// besides.
    pub(crate) later: Option<Arc<Later>>,
    /// The WebSocket that takes over the connection once the head is sent; `None` for any other
    /// response.
    pub(crate) upgrade: Option<Box<Accepted>>,
    /// What happens to the request instead of a response. If it is set, all other fields are
    /// ignored.
    pub(crate) instead: Option<Instead>,
}

/// What happens to a request to which a handler does not respond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Instead {
    /// The handler is called again, in this lane.
    Handle(Lane),
    /// The I/O thread decides again.
    Decide,
}

impl Response {
    /// Creates a response without header fields.
    pub fn new(status: Status, body: impl Into<Body>) -> Self {
        let body = body.into();
        Self {
            status,
            fields: Vec::new(),
            body_len: body.len(),
            body,
            is_uncompressed: false,
            later: None,
            upgrade: None,
            instead: None,
        }
    }

    /// Requeues the request: the handler is called again with it in the prompt lane, as if the
    /// request had just been [dispatched](crate::Reply::dispatch). For handlers that have finished
    /// the [costly](crate::Reply::dispatch_costly) part of their work. If the queue is full, the
    /// client gets 503.
    ///
    /// The handler must not have read any part of a [streamed](crate::Intake::Streamed) body.
    pub fn requeue() -> Self {
        Self::requeue_in(Lane::Prompt)
    }

    /// Requeues the request in the [slow lane](crate::Reply::dispatch_slow).
    pub fn requeue_slow() -> Self {
        Self::requeue_in(Lane::Slow)
    }

    /// Requeues the request in the [writing lane](crate::Reply::dispatch_writing).
    pub fn requeue_writing() -> Self {
        Self::requeue_in(Lane::Writing)
    }

    /// Sends the request back to its I/O thread, which calls [`Service::inline`] again, and then
    /// [`Service::intake`] and [`Service::handle`], with a head that
    /// [was sent back](crate::Head::was_sent_back). Nothing was sent to the client yet, and of a
    /// [streamed](crate::Intake::Streamed) body nothing was read, so the client cannot see that a
    /// handler had the request. For decisions that need a worker and after which the request is
    /// handled as if it had not needed one.
    ///
    /// The handler must not have read any part of a streamed body. A request can be sent back once;
    /// the second time, the client gets 500.
    ///
    /// [`Service::inline`]: crate::Service::inline
    /// [`Service::intake`]: crate::Service::intake
    /// [`Service::handle`]: crate::Service::handle
    pub fn send_back() -> Self {
        Self::instead(Instead::Decide)
    }

    fn requeue_in(lane: Lane) -> Self {
        Self::instead(Instead::Handle(lane))
    }

    fn instead(instead: Instead) -> Self {
        let mut response = Self::new(Status::INTERNAL_SERVER_ERROR, Body::Empty);
        response.instead = Some(instead);
        response
    }

    /// Defers the response. The handler returns this placeholder at once, so no thread waits. Any
    /// thread can complete the response later through the [`Responder`].
    ///
    /// Header fields of the placeholder, such as those that middleware adds, are added to the
    /// response if it has no fields of the same names. `Set-Cookie` and `Vary` are always added.
    /// The status of the placeholder has no effect.
    pub fn later() -> (Responder, Self) {
        let later = Arc::new(Later::default());
        let mut response = Self::new(Status::OK, Body::Empty);
        response.later = Some(Arc::clone(&later));
        (Responder::new(later), response)
    }

    /// Adds the header fields of the placeholder of this response.
    pub(crate) fn add_fields_of_placeholder(&mut self, fields: &[u8]) {
        let own_len = self.fields.len();
        for line in fields.split_inclusive(|byte| *byte == b'\n') {
            let own = self.fields.get(..own_len).unwrap_or_default();
            let is_list = ["set-cookie", "vary"]
                .iter()
                .any(|name| is_field_of(line, name));
            let mut own = own.split_inclusive(|byte| *byte == b'\n');
            if is_list || !own.any(|own| name_of(own).eq_ignore_ascii_case(name_of(line))) {
                self.fields.extend_from_slice(line);
            }
        }
    }

    /// Creates a plain text response in UTF-8.
    pub fn text(status: Status, text: impl Into<Cow<'static, str>>) -> Self {
        let text = text.into();
        // All clients decode ASCII alike without a charset, so only other text declares one.
        let media_type = if text.is_ascii() {
            "text/plain"
        } else {
            "text/plain; charset=utf-8"
        };
        Self::of_type(status, media_type, text_bytes(text))
    }

    /// Creates an HTML response in UTF-8.
    pub fn html(status: Status, page: impl Into<Cow<'static, str>>) -> Self {
        Self::of_type(status, "text/html; charset=utf-8", text_bytes(page.into()))
    }

    /// Creates a response from serialized JSON, such as the result of
    /// `serde_json::to_string(&value)?`.
    pub fn json(status: Status, json: impl Into<Cow<'static, str>>) -> Self {
        Self::of_type(status, "application/json", text_bytes(json.into()))
    }

    /// Creates a redirect. Status 301 or 308 is permanent, 302 or 307 temporary, and 303 leads to
    /// the result of a POST. `location` is a percent-encoded URL or path in ASCII. A path from
    /// untrusted input must start with exactly one slash: `//host` and `/\host` lead to other
    /// sites.
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

    /// Adds a header field. It keeps existing fields of the same name, as needed for `Set-Cookie`;
    /// [`set_header`](Self::set_header) replaces them.
    ///
    /// # Panics
    ///
    /// If the name is not a token, the value contains a control character, or the field is written
    /// by the engine itself. On a worker, the panic becomes a 500 response, so a hostile value
    /// cannot split a response. Check untrusted values before the call.
    #[must_use]
    #[track_caller]
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        fields::add(&mut self.fields, name, value.as_ref());
        self
    }

    /// Sets a header field and removes all others of the same name, compared case-insensitively.
    /// Use it to change the `Content-Type` of [`text`](Self::text), or in middleware.
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
        self = self.remove_header(name);
        self.header(name, value)
    }

    /// Removes all header fields of this name, compared case-insensitively.
    #[must_use]
    pub fn remove_header(mut self, name: &str) -> Self {
        let lines = self.fields.split_inclusive(|byte| *byte == b'\n');
        let others = lines.filter(|line| !is_field_of(line, name));
        self.fields = others.flatten().copied().collect();
        self
    }

    /// Replaces the status.
    #[must_use]
    pub fn with_status(mut self, status: Status) -> Self {
        self.status = status;
        self
    }

    /// Excludes the body from [compression](crate::compress). For bodies that contain both a secret
    /// and text chosen by an attacker: their compressed length would leak the secret. For a
    /// [deferred](Self::later) response, it may be set on either of the two.
    #[must_use]
    pub fn uncompressed(mut self) -> Self {
        self.is_uncompressed = true;
        self
    }

    /// Returns whether a header field of this name is set; names are compared case-insensitively.
    pub fn has_header(&self, name: &str) -> bool {
        let mut lines = self.fields.split(|byte| *byte == b'\n');
        lines.any(|line| is_field_of(line, name))
    }

    /// Returns whether the whole response is in memory.
    pub(crate) fn is_in_memory(&self) -> bool {
        !matches!(self.body, Body::Source(_)) && self.later.is_none() && self.upgrade.is_none()
    }

    /// Returns the status.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Returns the body.
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// Iterates over the header fields set so far, in order: names as set, and values. The engine
    /// adds its own fields later.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let lines = self.fields.split(|byte| *byte == b'\n');
        lines.filter_map(|line| {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let (name, value) = line.split_at(colon);
            let name = std::str::from_utf8(name).ok()?;
            Some((name, value[1..].trim_ascii()))
        })
    }

    /// Returns the value of the first header field with this name, compared case-insensitively, as
    /// text; `None` if there is no such field, or if its value is not UTF-8.
    pub fn header_text(&self, name: &str) -> Option<&str> {
        let (_, value) = self
            .headers()
            .find(|(field, _)| field.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(value).ok()
    }

    /// Reads the body into memory, for tests. Blocks until the body is complete; a
    /// [`channel`](Body::channel) is complete when its sender finishes.
    ///
    /// # Errors
    ///
    /// Errors of the source of the body.
    pub fn into_bytes(self) -> io::Result<Vec<u8>> {
        alone::read(self.body)
    }
}

fn text_bytes(text: Cow<'static, str>) -> Cow<'static, [u8]> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

/// Returns whether a header line has this name.
fn is_field_of(line: &[u8], name: &str) -> bool {
    name_of(line).eq_ignore_ascii_case(name.as_bytes())
}

/// Returns the name of a header line.
fn name_of(line: &[u8]) -> &[u8] {
    line.split(|byte| *byte == b':').next().unwrap_or_default()
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
    fn header_adds_a_field_and_set_header_replaces_all_of_its_name() {
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
    fn middleware_can_remove_fields_and_replace_the_status() {
        let response = Response::text(Status::OK, "gone")
            .header("X-A", "1")
            .header("x-a", "2")
            .remove_header("X-a")
            .with_status(Status::GONE);
        assert_eq!(response.status(), Status::GONE);
        assert!(!response.has_header("x-a"));
        assert!(response.has_header("content-type"));
    }

    #[test]
    #[should_panic(expected = "may set")]
    fn a_handler_cannot_set_content_length() {
        let _framed = Response::new(Status::OK, Body::Empty).header("content-LENGTH", "5");
    }
}
