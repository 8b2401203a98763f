//! Owned requests, which handlers receive.

mod builder;
mod form;
mod params;

use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use crate::client::{Claimant, Peer};
use crate::extensions::Extensions;
use crate::head::Head;
use crate::http::{Status, Version};
use crate::lane::Lane;
use crate::memory::{Budget, Held};
use crate::observer::Tag;
use crate::proto::encode;
use crate::proto::head::HeadIndex;
use crate::response::{Place, is_settable};
use crate::tls::Session;
use crate::upload::{BodyError, RequestLink};

pub use self::builder::RequestBuilder;
pub(crate) use self::builder::stream_body;
pub use self::params::Params;
pub(crate) use self::params::{Matched, Span, Template};

/// Maximum length of the interim responses to one request, in bytes.
const INFORMED_LEN_MAX: usize = 64 * 1024;
/// Length of the status line and the empty line of an interim response, about, in bytes.
const STATUS_LINE_LEN: usize = 32;

/// A request: its head, its body, and values attached by middleware.
pub struct Request {
    raw: Box<[u8]>,
    index: HeadIndex,
    peer: Peer,
    pub(crate) session: Option<Arc<Session>>,
    /// The body; empty if the handler reads it as a stream.
    pub(crate) body: Vec<u8>,
    /// The part of the request body budget that `body` uses; `None` before the first byte was
    /// added.
    held: Option<Held>,
    /// Length of the interim responses sent so far, in bytes.
    informed_len: usize,
    /// Number of bytes of `body` that a reader has consumed.
    pub(crate) read_len: usize,
    /// Access to the connection or stream of the request, while a handler on a worker has the
    /// request.
    pub(crate) link: Option<Box<dyn RequestLink>>,
    extensions: Extensions,
    /// The lane in which the request is handled.
    pub(crate) lane: Lane,
    /// The client for whom a long computation is done, if the service has named it.
    pub(crate) claimant: Option<Claimant>,
    /// What the service has found out about the request.
    pub(crate) tag: Tag,
    /// Whether the handler runs on the I/O thread.
    pub(crate) is_inline: bool,
    /// Whether a handler has sent the request back to its I/O thread.
    pub(crate) was_sent_back: bool,
    /// The matched route; `None` before routing.
    pub(crate) matched: Option<Box<Matched>>,
}

impl Request {
    /// Builds a request without a connection, for a call of a handler or of
    /// [`Router::answer`](crate::Router::answer) in a test.
    ///
    /// ```
    /// use samovar_http::Request;
    ///
    /// fn greet(request: &mut Request) -> String {
    ///     format!("Hello, {}\n", request.query().get("name").unwrap_or("you"))
    /// }
    /// let mut request = Request::builder("GET", "/hello?name=Ada").build();
    /// assert_eq!(greet(&mut request), "Hello, Ada\n");
    /// ```
    pub fn builder(method: &str, target: &str) -> RequestBuilder {
        RequestBuilder::new(method, target)
    }

    /// Creates an owned copy of a request head, to be handled in this place.
    pub(crate) fn of(head: Head<'_>, place: impl Into<Place>, tag: Tag) -> Self {
        let Place { lane, claimant } = place.into();
        Self {
            raw: head.raw.into(),
            index: head.index.clone(),
            peer: head.peer(),
            session: head.session.cloned(),
            body: Vec::new(),
            held: None,
            informed_len: 0,
            read_len: 0,
            link: None,
            extensions: Extensions::default(),
            lane,
            claimant,
            tag,
            is_inline: false,
            was_sent_back: false,
            matched: None,
        }
    }

    /// Appends bytes to the body; returns `false` if the budget is exhausted.
    pub(crate) fn add_body(&mut self, bytes: &[u8], budget: &Arc<Budget>) -> bool {
        let held = self.held.get_or_insert_with(|| Held::new(budget));
        let has_room = held.grow(bytes.len());
        if has_room {
            self.body.extend_from_slice(bytes);
        }
        has_room
    }

    /// Returns the head.
    pub fn head(&self) -> Head<'_> {
        let head = Head::new(&self.raw, &self.index, self.peer, self.session.as_ref());
        match self.was_sent_back {
            true => head.sent_back(),
            false => head,
        }
    }

    /// Sets where the request is handled, and its tag.
    pub(crate) fn place(&mut self, place: Place, tag: Tag) {
        (self.lane, self.claimant, self.tag) = (place.lane, place.claimant, tag);
    }

    /// Returns the complete body. Empty if the request has none, or if the body is
    /// [streamed](crate::Intake::Streamed); use [`reader`](Self::reader) in that case.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Returns a reader of the body, for streamed and complete bodies. Reading a streamed body
    /// waits for the client, and the first read sends `100 Continue` if the client [expects] it. If
    /// the handler does not read the whole body, the rest is discarded after the response; if the
    /// rest is too long, the connection is closed.
    ///
    /// [expects]: https://www.rfc-editor.org/rfc/rfc9110#section-10.1.1
    pub fn reader(&mut self) -> BodyReader<'_> {
        BodyReader { request: self }
    }

    /// Sends an interim response, which precedes the final one: 103 with `Link` fields, so that a
    /// browser fetches what the page needs while the handler still computes it, or 102, so that a
    /// proxy goes on waiting. Does nothing for HTTP/1.0 clients, which do not know interim
    /// responses.
    ///
    /// ```
    /// use samovar_http::http::Status;
    /// use samovar_http::{Error, Request};
    ///
    /// fn page(request: &mut Request) -> Result<String, Error> {
    ///     let style = ("Link", "</style.css>; rel=preload; as=style");
    ///     request.inform(Status::EARLY_HINTS, &[style])?;
    ///     // A database may take a second for the rest.
    ///     Ok("<link rel=stylesheet href=/style.css>Hello\n".to_owned())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// If the connection has failed. [`InvalidInput`](io::ErrorKind::InvalidInput) for a status
    /// that is not 102 to 199, because only the engine itself sends 100 and 101; for a field that
    /// [`Response::header`](crate::Response::header) would refuse; and beyond 64 KiB of interim
    /// responses to one request, because a client need not read them.
    pub fn inform(&mut self, status: Status, fields: &[(&str, &str)]) -> io::Result<()> {
        let refused = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        if Status::interim(status.code()).is_none() {
            return refused("not an interim status that a handler may send");
        }
        let mut lines = Vec::new();
        for (name, value) in fields {
            if !is_settable(name) || !encode::is_field_value(value.as_bytes()) {
                return refused("not a header field that a handler may set");
            }
            encode::field(&mut lines, name, value.as_bytes());
        }
        self.informed_len += STATUS_LINE_LEN + lines.len();
        if self.informed_len > INFORMED_LEN_MAX {
            return refused("too many interim responses");
        }
        match &mut self.link {
            Some(link) if self.index.version != Version::Http10 => link.inform(status, &lines),
            _ => Ok(()),
        }
    }

    /// Returns the values that middleware has attached to the request.
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    /// Returns the attached values for modification.
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        &mut self.extensions
    }

    /// Returns whether the handler may have to wait for the rest of the body.
    pub(crate) fn is_streamed(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.is_streamed())
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head().fmt(f)
    }
}

/// Reads the body of a request; created by [`Request::reader`].
#[derive(Debug)]
pub struct BodyReader<'a> {
    request: &'a mut Request,
}

impl BodyReader<'_> {
    /// Waits for something other than the client, such as memory that other requests use. Calls
    /// `is_ready` until it returns `true`; each call may block for at most the given time.
    /// Meanwhile the worker slot of this request is lent to other requests.
    ///
    /// # Errors
    ///
    /// [`BodyError::Stopped`](crate::BodyError::Stopped) if the server is stopping.
    pub fn wait(&self, mut is_ready: impl FnMut(Duration) -> bool) -> io::Result<()> {
        match &self.request.link {
            Some(link) => link.wait(&mut is_ready),
            // A request without a link is handled on an I/O thread, or its exchange has ended.
            None => Err(BodyError::Stopped.into()),
        }
    }
}

impl Read for BodyReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let request = &mut *self.request;
        // Invariant: `read_len <= body.len()`.
        let rest = &request.body[request.read_len..];
        if !rest.is_empty() {
            let len = rest.len().min(buffer.len());
            buffer[..len].copy_from_slice(&rest[..len]);
            request.read_len += len;
            return Ok(len);
        }
        match &mut request.link {
            None => Ok(0),
            Some(link) => link.read(buffer),
        }
    }
}
