//! A request as a handler gets it.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::body::{Budget, Held};
use crate::exec::Lane;
use crate::extensions::Extensions;
use crate::head::{Head, Peer, Session};
use crate::http::{Status, Version};
#[cfg(feature = "http2")]
use crate::inflow::StreamLink;
use crate::io::conn::Conn;
use crate::proto::encode;
use crate::proto::head::HeadIndex;
use crate::route::Matched;
use crate::upload::{BodyReader, Upload};

/// A request, owned.
pub struct Request {
    raw: Box<[u8]>,
    index: HeadIndex,
    peer: Peer,
    pub(crate) session: Option<Arc<Session>>,
    /// The body, where it was read before the handler started.
    pub(crate) body: Vec<u8>,
    /// What `body` takes of the memory for bodies.
    held: Option<Held>,
    /// How much of `body` a reader has taken.
    pub(crate) read_len: usize,
    pub(crate) link: Link,
    extensions: Extensions,
    /// Where it is answered.
    pub(crate) lane: Lane,
    /// Whether the I/O thread calls its handler.
    pub(crate) is_inline: bool,
    /// The route it is for, once that is known.
    pub(crate) matched: Option<Box<Matched>>,
}

/// The connection a request came on, while a handler has it.
#[derive(Debug, Default)]
pub(crate) enum Link {
    /// The handler has not begun, or is done.
    #[default]
    None,
    /// HTTP/1: the connection itself.
    Http1(Box<Upload>),
    /// HTTP/2: the way to the stream.
    #[cfg(feature = "http2")]
    Http2(Box<StreamLink>),
}

impl Request {
    pub(crate) fn new(raw: Box<[u8]>, index: HeadIndex, peer: Peer) -> Self {
        Self {
            raw,
            index,
            peer,
            session: None,
            body: Vec::new(),
            held: None,
            read_len: 0,
            link: Link::None,
            extensions: Extensions::default(),
            lane: Lane::Prompt,
            is_inline: false,
            matched: None,
        }
    }

    /// Adds to the body; `false` if there is no memory for it.
    pub(crate) fn add_body(&mut self, bytes: &[u8], budget: &Arc<Budget>) -> bool {
        let held = self.held.get_or_insert_with(|| Held::new(budget));
        let has_room = held.grow(bytes.len());
        if has_room {
            self.body.extend_from_slice(bytes);
        }
        has_room
    }

    /// Its head.
    pub fn head(&self) -> Head<'_> {
        Head::new(&self.raw, &self.index, self.peer).with_session(self.session.as_ref())
    }

    /// Its body, complete; empty if there was none, or if it is
    /// [streamed](crate::Intake::Streamed): then [`reader`](Self::reader) has it.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Its body as a stream of bytes, however it is taken in. Reading waits for the peer where the
    /// body is streamed; the first read tells a peer that [expects] it to go on. What is not read
    /// is dropped after the answer, or the connection is closed if it is too much.
    ///
    /// [expects]: https://www.rfc-editor.org/rfc/rfc9110#section-10.1.1
    pub fn reader(&mut self) -> BodyReader<'_> {
        BodyReader::new(self)
    }

    /// Sends an interim response: 102, or 103 with `Link` fields. Does nothing for an HTTP/1.0
    /// peer, which would not understand it.
    ///
    /// # Errors
    ///
    /// If the connection is broken; and [`InvalidInput`](io::ErrorKind::InvalidInput) for a status
    /// outside 102 to 199, or a field that could split the head. 100 and 101 are the engine's.
    pub fn inform(&mut self, code: u16, fields: &[(&str, &str)]) -> io::Result<()> {
        let status = Status::interim(code)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not an interim status"))?;
        let is_sound = |(name, value): &(&str, &str)| {
            crate::response::is_settable(name) && encode::is_field_value(value.as_bytes())
        };
        if !fields.iter().all(is_sound) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a header field",
            ));
        }
        if self.index.version == Version::Http10 {
            return Ok(());
        }
        match &mut self.link {
            Link::None => Ok(()),
            Link::Http1(upload) => {
                let conn = &mut upload.conn;
                encode::status_line(&mut conn.output, status);
                for (name, value) in fields {
                    encode::field(&mut conn.output, name, value.as_bytes());
                }
                conn.output.extend_from_slice(b"\r\n");
                // What the socket does not take now goes before the answer.
                conn.flush().map(drop)
            }
            #[cfg(feature = "http2")]
            Link::Http2(stream) => {
                let mut text = Vec::new();
                for (name, value) in fields {
                    encode::field(&mut text, name, value.as_bytes());
                }
                stream.inform(status, text);
                Ok(())
            }
        }
    }

    /// What others have put beside the request.
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    /// What others have put beside the request.
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        &mut self.extensions
    }

    /// Whether a handler may have to wait for the rest of the body.
    #[cfg(feature = "http2")]
    pub(crate) fn is_streamed(&self) -> bool {
        matches!(&self.link, Link::Http2(stream) if stream.inflow.is_some())
    }

    /// The connection, back from the handler.
    pub(crate) fn take_conn(&mut self) -> Option<Box<Conn>> {
        match std::mem::take(&mut self.link) {
            Link::None => None,
            Link::Http1(upload) => Some(upload.into_conn()),
            #[cfg(feature = "http2")]
            Link::Http2(_) => None,
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head().fmt(f)
    }
}
