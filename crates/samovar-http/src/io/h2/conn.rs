//! One HTTP/2 connection: its socket, its session, and what is known of each stream.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::inflow::Inflow;
use crate::body::Outflow;
use crate::exec::{Lane, Preferences};
use crate::h2::Session;
use crate::head::{Peer, Session as Secure};
use crate::http::Status;
use crate::io::key::Key;
use crate::io::stream::Cancel;
use crate::io::sys::{self, Edges};
use crate::io::transport::Transport;
use crate::later::Later;
use crate::request::Request;
use crate::upload::BodyError;

/// A connection. Always with its I/O thread; workers get requests and pieces of bodies.
#[derive(Debug)]
pub(crate) struct H2Conn {
    pub(crate) transport: Transport,
    pub(crate) peer: Peer,
    /// What was found out about the peer in the handshake.
    pub(crate) secure: Option<Arc<Secure>>,
    pub(crate) key: Key,
    pub(crate) session: Session<Stream>,
    /// Output that the socket has not taken.
    pub(crate) output: Vec<u8>,
    /// Answers in `output` that are to be reported when it is with the kernel.
    pub(crate) unreported: Vec<Report>,
    pub(crate) readable: bool,
    /// The peer will send nothing more than what the kernel has.
    pub(crate) peer_ended: bool,
    /// All of that has been read.
    pub(crate) has_ended: bool,
    /// It is to be looked at before the thread sleeps.
    pub(crate) is_scheduled: bool,
    pub(crate) is_lingering: bool,
    /// Since when no new streams are welcome.
    pub(crate) leaving_since: Option<Instant>,
    /// Handlers that run, or wait to, whether their streams are still there or not.
    pub(crate) handler_count: usize,
    pub(crate) opened_count: u64,
    /// Since when the peer is in the middle of a header block, and the frames it had begun then.
    pub(crate) block_since: Option<Instant>,
    block_frame_count: u64,
    /// Bytes sent in this turn.
    pub(crate) turn_len: u64,
    /// When a stream last began or ended, or lingering began.
    pub(crate) since: Instant,
    /// Start of a window of the least throughput, while the socket takes no more.
    pub(crate) stuck_since: Option<Instant>,
    /// Bytes moved since then.
    pub(crate) moved_len: u64,
}

/// What is known of a stream.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// A request whose body is being read, or whose answer will be reported.
    pub(crate) request: Option<Box<Request>>,
    pub(crate) body_len_max: u64,
    pub(crate) body_len: u64,
    /// The body, where a handler reads it as it comes.
    pub(crate) inflow: Option<Arc<Inflow>>,
    /// Tells the worker that the answer is of no use.
    pub(crate) cancel: Cancel,
    /// Where its request is answered.
    pub(crate) lane: Lane,
    /// A body that goes on when it is asked for, or when it wakes.
    pub(crate) outflow: Option<Box<Outflow>>,
    /// It goes on when it wakes.
    pub(crate) is_dry: bool,
    pub(crate) later: Option<(Arc<Later>, Preferences)>,
    pub(crate) state: StreamState,
    /// It was woken while there was nothing to wake.
    pub(crate) is_woken: bool,
    pub(crate) status: Option<Status>,
    pub(crate) started: Option<Instant>,
    /// Start of a window of the least throughput, and the bytes that had moved before it.
    pub(crate) since: Option<Instant>,
    pub(crate) moved_len: u64,
}

/// Whose turn it is on a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum StreamState {
    /// The peer's: its request is not complete.
    #[default]
    Receiving,
    /// A worker's.
    Away,
    /// The application's: it has promised to call.
    Waiting,
    /// The peer's: it has to read.
    Sending,
}

/// An answer, to be reported.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) request: Box<Request>,
    pub(crate) status: Status,
    pub(crate) body_len: u64,
    pub(crate) started: Instant,
}

impl Stream {
    /// What there is to report, once.
    pub(crate) fn report(&mut self, body_len: u64) -> Option<Report> {
        // A request that was not answered is not reported.
        let status = self.status?;
        let started = self.started?;
        let request = self.request.take()?;
        Some(Report {
            request,
            status,
            body_len,
            started,
        })
    }

    pub(crate) fn restart_clock(&mut self, now: Instant, moved_len: u64) {
        (self.since, self.moved_len) = (Some(now), moved_len);
    }
}

impl Drop for Stream {
    /// Whoever works for the stream learns that it is gone.
    fn drop(&mut self) {
        self.cancel.set();
        if let Some(inflow) = &self.inflow {
            inflow.end(Err(BodyError::Incomplete));
        }
        if let Some((later, _)) = &self.later {
            later.abandon();
        }
    }
}

impl H2Conn {
    pub(crate) fn new(
        transport: Transport,
        peer: Peer,
        secure: Option<Arc<Secure>>,
        key: Key,
        session: Session<Stream>,
        now: Instant,
    ) -> Self {
        Self {
            transport,
            peer,
            secure,
            key,
            session,
            output: Vec::new(),
            unreported: Vec::new(),
            // What came before this protocol was known may not come again.
            readable: true,
            peer_ended: false,
            has_ended: false,
            is_scheduled: false,
            is_lingering: false,
            leaving_since: None,
            handler_count: 0,
            opened_count: 0,
            block_since: None,
            block_frame_count: 0,
            turn_len: 0,
            since: now,
            stuck_since: None,
            moved_len: 0,
        }
    }

    /// Takes note of events.
    pub(crate) fn note(&mut self, edges: Edges) {
        self.readable |= edges.readable;
        self.peer_ended |= edges.ended;
    }

    /// Takes note of what the peer has left unfinished.
    pub(crate) fn watch_block(&mut self, now: Instant) {
        let frame_count = self.session.frame_count();
        if !self.session.is_mid_block() {
            self.block_since = None;
        } else if self.block_since.is_none() || frame_count != self.block_frame_count {
            self.block_since = Some(now);
        }
        self.block_frame_count = frame_count;
    }

    /// Reads once; `None` when nothing has arrived, `Some(0)` at the end.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let len = self.transport.recv(buffer)?;
        self.readable = self
            .transport
            .may_have_more(len, buffer.len(), self.peer_ended);
        Ok(len)
    }

    /// Sends `bytes` behind what is in `output`, which gets what the socket does not take. `true`
    /// once all is with the kernel.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<bool> {
        let mut sent_len = 0;
        if self.output.is_empty() {
            while sent_len < bytes.len() {
                let rest = bytes.get(sent_len..).unwrap_or_default();
                match self.transport.send(rest, false)? {
                    Some(len) => sent_len += len,
                    None => break,
                }
            }
            self.moved_len += sent_len as u64;
        }
        let rest = bytes.get(sent_len..).unwrap_or_default();
        self.output.extend_from_slice(rest);
        Ok(self.output.is_empty() && self.transport.flush()?)
    }

    /// Sends what is in `output`; `true` once all is with the kernel.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        if self.output.is_empty() {
            return self.transport.flush();
        }
        let output = std::mem::take(&mut self.output);
        self.send(&output)
    }

    /// Makes the close that follows tell the peer that what it has is not all there is.
    pub(crate) fn reset_on_close(&self) {
        // If even this fails, the answers still end before they should.
        drop(sys::reset_on_close(&self.transport));
    }
}
