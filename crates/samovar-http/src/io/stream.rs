//! What workers and I/O threads tell each other about one stream of an HTTP/2 connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use super::key::Key;
use crate::body::Outflow;
use crate::exec::{Lane, Preferences};
use crate::h2::ResponseHead;
use crate::http::Status;
use crate::later::Later;
use crate::request::Request;

/// Where a stream is, and how much of it may be in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamRef {
    /// Index of its I/O thread.
    pub(crate) home: usize,
    pub(crate) key: Key,
    pub(crate) stream: u32,
    /// Where its request is answered.
    pub(crate) lane: Lane,
    /// Length of a piece of its answer's body, in bytes.
    pub(crate) piece_len: usize,
}

/// Set once the answer to a request is of no use to anybody.
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

/// Something that a worker does for a stream. The connection stays where it is.
#[derive(Debug)]
pub(crate) struct StreamJob {
    pub(crate) stream: StreamRef,
    pub(crate) cancel: Cancel,
    pub(crate) work: StreamWork,
}

#[derive(Debug)]
pub(crate) enum StreamWork {
    /// Answer the request.
    Handle(Box<Request>),
    /// Give the answer that was promised.
    Fulfil(Arc<Later>, Preferences),
    /// Make the next piece of a body.
    Pull(Box<Outflow>),
}

/// What has become of a stream's work.
#[derive(Debug)]
pub(crate) enum StreamNews {
    /// An interim response is to be sent: its status and field lines.
    Inform(Status, Vec<u8>),
    /// The handler has read so many bytes of the request.
    Release(usize),
    /// The handler is done, and the answer is promised.
    Deferred(Arc<Later>, Preferences, Option<Box<Request>>),
    /// The answer begins. The request comes back where somebody wants to hear of it.
    Answer(Box<StreamAnswer>, Option<Box<Request>>),
    /// The answer goes on.
    Piece(Bytes, Rest),
    /// The handler is done, and there will be no answer.
    HandlerLost,
    /// There will be no more of the answer.
    BodyFailed,
}

#[derive(Debug)]
pub(crate) struct StreamAnswer {
    /// The handler was done before.
    pub(crate) was_deferred: bool,
    pub(crate) status: Status,
    pub(crate) head: ResponseHead,
    pub(crate) bytes: Bytes,
    pub(crate) rest: Rest,
}

/// What follows a piece of a body.
#[derive(Debug)]
pub(crate) enum Rest {
    /// Nothing but these field lines, if any.
    End(Vec<u8>),
    /// More, when it is asked for.
    More(Box<Outflow>),
    /// More, once the body wakes the stream.
    Wait(Box<Outflow>),
}

impl Rest {
    /// What is left of the body.
    pub(crate) fn into_outflow(self) -> Option<Box<Outflow>> {
        match self {
            Self::End(_) => None,
            Self::More(outflow) | Self::Wait(outflow) => Some(outflow),
        }
    }
}

impl StreamNews {
    /// What is left of the body, when nobody hears the news.
    pub(crate) fn into_outflow(self) -> Option<Box<Outflow>> {
        match self {
            Self::Answer(answer, _) => answer.rest.into_outflow(),
            Self::Piece(_, rest) => rest.into_outflow(),
            _ => None,
        }
    }
}
