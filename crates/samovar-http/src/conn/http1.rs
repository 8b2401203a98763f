//! An HTTP/1 connection: its socket, its protocol state and its unsent response.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Preferences;
use super::stage::Stage;
use crate::body::{Outcome, Transfer};
use crate::client::Peer;
use crate::http::Status;
use crate::lane::Lane;
use crate::memory::Held;
use crate::net::key::Key;
use crate::net::transport::Transport;
use crate::net::wake::Waker;
use crate::proto;
use crate::request::Request;
use crate::response::Later;
use crate::sys::{self, Edges, PollFlags};
use crate::tls::Session;
use crate::ws::Accepted;

/// Capacity of `output` that an idle connection keeps for its next response head, in bytes.
const IDLE_OUTPUT_LEN: usize = 256;

/// An HTTP/1 connection, owned either by its I/O thread or by a worker.
///
/// An idle connection has no input buffer: reads use a buffer of the thread, and `input` keeps only
/// the bytes of an incomplete request.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) transport: Transport,
    pub(crate) peer: Peer,
    /// Index of the connection's I/O thread.
    pub(crate) home: usize,
    pub(crate) key: Key,
    /// The stage of the connection, changed only by [`enter`](Self::enter). `proto` tracks how far
    /// the request was received, because a response may start before the request body ends.
    stage: Stage,
    pub(crate) proto: proto::conn::Conn,
    /// Bytes that were read but not parsed yet.
    pub(crate) input: Vec<u8>,
    /// Bytes to send before the response body, such as response heads.
    pub(crate) output: Vec<u8>,
    /// The request whose body is being received, or whose response will be reported to the
    /// observer.
    pub(crate) request: Option<Box<Request>>,
    pub(crate) body_len_max: u64,
    pub(crate) transfer: Option<Box<Transfer>>,
    /// Whether a worker has the transfer, whose source waits, and not the connection.
    pub(crate) is_filling: bool,
    /// The deferred response for which the connection waits; `None` if it does not wait for one.
    pub(crate) later: Option<Arc<Later>>,
    pub(crate) answer: Answer,
    /// The client's certificates; `None` before the TLS handshake and without TLS.
    pub(crate) session: Option<Arc<Session>>,
    /// The connection's unit of the handshake budget while the TLS handshake is in progress;
    /// otherwise `None`.
    pub(crate) handshake: Option<Held>,
    /// The WebSocket that takes over the connection once the response is sent; `None` for any other
    /// response.
    pub(crate) upgrade: Option<Box<Accepted>>,
    /// Whether a read may return bytes or the end of the stream.
    pub(crate) readable: bool,
    /// Whether the client has shut down its sending side.
    pub(crate) peer_ended: bool,
    /// Whether `input` holds the start of a request head, received at `since`.
    pub(crate) has_partial_head: bool,
    /// Whether the client may still send after the last response, so that the close must linger:
    /// the client wants to keep the connection, is in the middle of a body, or has sent a malformed
    /// request.
    pub(crate) needs_linger: bool,
    /// Start of the current wait for a request or for the rest of its head, or start of the current
    /// throughput window.
    pub(crate) since: Instant,
    /// Number of bytes received and sent since `since`.
    pub(crate) moved_len: u64,
    /// Time at which the connection was last passed to a worker.
    pub(crate) left_at: Instant,
    /// Number of requests with a completed response.
    pub(crate) answered_count: u64,
}

/// State of the response in progress.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    /// The lane in which workers produce the response.
    pub(crate) lane: Lane,
    pub(crate) preferences: Preferences,
    pub(crate) status: Status,
    /// Whether the connection may stay open after the response. Until the head is rendered, only
    /// the server's limits are considered, not yet the request and the response.
    pub(crate) keep: bool,
    pub(crate) started: Instant,
    /// Length of the response body in `output`, in bytes.
    pub(crate) memory_len: u64,
}

impl Answer {
    fn new(lane: Lane, keep: bool, started: Instant) -> Self {
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
            stage: Stage::Receiving,
            proto: proto::conn::Conn::default(),
            input: Vec::new(),
            output: Vec::new(),
            request: None,
            body_len_max: 0,
            transfer: None,
            is_filling: false,
            later: None,
            upgrade: None,
            answer: Answer::new(Lane::Prompt, false, now),
            session: None,
            handshake: None,
            // No read is needed yet: registration with epoll causes an event if the socket is
            // already readable.
            readable: false,
            peer_ended: false,
            has_partial_head: false,
            needs_linger: false,
            since: now,
            moved_len: 0,
            left_at: now,
            answered_count: 0,
        }
    }

    /// Records readiness events. Writability is not recorded, because the next write detects it.
    pub(crate) fn note(&mut self, edges: Edges) {
        self.readable |= edges.readable;
        self.peer_ended |= edges.ended;
    }

    /// Reads once; returns `None` if no bytes are available, and `Some(0)` at the end of the
    /// stream.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let len = self.transport.recv(buffer)?;
        self.readable = self
            .transport
            .may_have_more(len, buffer.len(), self.peer_ended);
        self.moved_len += len.unwrap_or(0) as u64;
        Ok(len)
    }

    /// Returns whether the peer has closed its sending side and all its bytes have been read.
    /// Without TLS, the check leaves bytes in the kernel. With TLS it must read records to tell
    /// data from `close_notify`; such data goes to `input`, and while `input` has data, no more is
    /// read.
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

    /// Returns the current stage.
    pub(crate) fn stage(&self) -> Stage {
        self.stage
    }

    /// Changes the stage. Entering the current stage has no effect.
    pub(crate) fn enter(&mut self, stage: Stage) {
        debug_assert!(
            stage == self.stage || self.stage.may_become(stage),
            "no transition from {:?} to {stage:?}",
            self.stage
        );
        self.stage = stage;
    }

    /// Starts the response to a request that moves to a worker.
    pub(crate) fn start_answer(&mut self, lane: Lane, keep: bool, now: Instant) {
        self.enter(Stage::Answering);
        self.answer = Answer::new(lane, keep, now);
    }

    /// Enters the TLS handshake stage.
    pub(crate) fn start_handshake(&mut self, handshake: Held) {
        self.stage = Stage::Handshake;
        self.handshake = Some(handshake);
    }

    /// Returns whether `input` contains only empty lines, which may precede a request (RFC 9112,
    /// 2.2).
    pub(crate) fn has_blank_input(&self) -> bool {
        self.input.iter().all(|byte| matches!(byte, b'\r' | b'\n'))
    }

    /// Returns whether a response waits for the socket or the application.
    pub(crate) fn is_sending(&self) -> bool {
        !self.output.is_empty()
            || self.transfer.is_some()
            || self.stage == Stage::Waiting
            || self.transport.has_pending()
    }

    /// Sends `output`; returns `true` once the kernel has accepted all bytes.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        let sent_len = self.transport.send_all(&self.output)?;
        self.moved_len += sent_len as u64;
        self.output.drain(..sent_len);
        if !self.output.is_empty() {
            return Ok(false);
        }
        if self.output.capacity() > IDLE_OUTPUT_LEN {
            self.output = Vec::new();
        }
        self.transport.flush()
    }

    /// Prepares the connection for the time in which a worker has its transfer. Returns `output`,
    /// which belongs to the transfer until its source has succeeded.
    pub(crate) fn lay_aside(&mut self, transfer: &Transfer) -> Vec<u8> {
        self.is_filling = true;
        self.answer.memory_len = transfer.body_len();
        std::mem::take(&mut self.output)
    }

    /// Gives the connection its transfer and `output` back.
    pub(crate) fn resume(&mut self, transfer: Box<Transfer>, output: Vec<u8>) {
        self.is_filling = false;
        self.answer.memory_len = 0;
        self.transfer = Some(transfer);
        self.output = output;
    }

    /// Sends more of the response: `output`, then the body. Called only on workers, because a
    /// source may block.
    pub(crate) fn pump(&mut self, waker: impl FnOnce() -> Waker) -> io::Result<Outcome> {
        let Some(transfer) = &mut self.transfer else {
            return Ok(if self.flush()? {
                Outcome::Done
            } else {
                Outcome::Blocked
            });
        };
        let before = transfer.sent_len();
        let outcome = transfer.run(&mut self.transport, &mut self.output, &waker());
        self.moved_len += transfer.sent_len().saturating_sub(before);
        outcome
    }

    /// Waits until the socket is writable; returns `false` if that takes longer than `time`. Then
    /// the client is slow, and later calls for the same response return `false` at once.
    pub(crate) fn wait(&mut self, time: Duration) -> bool {
        let Some(transfer) = &mut self.transfer else {
            return false;
        };
        if !transfer.may_wait() {
            return false;
        }
        let is_writable = sys::wait_for(&self.transport, PollFlags::OUT, time);
        transfer.is_slow = !is_writable.unwrap_or(false);
        !transfer.is_slow
    }

    /// Returns the number of body bytes that the kernel has accepted.
    pub(crate) fn sent_body_len(&self) -> u64 {
        self.transfer
            .as_ref()
            .map_or(self.answer.memory_len, |transfer| transfer.body_len())
    }

    /// Excludes the time with a worker from the current wait: the worker may have waited for a
    /// disk, which is not the client's fault.
    pub(crate) fn forgive(&mut self, now: Instant) {
        let away = now.saturating_duration_since(self.left_at);
        self.since = now.min(self.since + away);
    }

    /// Starts a new wait or throughput window.
    pub(crate) fn restart_clock(&mut self, now: Instant) {
        self.since = now;
        self.moved_len = 0;
    }
}
