//! Answers given on the I/O thread.

use crate::exec::Lane;
use crate::fields::is_settable;
use crate::http::{Status, Version};
use crate::proto::encode::{self, Delimiter};
use crate::response::{Body, Response};

/// Counts the times an I/O thread has requests to look at: what was read from some connections, or
/// what a read left over while an earlier request was with a worker. All requests of a turn were
/// read before the first of them is looked at. So what a service finds to be fresh for one is fresh
/// for all of them: none was sent after it had looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Turn(pub(crate) u64);

/// A response rendered once and sent many times: status line, fields and body in one piece.
#[derive(Debug, Clone)]
pub struct Prepared {
    bytes: Box<[u8]>,
    /// Invariant: `body_start <= bytes.len()`. Before it stands the head but for what [`Reply`]
    /// adds.
    body_start: usize,
    status: Status,
}

impl Prepared {
    /// Renders a response.
    ///
    /// # Panics
    ///
    /// As [`Response::header`](crate::Response::header): these are a program's own fields.
    #[track_caller]
    pub fn new(status: Status, fields: &[(&str, &str)], body: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(160 + body.len());
        encode::status_line(&mut bytes, status);
        for (name, value) in fields {
            assert!(
                is_settable(name),
                "{name:?} is not a header field a handler may set"
            );
            assert!(
                encode::is_field_value(value.as_bytes()),
                "control character in {name}"
            );
            encode::field(&mut bytes, name, value.as_bytes());
        }
        encode::delimiter(&mut bytes, Delimiter::Length(body.len() as u64));
        let body_start = bytes.len();
        bytes.extend_from_slice(body);
        Self {
            bytes: bytes.into_boxed_slice(),
            body_start,
            status,
        }
    }

    /// The body.
    pub fn body(&self) -> &[u8] {
        self.bytes.get(self.body_start..).unwrap_or_default()
    }

    /// The status.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Bytes of memory it holds.
    pub fn memory_len(&self) -> usize {
        size_of::<Self>() + self.bytes.len()
    }

    fn head(&self) -> &[u8] {
        self.bytes.get(..self.body_start).unwrap_or_default()
    }
}

/// What [`Service::inline`](crate::Service::inline) did. Only a [`Reply`] makes one, so a request
/// is either answered once or passed on, never both and never neither.
#[derive(Debug)]
#[must_use]
pub struct Inline(pub(crate) Outcome);

#[derive(Debug, Clone, Copy)]
pub(crate) enum Outcome {
    /// Answered: status, and the length of the body sent.
    Sent(Status, u64),
    Dispatch(Lane),
}

/// The one answer to a request.
#[derive(Debug)]
pub struct Reply<'a> {
    pub(crate) out: &'a mut Vec<u8>,
    pub(crate) version: Version,
    pub(crate) keep: bool,
    pub(crate) is_head: bool,
    pub(crate) date: &'a [u8],
}

impl Reply<'_> {
    /// Sends a prepared response.
    pub fn prepared(self, prepared: &Prepared) -> Inline {
        self.out.extend_from_slice(prepared.head());
        encode::finish(self.out, self.version, self.keep, self.date);
        let body = if self.is_head {
            &[][..]
        } else {
            prepared.body()
        };
        self.out.extend_from_slice(body);
        Inline(Outcome::Sent(prepared.status, body.len() as u64))
    }

    /// Sends a response whose body is in memory. It is not compressed here: that would take longer
    /// than others should wait.
    ///
    /// # Panics
    ///
    /// If the body would have to be pulled, or the response is promised for later or takes the
    /// connection over: those are for workers.
    pub fn response(self, response: Response) -> Inline {
        assert!(
            response.is_in_memory(),
            "only a response in memory can be sent inline"
        );
        let Response {
            status,
            fields,
            body,
            ..
        } = response;
        let body = match &body {
            Body::Bytes(bytes) => bytes,
            Body::Shared(bytes) => &**bytes,
            Body::Empty | Body::Source(_) => &[],
        };
        encode::status_line(self.out, status);
        self.out.extend_from_slice(&fields);
        let has_body = status.allows_body();
        let delimiter = if has_body {
            Delimiter::Length(body.len() as u64)
        } else {
            Delimiter::None
        };
        encode::delimiter(self.out, delimiter);
        encode::finish(self.out, self.version, self.keep, self.date);
        let body = if self.is_head || !has_body { &[] } else { body };
        self.out.extend_from_slice(body);
        Inline(Outcome::Sent(status, body.len() as u64))
    }

    /// Leaves the request to a worker.
    pub fn dispatch(self) -> Inline {
        Inline(Outcome::Dispatch(Lane::Prompt))
    }

    /// Leaves the request to a worker, among those whose handlers or bodies read files. They have
    /// places of their own, as many as [`Builder::workers`](crate::Builder::workers) says: if a
    /// disk hangs, and all of them with it, what was [dispatched](Self::dispatch) otherwise is
    /// answered as ever.
    pub fn dispatch_slow(self) -> Inline {
        Inline(Outcome::Dispatch(Lane::Slow))
    }

    /// Leaves the request to a worker, among those whose handlers compute for long, such as to hash
    /// a password. Few run at the same time: one for sixteen
    /// [workers](crate::Builder::workers), half the cores if those are as many as usual. What
    /// follows the computing can be left to others: [`Response::again`].
    pub fn dispatch_costly(self) -> Inline {
        Inline(Outcome::Dispatch(Lane::Costly))
    }
}
