//! The queue of frames for a socket's peer.
//!
//! # Theory of operation
//!
//! The sending thread locks the socket and writes to the kernel directly, so a small message from a
//! worker costs one system call and involves no other thread. Bytes that the kernel does not accept
//! are queued. The socket stays registered with epoll, and the I/O thread writes the queue when the
//! socket becomes writable.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use crate::net::transport::Transport;
use crate::proto::ws::frame::{self, CONTROL_LEN_MAX, OpCode};
use crate::proto::ws::{CloseCode, close};

/// Maximum length of an entry of the queue into which short frames are joined, in bytes.
const PIECE_LEN: usize = 16 * 1024;

/// Reason for which a message was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The socket is closing or has ended.
    #[error("socket is closed")]
    Closed,
    /// The queue for the peer is full; see [`super::Limits::outbound_len_max`].
    #[error("peer is behind")]
    Full,
}

/// Phase of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    /// Messages can be queued, even before the handshake response is sent.
    #[default]
    Open,
    /// The server's close frame is the last one in the queue, or was sent.
    Closing,
    /// The connection has ended.
    Ended,
}

/// An entry of the queue: the bytes of one or more complete frames.
#[derive(Debug)]
enum Piece {
    Own(Vec<u8>),
    Shared(Arc<[u8]>),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// Result of a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// The queue is empty.
    All,
    /// The queue is empty, and the last frame was the server's close frame.
    Close,
    /// The socket does not accept more bytes now.
    Blocked,
}

#[derive(Debug, Default)]
pub(crate) struct Outbound {
    /// The connection; `None` before the handshake response was sent and after the connection
    /// ended.
    pub(crate) transport: Option<Transport>,
    phase: Phase,
    queue: VecDeque<Piece>,
    /// Number of bytes of the first entry that were already written.
    sent_len: usize,
    /// Number of bytes in the queue.
    queued_len: usize,
    /// The latest pong that waits until the current frame is sent; `None` if no pong waits. RFC
    /// 6455, 5.5.3, allows omitting earlier pongs.
    pong: Option<Box<[u8]>>,
    /// Whether the last write was incomplete; epoll will report when the socket is writable.
    pub(crate) is_blocked: bool,
    /// Whether writing is put off because the I/O thread runs the handler; it writes the whole
    /// queue afterwards.
    pub(crate) is_corked: bool,
    /// Number of bytes written so far.
    pub(crate) moved_len: u64,
    /// Whether the application has aborted the socket, so that the I/O thread ends the connection.
    is_aborted: bool,
    /// Time at which the server's close frame was queued; `None` before that.
    pub(crate) closing_since: Option<Instant>,
}

impl Outbound {
    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    pub(super) fn queued_len(&self) -> usize {
        self.queued_len
    }

    /// Lets the I/O thread reset the connection when it next writes the queue.
    pub(super) fn abort(&mut self) {
        if self.phase != Phase::Ended {
            self.phase = Phase::Closing;
            self.is_aborted = true;
        }
    }

    /// Checks that the queue accepts `len` more bytes.
    pub(super) fn check_room(&self, len: usize, len_max: usize) -> Result<(), SendError> {
        if self.phase != Phase::Open {
            Err(SendError::Closed)
        } else if !self.queue.is_empty() && self.queued_len.saturating_add(len) > len_max {
            Err(SendError::Full)
        } else {
            Ok(())
        }
    }

    /// Sends a frame, and queues it if it was not sent completely. `shared`: the same bytes in a
    /// form that is queued without a copy.
    pub(super) fn put(&mut self, bytes: &[u8], shared: Option<&Arc<[u8]>>) {
        let mut sent_len = 0;
        if self.queue.is_empty() && !self.is_blocked && !self.is_corked {
            sent_len = self.write(bytes);
        }
        if sent_len == bytes.len() {
            return;
        }
        self.queued_len += bytes.len() - sent_len;
        // Queue the whole frame although a part was written, because each entry must start with the
        // header of a frame.
        let piece = match (shared, self.queue.back_mut()) {
            (Some(shared), _) => Piece::Shared(Arc::clone(shared)),
            (None, Some(Piece::Own(last))) if last.len() + bytes.len() <= PIECE_LEN => {
                return last.extend_from_slice(bytes);
            }
            (None, _) => Piece::Own(bytes.to_vec()),
        };
        if self.queue.is_empty() {
            self.sent_len = sent_len;
        }
        self.queue.push_back(piece);
    }

    /// Writes as many bytes as the kernel accepts. An error counts as an incomplete write: the I/O
    /// thread sees the same error and handles it.
    fn write(&mut self, bytes: &[u8]) -> usize {
        let Some(transport) = &mut self.transport else {
            return 0;
        };
        let sent_len = transport.send_all(bytes).unwrap_or(0);
        self.is_blocked |= sent_len < bytes.len() || !matches!(transport.flush(), Ok(true));
        self.moved_len += sent_len as u64;
        sent_len
    }

    fn control(&mut self, op_code: OpCode, payload: &[u8]) {
        self.put(&control_frame(op_code, payload), None);
    }

    pub(crate) fn ping(&mut self, payload: &[u8]) {
        if self.phase == Phase::Open {
            self.control(OpCode::Ping, payload);
        }
    }

    /// Replies to a ping. If the peer does not read, only the latest reply is queued.
    pub(crate) fn pong(&mut self, payload: &[u8]) {
        if self.phase != Phase::Open {
            return;
        }
        if self.is_blocked {
            self.pong = Some(payload.into());
        } else {
            self.control(OpCode::Pong, payload);
        }
    }

    /// Queues a close frame.
    pub(crate) fn close(&mut self, reason: Option<(CloseCode, &str)>) {
        if self.phase != Phase::Open {
            return;
        }
        let payload = reason.map_or(Vec::new(), |(code, reason)| close::payload(code, reason));
        self.control(OpCode::Close, &payload);
        self.phase = Phase::Closing;
        self.closing_since = Some(Instant::now());
        self.pong = None;
    }

    /// Closes the socket of a peer that does not read: drops all frames except a partly written
    /// one.
    pub(crate) fn overflow(&mut self) {
        let begun = if self.sent_len > 0 { 1 } else { 0 };
        self.queue.truncate(begun);
        self.queued_len = self
            .queue
            .iter()
            .map(|piece| piece.bytes().len())
            .sum::<usize>()
            - self.sent_len;
        self.close(Some((CloseCode::TRY_AGAIN, "too slow")));
    }

    // Methods for the I/O thread.

    /// Ends the connection: sending fails from now on. Returns the transport, if the connection
    /// still had one.
    pub(crate) fn end(&mut self) -> Option<Transport> {
        self.phase = Phase::Ended;
        self.queue = VecDeque::new();
        (self.queued_len, self.sent_len) = (0, 0);
        self.pong = None;
        self.transport.take()
    }

    /// Writes the queue. `scratch` is a buffer for joining small pieces, empty before and after:
    /// the thread also gathers responses to other clients in it.
    pub(crate) fn flush(&mut self, scratch: &mut Vec<u8>) -> io::Result<Flushed> {
        let outcome = self.write_queue(scratch);
        scratch.clear();
        outcome
    }

    fn write_queue(&mut self, scratch: &mut Vec<u8>) -> io::Result<Flushed> {
        self.is_corked = false;
        self.is_blocked = false;
        if self.is_aborted {
            let text = "the application has aborted the socket";
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, text));
        }
        let Some(transport) = &mut self.transport else {
            return Ok(Flushed::Blocked);
        };
        if !transport.flush()? {
            self.is_blocked = true;
            return Ok(Flushed::Blocked);
        }
        loop {
            if let Some(pong) = self.pong.take_if(|_| self.sent_len == 0) {
                let bytes = control_frame(OpCode::Pong, &pong);
                self.queued_len += bytes.len();
                self.queue.push_front(Piece::Own(bytes));
            }
            let Some(first) = self.queue.front() else {
                break;
            };
            let first = first.bytes().get(self.sent_len..).unwrap_or_default();
            let bytes = if first.len() >= PIECE_LEN || self.queue.len() == 1 {
                first
            } else {
                scratch.clear();
                scratch.extend_from_slice(first);
                for piece in self.queue.iter().skip(1) {
                    if scratch.len() + piece.bytes().len() > 4 * PIECE_LEN {
                        break;
                    }
                    scratch.extend_from_slice(piece.bytes());
                }
                scratch.as_slice()
            };
            let Some(transport) = &mut self.transport else {
                break;
            };
            let Some(len) = transport.send(bytes, false)? else {
                self.is_blocked = true;
                return Ok(Flushed::Blocked);
            };
            self.moved_len += len as u64;
            self.sent(len);
        }
        if self.queue.capacity() > 0 {
            self.queue = VecDeque::new();
        }
        if let Some(transport) = &mut self.transport
            && !transport.flush()?
        {
            self.is_blocked = true;
            return Ok(Flushed::Blocked);
        }
        Ok(if self.phase == Phase::Closing {
            Flushed::Close
        } else {
            Flushed::All
        })
    }

    /// Removes the first `len` bytes of the queue after they were written.
    fn sent(&mut self, len: usize) {
        self.queued_len = self.queued_len.saturating_sub(len);
        self.sent_len += len;
        while let Some(first) = self.queue.front() {
            let first_len = first.bytes().len();
            if self.sent_len < first_len {
                break;
            }
            self.sent_len -= first_len;
            self.queue.pop_front();
        }
    }
}

pub(super) fn control_frame(op_code: OpCode, payload: &[u8]) -> Vec<u8> {
    let payload = payload.get(..CONTROL_LEN_MAX).unwrap_or(payload);
    let mut bytes = Vec::with_capacity(payload.len() + 2);
    frame::encode(&mut bytes, op_code, payload.len());
    bytes.extend_from_slice(payload);
    bytes
}
