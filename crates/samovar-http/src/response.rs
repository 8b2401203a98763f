//! What a handler answers.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::body::Source;
use crate::http::Status;
use crate::proto::encode;

/// The body of a response.
#[non_exhaustive]
pub enum Body {
    /// None.
    Empty,
    /// Bytes of this response alone, or for ever.
    Bytes(Cow<'static, [u8]>),
    /// Bytes that many responses share.
    Shared(Arc<[u8]>),
    /// Pulled piece by piece while the peer reads.
    Source(Box<dyn Source>),
}

impl Body {
    /// The length in bytes, where it is known.
    pub fn len(&self) -> Option<u64> {
        match self {
            Self::Empty => Some(0),
            Self::Bytes(bytes) => Some(bytes.len() as u64),
            Self::Shared(bytes) => Some(bytes.len() as u64),
            Self::Source(source) => source.len(),
        }
    }

    /// Whether the body is known to hold nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
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

/// A response: status, header fields, body.
///
/// The engine adds `Content-Length` or `Transfer-Encoding`, `Date` and `Connection`; those are not
/// for a handler to set. To a HEAD request it sends the same head and no body.
#[derive(Debug)]
pub struct Response {
    pub(crate) status: Status,
    pub(crate) fields: Vec<u8>,
    pub(crate) body: Body,
}

impl Response {
    /// A response without header fields.
    pub fn new(status: Status, body: Body) -> Self {
        Self {
            status,
            fields: Vec::new(),
            body,
        }
    }

    /// Plain text.
    pub fn text(status: Status, text: impl Into<Cow<'static, str>>) -> Self {
        let bytes = match text.into() {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        };
        Self::new(status, Body::Bytes(bytes)).header("Content-Type", "text/plain")
    }

    /// Adds a header field.
    ///
    /// # Panics
    ///
    /// If the name is not a token, the value holds a control character, or the field is one the
    /// engine writes. On a worker a panic becomes a 500, so a hostile value in a header cannot
    /// split a response: check values that come from outside before they get here.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        assert!(
            is_settable(name),
            "{name:?} is not a header field a handler may set"
        );
        let value = value.as_ref();
        assert!(
            encode::is_field_value(value),
            "control character in the value of {name}"
        );
        encode::field(&mut self.fields, name, value);
        self
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

/// Whether a handler may set this field: a token, and not one that frames the message.
pub(crate) fn is_settable(name: &str) -> bool {
    const ENGINE: [&str; 4] = ["content-length", "transfer-encoding", "connection", "date"];
    encode::is_field_name(name) && !ENGINE.iter().any(|field| name.eq_ignore_ascii_case(field))
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
    #[should_panic(expected = "may set")]
    fn framing_belongs_to_the_engine() {
        let _framed = Response::new(Status::OK, Body::Empty).header("content-LENGTH", "5");
    }
}
