//! Answers on the I/O thread.

use crate::exec::Lane;
use crate::fields;
use crate::http::{Status, Version};
use crate::proto::encode::{self, Delimiter};
use crate::response::Response;

/// Number of a turn of an I/O thread: one batch of requests that were all read before the first of
/// them is answered. Data that a service finds current for one request of a turn is current for the
/// others, because none of them was sent after the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Turn(pub(crate) u64);

/// A response rendered once and sent many times: status line, header fields and body.
#[derive(Debug, Clone)]
pub struct Prepared {
    bytes: Box<[u8]>,
    /// Invariant: `body_start <= bytes.len()`. The head is before it, without the fields that
    /// [`Reply`] adds.
    body_start: usize,
    status: Status,
}

impl Prepared {
    /// Renders a response.
    ///
    /// # Panics
    ///
    /// As [`Response::header`](crate::Response::header).
    #[track_caller]
    pub fn new(status: Status, fields: &[(&str, &str)], body: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(160 + body.len());
        encode::status_line(&mut bytes, status);
        for (name, value) in fields {
            fields::add(&mut bytes, name, value.as_bytes());
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
        &self.bytes[self.body_start..]
    }

    /// The status.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Memory used, in bytes.
    pub fn memory_len(&self) -> usize {
        size_of::<Self>() + self.bytes.len()
    }

    fn head(&self) -> &[u8] {
        &self.bytes[..self.body_start]
    }
}

/// The result of [`Service::inline`](crate::Service::inline). Only a [`Reply`] creates one, so a
/// request is either answered or dispatched, never both and never neither.
#[derive(Debug)]
#[must_use]
pub struct Inline(pub(crate) Outcome);

#[derive(Debug, Clone, Copy)]
pub(crate) enum Outcome {
    /// Answered, with this status and length of the body.
    Sent(Status, u64),
    Dispatch(Lane),
}

/// Answers or dispatches one request.
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

    /// Sends a response whose body is in memory. It is not compressed: that would delay the other
    /// connections of the thread.
    ///
    /// # Panics
    ///
    /// If the body is a [`Source`](crate::Source), or the response is deferred or a WebSocket
    /// upgrade: those are for workers.
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
        let body = body.in_memory().unwrap_or_default();
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

    /// Dispatches the request to a worker, in the prompt lane.
    pub fn dispatch(self) -> Inline {
        Inline(Outcome::Dispatch(Lane::Prompt))
    }

    /// Dispatches the request to a worker, in the slow lane, for handlers or bodies that read
    /// files. That lane has worker slots of its own, [`Builder::workers`](crate::Builder::workers)
    /// of them: if a disk hangs and they are all occupied, requests [dispatched](Self::dispatch) to
    /// the prompt lane are still answered.
    pub fn dispatch_slow(self) -> Inline {
        Inline(Outcome::Dispatch(Lane::Slow))
    }

    /// Dispatches the request to a worker, in the costly lane, for handlers that compute for long,
    /// such as to hash a password. Few run at the same time: one for sixteen
    /// [workers](crate::Builder::workers), which is half the cores by default. A handler can move
    /// to another lane afterwards: [`Response::requeue`].
    pub fn dispatch_costly(self) -> Inline {
        Inline(Outcome::Dispatch(Lane::Costly))
    }
}
