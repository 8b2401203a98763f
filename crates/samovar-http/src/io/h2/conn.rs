//! An HTTP/2 connection: its socket, its session, and the state of its streams.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::inflow::Inflow;
use crate::body::Outflow;
use crate::client::Peer;
use crate::conn::{Cancel, Conn, Preferences, StreamRef};
use crate::h2::Session;
use crate::http::Status;
use crate::lane::Lane;
use crate::net::key::Key;
use crate::net::transport::Transport;
use crate::request::Request;
use crate::response::Later;
use crate::sys::Edges;
use crate::tls::Session as Secure;
use crate::upload::BodyError;

/// Total length of the response pieces of one connection, in bytes. The streams share it, but each
/// gets at least [`PIECE_LEN_MIN`].
const PIECES_LEN: usize = 512 * 1024;
/// Maximum length of a piece, in bytes: the length of a pool buffer.
const PIECE_LEN_MAX: usize = 256 * 1024;
/// Minimum length of a piece, in bytes: the length of a frame.
const PIECE_LEN_MIN: usize = 16 * 1024;

/// An HTTP/2 connection. It stays with its I/O thread; requests and response bodies move to
/// workers.
#[derive(Debug)]
pub(crate) struct H2Conn {
    pub(crate) transport: Transport,
    pub(crate) peer: Peer,
    /// The client's certificates, if it has presented any.
    pub(crate) secure: Option<Arc<Secure>>,
    pub(crate) key: Key,
    pub(crate) session: Session<Stream>,
    /// Output that the socket has not accepted yet.
    pub(crate) output: Vec<u8>,
    /// Reports of the responses in `output`. The observer gets them once the kernel has accepted
    /// the bytes.
    pub(crate) unreported: Vec<Report>,
    pub(crate) readable: bool,
    /// Whether the client has shut down its sending side.
    pub(crate) peer_ended: bool,
    /// Whether all bytes of the client were read, up to the end of the stream.
    pub(crate) has_ended: bool,
    /// Whether another step is scheduled before the thread sleeps.
    pub(crate) is_scheduled: bool,
    pub(crate) is_lingering: bool,
    /// Time at which the GOAWAY was sent; `None` before that. New streams are refused from then on.
    pub(crate) leaving_since: Option<Instant>,
    /// Number of handlers that are running or queued, even if their streams have ended.
    pub(crate) handler_count: usize,
    pub(crate) opened_count: u64,
    /// Time since which a header block is incomplete, or `None` if none is. `block_frame_count` is
    /// the number of frames received at that time.
    pub(crate) block_since: Option<Instant>,
    block_frame_count: u64,
    /// Number of bytes sent since other connections were last served.
    pub(crate) turn_len: u64,
    /// Time at which a stream last started or ended, or lingering started.
    pub(crate) since: Instant,
    /// Start of the current throughput window while the socket accepts no more bytes; otherwise
    /// `None`.
    pub(crate) stuck_since: Option<Instant>,
    /// Number of bytes sent since `stuck_since`.
    pub(crate) moved_len: u64,
}

/// The state of a stream.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// The request whose body is being received, or whose response will be reported.
    pub(crate) request: Option<Box<Request>>,
    pub(crate) body_len_max: u64,
    pub(crate) body_len: u64,
    /// The request body, if the handler reads it as it arrives; otherwise `None`.
    pub(crate) inflow: Option<Arc<Inflow>>,
    /// Set when the stream has ended, so that its handler need not run.
    pub(crate) cancel: Cancel,
    /// The lane in which the request is handled.
    pub(crate) lane: Lane,
    /// The rest of the response body, while no worker pulls from it; otherwise `None`.
    pub(crate) outflow: Option<Box<Outflow>>,
    /// Whether `outflow` has no bytes until the application wakes the stream.
    pub(crate) is_dry: bool,
    pub(crate) later: Option<(Arc<Later>, Preferences)>,
    pub(crate) state: StreamState,
    /// Time at which a worker has started to pull from a source that may wait for any time; `None`
    /// if no such pull is in progress.
    pub(crate) reading_since: Option<Instant>,
    /// Whether the stream was woken before it started to wait.
    pub(crate) is_woken: bool,
    pub(crate) status: Option<Status>,
    pub(crate) started: Option<Instant>,
    /// Start of the current throughput window; `None` before the first. `moved_len` is the number
    /// of bytes received or sent before the window.
    pub(crate) since: Option<Instant>,
    pub(crate) moved_len: u64,
}

/// The state of a stream: the party for which the stream waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum StreamState {
    /// Waits for the rest of the request from the client.
    #[default]
    Receiving,
    /// Waits for a worker.
    Away,
    /// Waits for the application, which will wake it.
    Waiting,
    /// Waits for the client to read.
    Sending,
}

/// A response to report to the observer.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) request: Box<Request>,
    pub(crate) status: Status,
    pub(crate) body_len: u64,
    pub(crate) started: Instant,
}

impl Stream {
    /// Takes the report of the response for the observer. Returns `None` if the stream has no
    /// response, or if the report was taken before.
    pub(crate) fn report(&mut self, body_len: u64) -> Option<Report> {
        // A stream without a response is not reported.
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
    /// Notifies the handler and the application that the stream has ended.
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
    /// Creates an HTTP/2 connection from an HTTP/1 connection.
    pub(crate) fn new(conn: Conn, session: Session<Stream>, now: Instant) -> Self {
        Self {
            transport: conn.transport,
            peer: conn.peer,
            secure: conn.session,
            key: conn.key,
            session,
            output: Vec::new(),
            unreported: Vec::new(),
            // epoll reports an edge only once, and the edge may have been consumed before the
            // switch to HTTP/2.
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

    /// Updates the time since which a header block has been incomplete.
    pub(crate) fn watch_block(&mut self, now: Instant) {
        let frame_count = self.session.frame_count();
        if !self.session.is_mid_block() {
            self.block_since = None;
        } else if self.block_since.is_none() || frame_count != self.block_frame_count {
            self.block_since = Some(now);
        }
        self.block_frame_count = frame_count;
    }

    /// Counts a new stream. After `streams_max` of them, unless that is 0, the client must connect
    /// again.
    pub(super) fn count_stream(&mut self, now: Instant, streams_max: u64) {
        self.since = now;
        self.opened_count += 1;
        if streams_max > 0 && self.opened_count >= streams_max {
            self.leave(now);
        }
    }

    /// Sends GOAWAY; new streams are refused from then on.
    pub(super) fn leave(&mut self, now: Instant) {
        if self.leaving_since.is_none() {
            self.leaving_since = Some(now);
            self.session.go_away();
        }
    }

    /// Returns the reference to a stream that jobs get. `home`: index of the I/O thread.
    pub(super) fn stream_ref(&self, home: usize, stream: u32, lane: Lane) -> StreamRef {
        let streams = self.session.stream_count().max(1);
        StreamRef {
            home,
            key: self.key,
            stream,
            lane,
            piece_len: (PIECES_LEN / streams).clamp(PIECE_LEN_MIN, PIECE_LEN_MAX),
        }
    }

    /// Stores the report of a complete response until the kernel has accepted all its bytes.
    pub(super) fn gather_report(&mut self, stream: u32) {
        let body_len = self.session.sent_len(stream);
        let entry = self.session.data(stream);
        if let Some(report) = entry.and_then(|entry| entry.report(body_len)) {
            self.unreported.push(report);
        }
    }

    /// Reads once; returns `None` if no bytes are available, and `Some(0)` at the end of the
    /// stream.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let len = self.transport.recv(buffer)?;
        self.readable = self
            .transport
            .may_have_more(len, buffer.len(), self.peer_ended);
        Ok(len)
    }

    /// Sends `output`, then `bytes`; `output` keeps what the socket does not accept. Returns `true`
    /// once the kernel has accepted all bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<bool> {
        let mut sent_len = 0;
        if self.output.is_empty() {
            sent_len = self.transport.send_all(bytes)?;
            self.moved_len += sent_len as u64;
        }
        self.output.extend_from_slice(&bytes[sent_len..]);
        Ok(self.output.is_empty() && self.transport.flush()?)
    }

    /// Sends `output`; returns `true` once the kernel has accepted all bytes.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        if self.output.is_empty() {
            return self.transport.flush();
        }
        let output = std::mem::take(&mut self.output);
        self.send(&output)
    }
}
