//! What goes to a socket's peer.
//!
//! # Theory of operation
//!
//! Whoever sends takes the socket's lock and writes to the kernel itself, so a small message from a
//! worker costs one system call and no other thread. What the kernel does not take is queued; the
//! I/O thread writes it when there is room, which it learns of because the socket is registered for
//! that once and for all.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use crate::io::transport::Transport;
use crate::proto::ws::deflate::Deflater;
use crate::proto::ws::frame::{self, CONTROL_LEN_MAX, OpCode};
use crate::proto::ws::{CloseCode, close};

/// Frames shorter than this are put together into pieces of this length, in bytes.
const PIECE_LEN: usize = 16 * 1024;

/// Why a message was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The socket is closing or has ended.
    #[error("socket is closed")]
    Closed,
    /// As much as may wait for the peer does; see [`super::Limits::outbound_len_max`].
    #[error("peer is behind")]
    Full,
}

/// How far a socket is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Messages may be sent; perhaps the handshake is not out yet.
    Open,
    /// Our close frame is the last thing in the queue, or was sent.
    Closing,
    /// Over.
    Ended,
}

/// Bytes of frames, never of part of one.
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

/// A frame on its way into the queue.
#[derive(Debug, Clone, Copy)]
pub(super) enum Outgoing<'a> {
    Slice(&'a [u8]),
    Shared(&'a Arc<[u8]>),
}

/// What is left after writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// Everything is with the kernel.
    All,
    /// Everything is with the kernel, and the last of it was our close frame.
    Close,
    /// The peer has to read first.
    Blocked,
}

#[derive(Debug)]
pub(super) struct Outbound {
    /// From the end of the handshake to the end of the connection.
    transport: Option<Transport>,
    phase: Phase,
    queue: VecDeque<Piece>,
    /// How much of the first piece the kernel has.
    sent_len: usize,
    /// Bytes in the queue.
    queued_len: usize,
    /// The latest pong that waits behind the frame under way (RFC 6455, 5.5.3: those before it need
    /// not be sent).
    pong: Option<Box<[u8]>>,
    /// The kernel took less than it was given; it will say when there is room.
    is_blocked: bool,
    /// The I/O thread is at work and writes everything afterwards in one go.
    is_corked: bool,
    pub(super) deflater: Option<Deflater>,
    /// Bytes written since this was last asked for.
    moved_len: u64,
    closing_since: Option<Instant>,
}

impl Outbound {
    pub(super) fn new(deflater: Option<Deflater>) -> Self {
        Self {
            transport: None,
            phase: Phase::Open,
            queue: VecDeque::new(),
            sent_len: 0,
            queued_len: 0,
            pong: None,
            is_blocked: false,
            is_corked: false,
            deflater,
            moved_len: 0,
            closing_since: None,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether `len` more bytes may wait.
    pub(super) fn check_room(&self, len: usize, len_max: usize) -> Result<(), SendError> {
        if self.phase != Phase::Open {
            Err(SendError::Closed)
        } else if !self.queue.is_empty() && self.queued_len.saturating_add(len) > len_max {
            Err(SendError::Full)
        } else {
            Ok(())
        }
    }

    /// Sends a frame, or queues what is left of it.
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
                // Whole, though a part has left: pieces begin where frames do.
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

    /// Writes as much as the kernel takes. An error counts as that it takes no more: the I/O thread
    /// will see it, and it knows what to do.
    fn write(&mut self, bytes: &[u8]) -> usize {
        let Some(transport) = &mut self.transport else {
            return 0;
        };
        let mut sent_len = 0;
        while sent_len < bytes.len() {
            let rest = bytes.get(sent_len..).unwrap_or_default();
            if let Ok(Some(len)) = transport.send(rest, false) {
                sent_len += len;
            } else {
                self.is_blocked = true;
                break;
            }
        }
        self.is_blocked |= !matches!(transport.flush(), Ok(true));
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

    pub(super) fn ping(&mut self, payload: &[u8]) {
        if self.phase == Phase::Open {
            self.control(OpCode::Ping, payload);
        }
    }

    /// Answers a ping. If the peer does not read, only the last one waits.
    pub(super) fn pong(&mut self, payload: &[u8]) {
        if self.phase != Phase::Open {
            return;
        }
        if self.is_blocked {
            self.pong = Some(payload.into());
        } else {
            self.control(OpCode::Pong, payload);
        }
    }

    /// Closes behind what is queued.
    pub(super) fn close(&mut self, said: Option<(CloseCode, &str)>) {
        if self.phase != Phase::Open {
            return;
        }
        let payload = said.map_or(Vec::new(), |(code, reason)| close::payload(code, reason));
        self.control(OpCode::Close, &payload);
        self.phase = Phase::Closing;
        self.closing_since = Some(Instant::now());
        self.pong = None;
    }

    /// Closes a peer that does not read: what it has not begun to get it will not get.
    pub(super) fn overflow(&mut self) {
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

    /// The handshake is out.
    pub(super) fn start(&mut self, transport: Transport) {
        self.transport = Some(transport);
    }

    /// The connection ends; nothing can be sent any more.
    pub(super) fn end(&mut self) -> Option<Transport> {
        self.phase = Phase::Ended;
        self.queue = VecDeque::new();
        (self.queued_len, self.sent_len) = (0, 0);
        self.pong = None;
        self.deflater = None;
        self.transport.take()
    }

    pub(super) fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match &mut self.transport {
            Some(transport) => transport.recv(buffer),
            None => Ok(Some(0)),
        }
    }

    pub(super) fn transport(&mut self) -> Option<&mut Transport> {
        self.transport.as_mut()
    }

    pub(super) fn cork(&mut self) {
        self.is_corked = true;
    }

    pub(super) fn closing_since(&self) -> Option<Instant> {
        self.closing_since
    }

    /// Bytes written since the last call.
    pub(super) fn take_moved_len(&mut self) -> u64 {
        std::mem::take(&mut self.moved_len)
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Writes what is queued. `scratch`: memory to put small pieces together in.
    ///
    /// # Errors
    ///
    /// Those of the socket.
    pub(super) fn flush(&mut self, scratch: &mut Vec<u8>) -> io::Result<Flushed> {
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

    /// The kernel took the first `len` bytes of the queue.
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
