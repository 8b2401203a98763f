//! The state of an I/O thread that its protocol modules use.
//!
//! A function of a protocol module gets this state and a connection, processes a step, and returns
//! the next step for the connection. Functions that need only a part of the state get that part.
//! Only the thread itself manages the slab of connections and the events.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::answer::Date;
use crate::client::Peer;
use crate::core::Shared;
use crate::head::Head;
use crate::jobs::Job;
use crate::observer::{Incident, Observer};
use crate::proto::Refusal;
use crate::proto::head::HeadIndex;
use crate::request::Request;
use crate::service::Service;

/// Maximum number of bytes read at once: enough for any head and for many pipelined requests.
const READ_LEN: usize = 64 * 1024;
/// Number of response bytes that are gathered before they are written, while pipelined requests
/// follow.
pub(super) const GATHER_LEN: usize = 64 * 1024;
/// Capacity to which the thread's response buffer shrinks after a large response, in bytes.
pub(super) const OUT_LEN_KEPT: usize = 4 * GATHER_LEN;
/// Number of reads of a lingering connection before other connections are served.
pub(super) const LINGER_READ_COUNT: usize = 4;

/// Interval between checks of the time limits, and so their precision.
const SWEEP_TIME: Duration = Duration::from_millis(250);
/// Interval between checks of the time limits during a drain: shorter, because the caller of the
/// drain waits for the last connection.
const DRAIN_SWEEP_TIME: Duration = Duration::from_millis(25);

/// The next step for an HTTP/1 connection.
pub(super) enum Next {
    /// Wait for events.
    Wait,
    /// Serve other connections first, then continue.
    Again,
    /// Move to a worker, which handles this request.
    Handle(Box<Request>),
    /// Move to a worker, which continues the TLS handshake.
    Shake,
    /// Move to a worker, which sends more of the response.
    Pump,
    /// Continue as a WebSocket.
    OpenSocket,
    /// Continue as an HTTP/2 connection.
    Http2,
    /// Close the connection.
    Close,
}

/// The next step for a connection that stays with the thread: an HTTP/2 connection or a WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stay {
    /// Wait for events.
    Wait,
    /// Continue after other connections were served.
    Again,
    /// Close the connection.
    Close,
}

/// A drain in progress.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drain {
    pub(super) since: Instant,
    /// Time at which the remaining connections are aborted.
    pub(super) deadline: Instant,
}

/// Scratch memory for reads.
#[derive(Debug, Default)]
pub(super) struct ReadBuffer {
    /// Empty before the first read, and while it is taken.
    bytes: Box<[u8]>,
}

impl ReadBuffer {
    /// Returns the memory.
    pub(super) fn get(&mut self) -> &mut [u8] {
        if self.bytes.is_empty() {
            self.bytes = vec![0; READ_LEN].into_boxed_slice();
        }
        &mut self.bytes
    }

    /// Takes the memory; [`put`](Self::put) returns it.
    pub(super) fn take(&mut self) -> Box<[u8]> {
        self.get();
        std::mem::take(&mut self.bytes)
    }

    pub(super) fn put(&mut self, bytes: Box<[u8]>) {
        self.bytes = bytes;
    }
}

/// The state of one I/O thread that protocol modules use.
pub(super) struct Context<S: Service> {
    pub(super) shared: Arc<Shared<S>>,
    /// Index of the thread.
    pub(super) home: usize,
    pub(super) local: S::Local,
    pub(super) read_buffer: ReadBuffer,
    /// Scratch memory for responses.
    pub(super) out: Vec<u8>,
    /// Scratch memory for the head of an HTTP/2 response.
    pub(super) scratch: Vec<u8>,
    /// Scratch memory for the index of a request head.
    pub(super) index: HeadIndex,
    /// Number of the current [`Turn`](crate::Turn).
    pub(super) turn: u64,
    /// Time at which the current events were received.
    pub(super) now: Instant,
    pub(super) date: Date,
    pub(super) drain: Option<Drain>,
    /// Whether jobs were queued for which no worker was woken yet.
    pub(super) has_queued: bool,
}

impl<S: Service> Context<S> {
    pub(super) fn new(shared: Arc<Shared<S>>, home: usize) -> Self {
        let local = shared.service.local();
        Self {
            shared,
            home,
            local,
            read_buffer: ReadBuffer::default(),
            out: Vec::with_capacity(GATHER_LEN),
            scratch: Vec::new(),
            index: HeadIndex::default(),
            turn: 0,
            now: Instant::now(),
            date: Date::default(),
            drain: None,
            has_queued: false,
        }
    }

    /// Restores scratch memory that was lost in a panic.
    pub(super) fn recover(&mut self) {
        self.out.clear();
    }

    pub(super) fn sweep_time(&self) -> Duration {
        if self.drain.is_some() {
            DRAIN_SWEEP_TIME
        } else {
            SWEEP_TIME
        }
    }

    pub(super) fn observer(&self) -> &dyn Observer {
        self.shared.service.observer()
    }

    pub(super) fn incident(&self, incident: &Incident<'_>) {
        self.observer().incident(incident);
    }

    /// Reports that a request was refused.
    pub(super) fn refused(&self, peer: Peer, head: Option<Head<'_>>, refusal: Refusal) {
        self.incident(&Incident::Refused {
            peer,
            head,
            pattern: head.and_then(|head| self.shared.service.pattern(head)),
            refusal,
        });
    }

    /// Queues a job; returns the job if the queue is full and the job may be refused. Workers are
    /// woken only once for all jobs of a round.
    pub(super) fn queue(&mut self, job: Job) -> Result<(), Job> {
        self.has_queued = true;
        self.shared.submit(job)
    }

    /// Drops the rest of a response on a worker, because dropping may close files and so block.
    pub(super) fn discard(&mut self, rest: Option<Box<impl fmt::Debug + Send + 'static>>) {
        if let Some(rest) = rest {
            // Cannot fail: the queue accepts every `Job::Discard`.
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
