//! The queue of frames to a socket's peer.
//!
//! # Theory of operation
//!
//! The sending thread takes the socket's lock and writes to the kernel itself, so a small message
//! from a worker costs one system call and involves no other thread. The rest is queued, and the
//! I/O thread writes it when the socket, which stays registered for that, becomes writable.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use crate::io::transport::Transport;
use crate::proto::ws::frame::{self, CONTROL_LEN_MAX, OpCode};
use crate::proto::ws::{CloseCode, close};

/// Shorter frames are joined into pieces of this length, in bytes.
const PIECE_LEN: usize = 16 * 1024;

/// Reason why a message was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The socket is closing or has ended.
    #[error("socket is closed")]
    Closed,
    /// The queue to the peer is full; see [`super::Limits::outbound_len_max`].
    #[error("peer is behind")]
    Full,
}

/// Phase of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Messages may be queued; the handshake may not be sent yet.
    Open,
    /// Our close frame is the last one in the queue, or was sent.
    Closing,
    /// The connection has ended.
    Ended,
}

/// Bytes of whole frames.
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

/// A frame to be queued.
#[derive(Debug, Clone, Copy)]
pub(super) enum Outgoing<'a> {
    Slice(&'a [u8]),
    Shared(&'a Arc<[u8]>),
}

/// Result of a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// The queue is empty.
    All,
    /// The queue is empty, and the last frame was our close frame.
    Close,
    /// The socket is not writable.
    Blocked,
}

#[derive(Debug)]
pub(crate) struct Outbound {
    /// Set from the end of the handshake to the end of the connection.
    transport: Option<Transport>,
    phase: Phase,
    queue: VecDeque<Piece>,
    /// Bytes of the first piece that were written.
    sent_len: usize,
    /// Bytes in the queue.
    queued_len: usize,
    /// The latest pong, waiting for the current frame (RFC 6455, 5.5.3: earlier ones may be
    /// omitted).
    pong: Option<Box<[u8]>>,
    /// The last write was short; epoll will report when the socket is writable.
    is_blocked: bool,
    /// The I/O thread runs the handler and writes everything afterwards at once.
    is_corked: bool,
    /// Bytes written since the last call of `take_moved_len`.
    moved_len: u64,
    closing_since: Option<Instant>,
}

impl Outbound {
    pub(super) fn new() -> Self {
        Self {
            transport: None,
            phase: Phase::Open,
            queue: VecDeque::new(),
            sent_len: 0,
            queued_len: 0,
            pong: None,
            is_blocked: false,
            is_corked: false,
            moved_len: 0,
            closing_since: None,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Checks that `len` more bytes may be queued.
    pub(super) fn check_room(&self, len: usize, len_max: usize) -> Result<(), SendError> {
        if self.phase != Phase::Open {
            Err(SendError::Closed)
        } else if !self.queue.is_empty() && self.queued_len.saturating_add(len) > len_max {
            Err(SendError::Full)
        } else {
            Ok(())
        }
    }

    /// Sends a frame, or queues the rest of it.
    pub(super) fn put(&mut self, frame: Outgoing<'_>) {
        let bytes = match frame {
            Outgoing::Slice(bytes) => bytes,
            Outgoing::Shared(bytes) => bytes,
        };
        let mut sent_len = 0;
        if self.queue.is_empty() && !self.is_blocked && !self.is_corked {
            sent_len = self.write(bytes);
        }
        if sent_len == bytes.len() {
            return;
        }
        self.queued_len += bytes.len() - sent_len;
        match frame {
            Outgoing::Shared(bytes) => {
                self.enqueue(Piece::Shared(Arc::clone(bytes)), sent_len);
            }
            Outgoing::Slice(bytes) => match self.queue.back_mut() {
                Some(Piece::Own(piece)) if piece.len() + bytes.len() <= PIECE_LEN => {
                    piece.extend_from_slice(bytes);
                }
                // Queue the whole frame although a part was written: pieces start at frames.
                _ => self.enqueue(Piece::Own(bytes.to_vec()), sent_len),
            },
        }
    }

    fn enqueue(&mut self, piece: Piece, sent_len: usize) {
        if self.queue.is_empty() {
            self.sent_len = sent_len;
        }
        self.queue.push_back(piece);
    }

    /// Writes as much as the kernel accepts. An error counts as a short write: the I/O thread will
    /// see it, too, and handles it.
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
        let payload = payload.get(..CONTROL_LEN_MAX).unwrap_or(payload);
        let mut bytes = Vec::with_capacity(payload.len() + 2);
        frame::encode(&mut bytes, op_code, false, payload.len());
        bytes.extend_from_slice(payload);
        self.put(Outgoing::Slice(&bytes));
    }

    pub(crate) fn ping(&mut self, payload: &[u8]) {
        if self.phase == Phase::Open {
            self.control(OpCode::Ping, payload);
        }
    }

    /// Answers a ping. If the peer does not read, only the last answer is queued.
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

    /// Closes a peer that does not read: drops all frames that were not partly written.
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

    // For the I/O thread.

    /// The handshake was sent.
    pub(super) fn start(&mut self, transport: Transport) {
        self.transport = Some(transport);
    }

    /// The connection ends; sending fails from now on.
    pub(crate) fn end(&mut self) -> Option<Transport> {
        self.phase = Phase::Ended;
        self.queue = VecDeque::new();
        (self.queued_len, self.sent_len) = (0, 0);
        self.pong = None;
        self.transport.take()
    }

    pub(super) fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match &mut self.transport {
            Some(transport) => transport.recv(buffer),
            None => Ok(Some(0)),
        }
    }

    pub(crate) fn transport(&mut self) -> Option<&mut Transport> {
        self.transport.as_mut()
    }

    pub(crate) fn cork(&mut self) {
        self.is_corked = true;
    }

    pub(crate) fn closing_since(&self) -> Option<Instant> {
        self.closing_since
    }

    /// Bytes written since the last call.
    pub(crate) fn take_moved_len(&mut self) -> u64 {
        std::mem::take(&mut self.moved_len)
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Writes the queue. `scratch`: buffer for joining small pieces.
    pub(crate) fn flush(&mut self, scratch: &mut Vec<u8>) -> io::Result<Flushed> {
        self.is_corked = false;
        self.is_blocked = false;
        let Some(transport) = &mut self.transport else {
            return Ok(Flushed::Blocked);
        };
        if !transport.flush()? {
            self.is_blocked = true;
            return Ok(Flushed::Blocked);
        }
        loop {
            if let Some(pong) = self.pong.take_if(|_| self.sent_len == 0) {
                let mut bytes = Vec::with_capacity(pong.len() + 2);
                frame::encode(&mut bytes, OpCode::Pong, false, pong.len());
                bytes.extend_from_slice(&pong);
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
