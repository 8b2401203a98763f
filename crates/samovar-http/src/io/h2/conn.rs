//! An HTTP/2 connection: its socket, its session, and the state of its streams.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::inflow::Inflow;
use crate::body::Outflow;
use crate::exec::{Lane, Preferences};
use crate::h2::Session;
use crate::head::{Peer, Session as Secure};
use crate::http::Status;
use crate::io::conn::Conn;
use crate::io::key::Key;
use crate::io::stream::Cancel;
use crate::io::sys::Edges;
use crate::io::transport::Transport;
use crate::later::Later;
use crate::request::Request;
use crate::upload::BodyError;

/// An HTTP/2 connection. It stays with its I/O thread; workers get requests and bodies.
#[derive(Debug)]
pub(crate) struct H2Conn {
    pub(crate) transport: Transport,
    pub(crate) peer: Peer,
    /// The client's certificates.
    pub(crate) secure: Option<Arc<Secure>>,
    pub(crate) key: Key,
    pub(crate) session: Session<Stream>,
    /// Output that the socket has not taken.
    pub(crate) output: Vec<u8>,
    /// Answers in `output`, to be reported once the kernel has them.
    pub(crate) unreported: Vec<Report>,
    pub(crate) readable: bool,
    /// The client has shut down its sending side.
    pub(crate) peer_ended: bool,
    /// Everything that the client has sent was read.
    pub(crate) has_ended: bool,
    /// It is queued for another step before the thread sleeps.
    pub(crate) is_scheduled: bool,
    pub(crate) is_lingering: bool,
    /// When the GOAWAY was sent; new streams are refused since.
    pub(crate) leaving_since: Option<Instant>,
    /// Handlers that run or are queued, even if their streams are gone.
    pub(crate) handler_count: usize,
    pub(crate) opened_count: u64,
    /// Since when a header block is incomplete, and the number of frames then.
    pub(crate) block_since: Option<Instant>,
    block_frame_count: u64,
    /// Bytes sent in this turn.
    pub(crate) turn_len: u64,
    /// When a stream last began or ended, or lingering began.
    pub(crate) since: Instant,
    /// Start of a throughput window, while the socket is full.
    pub(crate) stuck_since: Option<Instant>,
    /// Bytes sent since then.
    pub(crate) moved_len: u64,
}

/// The state of a stream.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// The request whose body is being received, or whose answer will be reported.
    pub(crate) request: Option<Box<Request>>,
    pub(crate) body_len_max: u64,
    pub(crate) body_len: u64,
    /// The body, if it is streamed.
    pub(crate) inflow: Option<Arc<Inflow>>,
    /// Set when the stream is gone, so that its handler need not run.
    pub(crate) cancel: Cancel,
    /// The lane in which its request is handled.
    pub(crate) lane: Lane,
    /// The rest of the body, until it is pulled.
    pub(crate) outflow: Option<Box<Outflow>>,
    /// `outflow` waits for the application.
    pub(crate) is_dry: bool,
    pub(crate) later: Option<(Arc<Later>, Preferences)>,
    pub(crate) state: StreamState,
    /// It was woken before it waited.
    pub(crate) is_woken: bool,
    pub(crate) status: Option<Status>,
    pub(crate) started: Option<Instant>,
    /// Start of a throughput window, and the bytes received or sent before it.
    pub(crate) since: Option<Instant>,
    pub(crate) moved_len: u64,
}

/// The state of a stream, by the party it waits for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum StreamState {
    /// The rest of the request, from the client.
    #[default]
    Receiving,
    /// A worker.
    Away,
    /// The application, which will wake it.
    Waiting,
    /// The client, which has to read.
    Sending,
}

/// An answer to report.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) request: Box<Request>,
    pub(crate) status: Status,
    pub(crate) body_len: u64,
    pub(crate) started: Instant,
}

impl Stream {
    /// Takes the report on the answer; it is made once.
    pub(crate) fn report(&mut self, body_len: u64) -> Option<Report> {
        // Only answers are reported.
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
    /// Notifies the handler and the application that the stream is gone.
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
    /// An HTTP/1 connection that speaks HTTP/2.
    pub(crate) fn new(conn: Conn, session: Session<Stream>, now: Instant) -> Self {
        Self {
            transport: conn.transport,
            peer: conn.peer,
            secure: conn.session,
            key: conn.key,
            session,
            output: Vec::new(),
            unreported: Vec::new(),
            // An edge is reported once, and may have been consumed before the switch to HTTP/2.
            readable: true,
            peer_ended: conn.peer_ended,
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

    /// Records readiness events.
    pub(crate) fn note(&mut self, edges: Edges) {
        self.readable |= edges.readable;
        self.peer_ended |= edges.ended;
    }

    /// Tracks how long a header block has been incomplete.
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

    /// Sends `bytes` after `output`, which keeps what the socket does not take. `true` once the
    /// kernel has everything.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<bool> {
        let mut sent_len = 0;
        if self.output.is_empty() {
            sent_len = self.transport.send_all(bytes)?;
            self.moved_len += sent_len as u64;
        }
        self.output.extend_from_slice(&bytes[sent_len..]);
        Ok(self.output.is_empty() && self.transport.flush()?)
    }

    /// Sends `output`; `true` once the kernel has everything.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        if self.output.is_empty() {
            return self.transport.flush();
        }
        let output = std::mem::take(&mut self.output);
        self.send(&output)
    }
}
