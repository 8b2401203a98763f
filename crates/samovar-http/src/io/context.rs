//! The state of an I/O thread that its protocols use.
//!
//! A protocol gets a connection, does a step, and returns what happens to the connection next. Only
//! the thread knows where connections are kept and which events there are.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::answer::Date;
use crate::core::Shared;
use crate::exec::Job;
use crate::observer::Incident;
use crate::proto::head::HeadIndex;
use crate::request::Request;
use crate::service::Service;

/// Bytes read at once: enough for any head and many pipelined requests.
const READ_LEN: usize = 64 * 1024;
/// Bytes of answers gathered before they are written, while pipelined requests keep coming.
pub(super) const GATHER_LEN: usize = 64 * 1024;
/// The thread's memory for answers shrinks to this after a large one, in bytes.
pub(super) const OUT_LEN_KEPT: usize = 4 * GATHER_LEN;
/// Bytes read and dropped from a lingering connection.
pub(super) const LINGER_LEN_MAX: u64 = 256 * 1024;

/// How often time limits are checked, which is their precision.
const SWEEP_TIME: Duration = Duration::from_millis(250);
/// The same during a drain, whose caller waits for the last connection.
const DRAIN_SWEEP_TIME: Duration = Duration::from_millis(25);

/// The next step for an HTTP/1 connection.
pub(super) enum Next {
    /// It waits for events.
    Wait,
    /// It has more to do than one turn allows.
    Again,
    /// It goes to a worker, which handles this request.
    Handle(Box<Request>),
    /// It goes to a worker, which continues the TLS handshake.
    #[cfg(feature = "tls")]
    Shake,
    /// It goes to a worker, which sends more of the answer.
    Pump,
    /// It has become a WebSocket.
    OpenSocket,
    /// It speaks HTTP/2.
    #[cfg(feature = "http2")]
    Http2,
    /// It is closed.
    Close,
}

/// The next step for a connection that stays with the thread: HTTP/2, a WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stay {
    /// It waits for events.
    Wait,
    /// It has more to do than one turn allows.
    Again,
    /// It is closed.
    Close,
}

/// A drain in progress.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drain {
    pub(super) since: Instant,
    /// When remaining connections are aborted.
    pub(super) deadline: Instant,
}

/// State of one I/O thread that protocols use.
pub(super) struct Context<S: Service> {
    pub(super) shared: Arc<Shared<S>>,
    /// Index of the thread.
    pub(super) home: usize,
    pub(super) local: S::Local,
    /// Scratch memory for each read.
    pub(super) read_buffer: Box<[u8]>,
    /// Scratch memory for answers.
    pub(super) out: Vec<u8>,
    /// Scratch memory for the head of an HTTP/2 answer.
    #[cfg(feature = "http2")]
    pub(super) scratch: Vec<u8>,
    /// Scratch memory for the index of a request head.
    pub(super) index: HeadIndex,
    /// The present [`Turn`](crate::Turn).
    pub(super) turn: u64,
    /// When the present events were received.
    pub(super) now: Instant,
    pub(super) date: Date,
    pub(super) drain: Option<Drain>,
    /// Jobs were queued and no worker was woken for them yet.
    pub(super) has_queued: bool,
}

impl<S: Service> Context<S> {
    pub(super) fn new(shared: Arc<Shared<S>>, home: usize) -> Self {
        let local = shared.service.local();
        Self {
            shared,
            home,
            local,
            read_buffer: read_buffer(),
            out: Vec::with_capacity(GATHER_LEN),
            #[cfg(feature = "http2")]
            scratch: Vec::new(),
            index: HeadIndex::default(),
            turn: 0,
            now: Instant::now(),
            date: Date::default(),
            drain: None,
            has_queued: false,
        }
    }

    /// Restores scratch memory that a panic has taken away.
    pub(super) fn recover(&mut self) {
        self.out.clear();
        if self.read_buffer.is_empty() {
            self.read_buffer = read_buffer();
        }
    }

    pub(super) fn sweep_time(&self) -> Duration {
        if self.drain.is_some() {
            DRAIN_SWEEP_TIME
        } else {
            SWEEP_TIME
        }
    }

    pub(super) fn incident(&self, incident: &Incident<'_>) {
        self.shared.service.observer().incident(incident);
    }

    /// Whether HTTP/2 is offered in TLS handshakes.
    #[cfg(feature = "tls")]
    pub(super) fn speaks_http2(&self) -> bool {
        #[cfg(feature = "http2")]
        return self.shared.is_http2;
        #[cfg(not(feature = "http2"))]
        false
    }

    /// Queues a job; returns it if the queue is full and the job may be refused. Workers are woken
    /// once for all jobs of a round.
    pub(super) fn queue(&mut self, job: Job) -> Result<(), Job> {
        self.has_queued = true;
        self.shared.queue.push(job)
    }

    /// Drops the rest of an answer on a worker, because that may close files and so block.
    pub(super) fn discard(&mut self, rest: Option<Box<impl fmt::Debug + Send + 'static>>) {
        if let Some(rest) = rest {
            // Unreachable error: the queue accepts every `Job::Discard`.
            drop(self.queue(Job::Discard(rest)));
        }
    }

    /// Wakes workers for the jobs queued in this round.
    pub(super) fn wake_workers(&mut self) {
        if std::mem::take(&mut self.has_queued) {
            self.shared.queue.wake();
        }
    }
}

fn read_buffer() -> Box<[u8]> {
    vec![0; READ_LEN].into_boxed_slice()
}
