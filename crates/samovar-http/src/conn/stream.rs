//! Messages between workers and I/O threads for HTTP/2 streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use super::Preferences;
use crate::body::Outflow;
use crate::h2::ResponseHead;
use crate::http::Status;
use crate::lane::Lane;
use crate::net::key::Key;
use crate::request::Request;
use crate::response::Later;

/// Identifies a stream, and contains the parameters of its response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamRef {
    /// Index of the stream's I/O thread.
    pub(crate) home: usize,
    pub(crate) key: Key,
    pub(crate) stream: u32,
    /// The lane in which the request is handled.
    pub(crate) lane: Lane,
    /// Length of the pieces of its response body, in bytes.
    pub(crate) piece_len: usize,
}

/// A flag that is set once the stream has ended, so that a response is no longer needed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cancel(Arc<AtomicBool>);

impl Cancel {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A worker's job for a stream. The connection stays with its I/O thread.
#[derive(Debug)]
pub(crate) struct StreamJob {
    pub(crate) stream: StreamRef,
    pub(crate) cancel: Cancel,
    pub(crate) work: StreamWork,
}

#[derive(Debug)]
pub(crate) enum StreamWork {
    /// Handle the request.
    Handle(Box<Request>),
    /// Send the deferred response.
    Fulfil(Arc<Later>, Preferences),
    /// Produce the next piece of the body.
    Pull(Box<Outflow>),
}

/// The result of a worker's job for a stream, sent to the I/O thread.
#[derive(Debug)]
pub(crate) enum StreamNews {
    /// Send an interim response with these field lines: the handler has sent one, or waits for the
    /// request body (`100 Continue`).
    Inform(Status, Vec<u8>),
    /// The handler has read this number of bytes of the request body.
    Release(usize),
    /// The handler has sent the request back.
    SentBack(Box<Request>),
    /// The handler has deferred the response.
    Deferred(Arc<Later>, Preferences, Option<Box<Request>>),
    /// The start of the response, with the request if the observer needs it for a report.
    Answer(Box<StreamAnswer>, Option<Box<Request>>),
    /// The first pull of the response body has started, and may wait for any time.
    Reads,
    /// The next piece of the response body.
    Piece(Bytes, Rest),
    /// The handler has panicked or was skipped, so there is no response.
    HandlerLost,
    /// The response body has failed.
    BodyFailed,
}

#[derive(Debug)]
pub(crate) struct StreamAnswer {
    /// Whether the response was deferred, so that the handler no longer counts as running.
    pub(crate) was_deferred: bool,
    pub(crate) status: Status,
    pub(crate) head: ResponseHead,
    pub(crate) bytes: Bytes,
    pub(crate) rest: Rest,
}

/// The part of a body that follows a piece.
#[derive(Debug)]
pub(crate) enum Rest {
    /// The body has ended.
    End,
    /// More bytes, which the next pull returns. If `is_dry` is set, that pull must wait until the
    /// application has woken the stream.
    More { outflow: Box<Outflow>, is_dry: bool },
}

impl Rest {
    /// Returns the rest of the body, if any.
    pub(crate) fn into_outflow(self) -> Option<Box<Outflow>> {
        match self {
            Self::End => None,
            Self::More { outflow, .. } => Some(outflow),
        }
    }
}

impl StreamNews {
    /// Returns the rest of the body, if any. For results that arrive after the stream has ended.
    pub(crate) fn into_outflow(self) -> Option<Box<Outflow>> {
        match self {
            Self::Answer(answer, _) => answer.rest.into_outflow(),
            Self::Piece(_, rest) => rest.into_outflow(),
            _ => None,
        }
    }
}
