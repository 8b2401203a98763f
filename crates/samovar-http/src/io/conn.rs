//! One connection: its socket, its protocol state, and what it still has to send.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::key::Key;
#[cfg(feature = "tls")]
use super::shaking::Shaking;
use super::sys::{self, Edges};
use super::transport::Transport;
use super::wake::Waker;
use crate::body::{Outcome, Transfer};
use crate::exec::{Lane, Preferences};
use crate::head::{Peer, Session};
use crate::http::Status;
use crate::later::Later;
use crate::proto;
use crate::request::Request;
use crate::ws::Upgraded;

/// Memory an idle connection may keep for its next answer's head, in bytes.
const IDLE_OUTPUT_LEN: usize = 256;

/// A connection. Owned by its I/O thread or by a worker, never by both.
///
/// An idle connection holds no buffer: reads go into a buffer of the thread, and only an incomplete
/// request leaves bytes behind in `input`.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) transport: Transport,
    pub(crate) peer: Peer,
    /// Index of its I/O thread.
    pub(crate) home: usize,
    pub(crate) key: Key,
    pub(crate) proto: proto::conn::Conn,
    /// Bytes read and not understood yet.
    pub(crate) input: Vec<u8>,
    /// Bytes to send before anything else.
    pub(crate) output: Vec<u8>,
    /// A request whose body is being read, or whose answer is being sent and will be reported.
    pub(crate) request: Option<Box<Request>>,
    pub(crate) body_len_max: u64,
    pub(crate) transfer: Option<Box<Transfer>>,
    /// An answer that the handler has promised for later.
    pub(crate) later: Option<Arc<Later>>,
    /// `transfer` or `later` has nothing to give and will wake this connection.
    pub(crate) is_waiting: bool,
    pub(crate) answer: Answer,
    /// A worker was asked for that answer, and it is not over. How far the request was read does
    /// not tell: an answer may come before the end of its body.
    pub(crate) is_answering: bool,
    /// Who the peer has proved to be; set once its handshake is done.
    pub(crate) session: Option<Arc<Session>>,
    /// Nothing is read or sent but by the handshake.
    #[cfg(feature = "tls")]
    pub(crate) handshake: Option<Shaking>,
    /// What the connection becomes once the answer is out.
    pub(crate) upgrade: Option<Box<Upgraded>>,
    /// The kernel may have bytes, or the end of the stream, for us.
    pub(crate) readable: bool,
    /// The peer will send nothing more than what the kernel has.
    pub(crate) peer_ended: bool,
    /// `input` holds the start of a head, and `since` is when it came.
    pub(crate) has_partial_head: bool,
    /// Nothing more is read but to be dropped, so that the peer sees the last answer.
    pub(crate) is_lingering: bool,
    /// The peer may send on after the last answer, so closing has to linger: it asked for the
    /// connection to be kept, or is in the middle of a body, or was not understood.
    pub(crate) needs_linger: bool,
    /// Start of what is waited for now: the next request, the rest of a head, a window of the
    /// least throughput.
    pub(crate) since: Instant,
    /// Bytes moved since then.
    pub(crate) moved_len: u64,
    /// When it was last given to a worker.
    pub(crate) left_at: Instant,
    /// Requests answered.
    pub(crate) answered_count: u64,
}

/// The answer in progress.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    /// The lane in which workers make it.
    pub(crate) lane: Lane,
    pub(crate) preferences: Preferences,
    pub(crate) status: Status,
    /// Whether the connection may stay open afterwards; until the head is rendered, as far as the
    /// server decides that.
    pub(crate) keep: bool,
    pub(crate) started: Instant,
    /// Length of a body in `output`, in bytes.
    pub(crate) memory_len: u64,
}

impl Answer {
    pub(crate) fn new(lane: Lane, keep: bool, started: Instant) -> Self {
        Self {
            lane,
            preferences: Preferences::default(),
            status: Status::OK,
            keep,
            started,
            memory_len: 0,
        }
    }
}

impl Conn {
    pub(crate) fn new(
        transport: Transport,
        peer: Peer,
        home: usize,
        key: Key,
        now: Instant,
    ) -> Self {
        Self {
            transport,
            peer,
            home,
            key,
            proto: proto::conn::Conn::default(),
            input: Vec::new(),
            output: Vec::new(),
            request: None,
            body_len_max: 0,
            transfer: None,
            later: None,
            upgrade: None,
            is_waiting: false,
            answer: Answer::new(Lane::Prompt, false, now),
            is_answering: false,
            session: None,
            #[cfg(feature = "tls")]
            handshake: None,
            // Registering the socket makes an event if something is there already.
            readable: false,
            peer_ended: false,
            has_partial_head: false,
            is_lingering: false,
            needs_linger: false,
            since: now,
            moved_len: 0,
            left_at: now,
            answered_count: 0,
        }
    }

    /// Takes note of events. Room to write is not noted: writing finds out by itself.
    pub(crate) fn note(&mut self, edges: Edges) {
        self.readable |= edges.readable;
        self.peer_ended |= edges.ended;
    }

    /// Reads once; `None` when nothing has arrived, `Some(0)` at the end.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let len = self.transport.recv(buffer)?;
        self.readable = self
            .transport
            .may_have_more(len, buffer.len(), self.peer_ended);
        self.moved_len += len.unwrap_or(0) as u64;
        Ok(len)
    }

    /// Whether the peer has closed its sending side and everything it sent has been read. Bytes
    /// of a plain connection stay in the kernel. Records of TLS have to be read to tell data from
    /// `close_notify`; data read that way goes to `input`, after which nothing more is read.
    pub(crate) fn is_at_end(&mut self) -> bool {
        const READ_LEN: usize = 1024;
        if !self.input.is_empty() {
            return false;
        }
        if let Some(socket) = self.transport.plain() {
            return self.peer_ended && sys::is_at_end(socket).unwrap_or(true);
        }
        if !(self.peer_ended || self.readable) {
            return false;
        }
        let mut buffer = [0; READ_LEN];
        match self.read(&mut buffer) {
            Ok(None) => false,
            Ok(Some(0)) | Err(_) => true,
            Ok(Some(len)) => {
                self.input.extend_from_slice(&buffer[..len]);
                false
            }
        }
    }

    /// Whether it is not a connection yet.
    pub(crate) fn is_shaking(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.handshake.is_some();
        #[cfg(not(feature = "tls"))]
        false
    }

    /// Whether nothing is read but empty lines, which may stand before a request (RFC 9112, 2.2).
    pub(crate) fn has_blank_input(&self) -> bool {
        self.input.iter().all(|byte| matches!(byte, b'\r' | b'\n'))
    }

    /// Whether an answer, or part of it, is waiting for the socket.
    pub(crate) fn is_sending(&self) -> bool {
        !self.output.is_empty()
            || self.transfer.is_some()
            || self.is_waiting
            || self.transport.has_pending()
    }

    /// Sends what is in `output`; `true` once that is empty.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        while !self.output.is_empty() {
            match self.transport.send(&self.output, false)? {
                Some(len) => {
                    self.moved_len += len as u64;
                    self.output.drain(..len);
                }
                None => return Ok(false),
            }
        }
        if self.output.capacity() > IDLE_OUTPUT_LEN {
            self.output = Vec::new();
        }
        self.transport.flush()
    }

    /// Sends more of the answer: `output`, then the body. For workers: a source may block.
    pub(crate) fn pump(&mut self, waker: &Waker) -> io::Result<Outcome> {
        let Some(transfer) = &mut self.transfer else {
            return Ok(if self.flush()? {
                Outcome::Done
            } else {
                Outcome::Blocked
            });
        };
        let before = transfer.sent_len();
        let outcome = transfer.turn(&mut self.transport, &mut self.output, waker);
        self.moved_len += transfer.sent_len().saturating_sub(before);
        outcome
    }

    /// Bytes of the body that went out, for reports.
    pub(crate) fn sent_body_len(&self) -> u64 {
        self.transfer
            .as_ref()
            .map_or(self.answer.memory_len, |transfer| transfer.body_len())
    }

    /// Makes the close that follows tell the peer that what it has is not all there is.
    pub(crate) fn reset_on_close(&self) {
        // If even this fails, the answer still ends before its announced length.
        drop(sys::reset_on_close(&self.transport));
    }

    /// The peer does not answer for the time that a worker had the connection: its answer may have
    /// waited for a disk.
    pub(crate) fn forgive(&mut self, now: Instant) {
        let away = now.saturating_duration_since(self.left_at);
        self.since = now.min(self.since + away);
    }

    /// Starts a new wait.
    pub(crate) fn restart_clock(&mut self, now: Instant) {
        self.since = now;
        self.moved_len = 0;
    }
}
