//! Responses sent by the I/O thread.

use super::Response;
use super::fields;
use crate::client::Claimant;
use crate::http::{Status, Version};
use crate::lane::Lane;
use crate::observer::Tag;
use crate::proto::encode::{self, Delimiter};

/// Number of a round of an I/O thread. In each round, the thread reads a batch of requests before
/// it responds to the first. If a service checks that its data is current for one request, the data
/// is current for all requests of the round, because all of them were received before the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Turn(pub(crate) u64);

/// A response that is rendered once and sent many times: status line, header fields and body.
#[derive(Debug, Clone)]
pub struct Prepared {
    bytes: Box<[u8]>,
    /// Index of the body in `bytes`. Invariant: `body_start <= bytes.len()`. The head precedes this
    /// index, without the fields that [`Reply`] adds.
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

    /// Returns the body.
    pub fn body(&self) -> &[u8] {
        &self.bytes[self.body_start..]
    }

    /// Returns the status.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Returns the memory used, in bytes.
    pub fn memory_len(&self) -> usize {
        size_of::<Self>() + self.bytes.len()
    }

    fn head(&self) -> &[u8] {
        &self.bytes[..self.body_start]
    }
}

/// The result of [`Service::inline`](crate::Service::inline). Only the methods of [`Reply`] create
/// one, so each request is either answered or dispatched, and never both.
#[derive(Debug)]
#[must_use]
pub struct Inline(pub(crate) Outcome);

#[derive(Debug, Clone, Copy)]
pub(crate) enum Outcome {
    /// The response was sent, with this status and body length in bytes.
    Sent(Status, u64),
    Dispatch(Place),
}

/// Where a request is handled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) lane: Lane,
    /// The client for whom a long computation is done, if the service has named it.
    pub(crate) claimant: Option<Claimant>,
}

impl From<Lane> for Place {
    fn from(lane: Lane) -> Self {
        let claimant = None;
        Self { lane, claimant }
    }
}

/// Responds to one request, or dispatches it to a worker.
#[derive(Debug)]
pub struct Reply<'a> {
    pub(crate) out: &'a mut Vec<u8>,
    pub(crate) version: Version,
    pub(crate) keep: bool,
    pub(crate) is_head: bool,
    pub(crate) date: &'a [u8],
    /// Further header lines, each with its line end.
    pub(crate) lines: &'static [u8],
    /// The tag of the request; `None` if nobody asks for it.
    pub(crate) tag: Option<&'a mut Tag>,
}

impl Reply<'_> {
    /// Adds header lines to the response, each with its line end, such as `b"A: b\r\n"`. A later
    /// call replaces them. They have no effect on a request that is dispatched.
    #[must_use]
    pub fn with_lines(mut self, lines: &'static [u8]) -> Self {
        self.lines = lines;
        self
    }

    /// Sets the tag of the request. A later call replaces it.
    #[must_use]
    pub fn with_tag(mut self, tag: Tag) -> Self {
        if let Some(place) = &mut self.tag {
            **place = tag;
        }
        self
    }

    /// Sends a prepared response.
    pub fn prepared(self, prepared: &Prepared) -> Inline {
        self.out.extend_from_slice(prepared.head());
        if !self.lines.is_empty() {
            self.out.extend_from_slice(self.lines);
        }
        encode::finish(self.out, self.version, self.keep, self.date);
        let body = if self.is_head {
            &[][..]
        } else {
            prepared.body()
        };
        self.out.extend_from_slice(body);
        Inline(Outcome::Sent(prepared.status, body.len() as u64))
    }

    /// Sends a response whose body is in memory. The response is not compressed, because that would
    /// delay the other connections of the thread.
    ///
    /// # Panics
    ///
    /// If the body is a [`Source`](crate::Source), or the response is deferred or a WebSocket
    /// upgrade: only workers can send those.
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
        self.out.extend_from_slice(self.lines);
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

    /// Dispatches the request to a worker in the prompt lane.
    pub fn dispatch(self) -> Inline {
        Inline(Outcome::Dispatch(Lane::Prompt.into()))
    }

    /// Dispatches the request to a worker in the slow lane, for handlers or bodies that read files.
    /// That lane has [`Builder::workers`](crate::Builder::workers) worker slots of its own. If a
    /// disk hangs and blocks all of them, requests [dispatched](Self::dispatch) to the prompt lane
    /// are still served.
    pub fn dispatch_slow(self) -> Inline {
        Inline(Outcome::Dispatch(Lane::Slow.into()))
    }

    /// Dispatches the request to a worker in the writing lane, for handlers that write to a disk.
    /// That lane has [`Builder::workers`](crate::Builder::workers) worker slots of its own. If a
    /// disk cannot be written and blocks all of them, requests in the other lanes are still served,
    /// including those that [read](Self::dispatch_slow) from the disk.
    pub fn dispatch_writing(self) -> Inline {
        Inline(Outcome::Dispatch(Lane::Writing.into()))
    }

    /// Dispatches the request to a worker in the costly lane, for handlers with long computations
    /// such as hashing a password. Few of them run at the same time: half as many as there are
    /// cores, or fewer if there are few [workers](crate::Builder::workers). After the computation,
    /// a handler can move the request to another lane with [`Response::requeue`].
    pub fn dispatch_costly(self) -> Inline {
        Inline(Outcome::Dispatch(Lane::Costly.into()))
    }

    /// Dispatches the request to a worker in the costly lane, for a computation that is of no use
    /// unless this client waits for its result, such as the verification of its password. Others
    /// may ask for many such computations to hold it up, so the networks of clients take turns.
    /// [`dispatch_costly`](Self::dispatch_costly) is the same for the client of the connection,
    /// [placed first](Claimant::first).
    ///
    /// The handler is not called if the client has closed the connection while it waited behind
    /// others.
    pub fn dispatch_costly_for(self, claimant: Claimant) -> Inline {
        Inline(Outcome::Dispatch(Place {
            lane: Lane::Costly,
            claimant: Some(claimant),
        }))
    }
}
