//! A handle to a socket.

use std::cell::RefCell;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::frame::op_code;
use super::inbound::Inbound;
use super::outbound::{Flushed, Outbound, Outgoing};
use super::{Event, Frame, Handler, Limits, Message, Owed, SendError};
use crate::head::Peer;
use crate::io::transport::Transport;
use crate::io::wake::Waker;
use crate::proto::ws::CloseCode;
use crate::proto::ws::deflate::{self, Deflater};
use crate::proto::ws::frame;

/// Events that a worker handles for one socket before others get their turn.
const EVENTS_MAX: usize = 64;
/// The longest header of a server's frame, in bytes.
const HEADER_LEN_MAX: usize = 10;
/// A thread's memory for frames shrinks to this after a large one, in bytes.
const SCRATCH_LEN_KEPT: usize = 256 * 1024;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// One WebSocket, to send on. Cheap to clone, usable from any thread, equal and hashed by identity,
/// and harmless once the socket has ended. No method blocks.
#[derive(Clone)]
pub struct Socket(Arc<Shared>);

struct Shared {
    id: u64,
    peer: Peer,
    protocol: Option<Box<str>>,
    limits: Limits,
    /// Bytes of a message from which on it is compressed; `None` if compression is not agreed on.
    deflate_len_min: Option<usize>,
    /// Messages are compressed by themselves, with the largest window.
    deflates_alone: bool,
    outbound: Mutex<Outbound>,
    inbound: Mutex<Inbound>,
    /// Set when the connection is a WebSocket.
    waker: OnceLock<Waker>,
}

/// What a socket is made of.
pub(super) struct Parts {
    pub(super) peer: Peer,
    pub(super) protocol: Option<Box<str>>,
    pub(super) limits: Limits,
    pub(super) deflate_len_min: Option<usize>,
    pub(super) deflater: Option<Deflater>,
    /// Whether messages of this connection point back into earlier ones.
    pub(super) has_context: bool,
    pub(super) handler: Option<Box<dyn Handler>>,
}

impl Socket {
    pub(super) fn new(parts: Parts) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let takes_alone = parts.deflater.as_ref().is_some_and(Deflater::takes_alone);
        Self(Arc::new(Shared {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            peer: parts.peer,
            protocol: parts.protocol,
            limits: parts.limits,
            deflate_len_min: parts.deflate_len_min,
            deflates_alone: takes_alone && !parts.has_context,
            outbound: Mutex::new(Outbound::new(parts.deflater)),
            inbound: Mutex::new(Inbound::new(parts.handler)),
            waker: OnceLock::new(),
        }))
    }

    /// A number that no other socket of this process has.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Who is at the other end.
    pub fn peer(&self) -> Peer {
        self.0.peer
    }

    /// The subprotocol agreed on.
    pub fn protocol(&self) -> Option<&str> {
        self.0.protocol.as_deref()
    }

    /// Whether messages can still be sent.
    pub fn is_open(&self) -> bool {
        self.outbound().is_open()
    }

    /// Sends a message, or queues it. A peer that is too far behind is closed instead (1013); once
    /// the socket is closing, the message is dropped.
    pub fn send<'a>(&self, message: impl Into<Message<'a>>) {
        if self.try_send(message) == Err(SendError::Full) {
            self.outbound().overflow();
        }
    }

    /// Sends a message, or queues it, or says why not: then the message is dropped, and nothing
    /// else happens.
    ///
    /// # Errors
    ///
    /// If the peer is too far behind, or the socket is closing.
    pub fn try_send<'a>(&self, message: impl Into<Message<'a>>) -> Result<(), SendError> {
        let message = message.into();
        SCRATCH.with_borrow_mut(|scratch| {
            let sent = self.encode_and_put(message, scratch);
            scratch.clear();
            scratch.shrink_to(SCRATCH_LEN_KEPT);
            sent
        })
    }

    fn encode_and_put(&self, message: Message<'_>, scratch: &mut Vec<u8>) -> Result<(), SendError> {
        let payload = message.as_bytes();
        let shared = &*self.0;
        let deflates = shared
            .deflate_len_min
            .is_some_and(|len_min| payload.len() >= len_min);
        // The header's length is known after the payload's; it is put right before it.
        scratch.resize(HEADER_LEN_MAX, 0);
        // Before the lock, where that is possible.
        let mut is_deflated =
            deflates && shared.deflates_alone && deflate::deflate_alone(payload, scratch);
        let mut outbound = self.outbound();
        outbound.check_room(payload.len(), shared.limits.outbound_len_max)?;
        if deflates
            && !shared.deflates_alone
            && let Some(deflater) = &mut outbound.deflater
        {
            is_deflated = deflater.deflate(payload, scratch);
        }
        if !is_deflated {
            scratch.extend_from_slice(payload);
        }
        let mut header = Vec::with_capacity(HEADER_LEN_MAX);
        let payload_len = scratch.len() - HEADER_LEN_MAX;
        frame::encode(&mut header, op_code(message), is_deflated, payload_len);
        let start = HEADER_LEN_MAX - header.len();
        if let Some(place) = scratch.get_mut(start..HEADER_LEN_MAX) {
            place.copy_from_slice(&header);
        }
        outbound.put(Outgoing::Slice(scratch.get(start..).unwrap_or_default()));
        Ok(())
    }

    /// Like [`send`](Self::send), for a message that many sockets get.
    pub fn send_frame(&self, frame: &Frame) {
        if self.try_send_frame(frame) == Err(SendError::Full) {
            self.outbound().overflow();
        }
    }

    /// Like [`try_send`](Self::try_send), for a message that many sockets get.
    ///
    /// # Errors
    ///
    /// If the peer is too far behind, or the socket is closing.
    pub fn try_send_frame(&self, frame: &Frame) -> Result<(), SendError> {
        let len_min = self.0.deflate_len_min;
        let deflated = if len_min.is_some_and(|len_min| frame.payload().len() >= len_min) {
            frame.deflated()
        } else {
            None
        };
        let mut outbound = self.outbound();
        outbound.check_room(frame.plain().len(), self.0.limits.outbound_len_max)?;
        let bytes = match (deflated, &mut outbound.deflater) {
            (Some(bytes), Some(deflater)) if deflater.takes_alone() => {
                deflater.sent_alone(frame.payload());
                bytes
            }
            _ => frame.plain(),
        };
        outbound.put(Outgoing::Shared(bytes));
        Ok(())
    }

    /// Sends a ping with at most 125 bytes of payload; what is longer is cut off. The answer comes
    /// to [`Handler::pong`].
    pub fn ping(&self, payload: &[u8]) {
        self.outbound().ping(payload);
    }

    /// Closes the socket behind what was sent before: nothing can be sent after this. A reason of
    /// more than 123 bytes is cut.
    pub fn close(&self, code: CloseCode, reason: &str) {
        self.outbound().close(Some((code, reason)));
    }

    // For the engine.

    fn outbound(&self) -> MutexGuard<'_, Outbound> {
        self.0
            .outbound
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn inbound(&self) -> MutexGuard<'_, Inbound> {
        self.0
            .inbound
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// The handshake is out: what was sent before follows now.
    pub(crate) fn start(&self, transport: Transport, waker: Waker) {
        drop(self.0.waker.set(waker));
        self.outbound().start(transport);
    }

    /// The connection ends. Returns its transport, the first time.
    pub(crate) fn end(&self) -> Option<Transport> {
        self.outbound().end()
    }

    pub(crate) fn pong(&self, payload: &[u8]) {
        self.outbound().pong(payload);
    }

    /// Reads once, and says whether another read may find something.
    pub(crate) fn recv(
        &self,
        buffer: &mut [u8],
        peer_ended: bool,
    ) -> io::Result<(Option<usize>, bool)> {
        let mut outbound = self.outbound();
        let len = outbound.recv(buffer)?;
        // Without a transport this was the end, which is where reading stops.
        let may_have_more = outbound
            .transport()
            .is_some_and(|transport| transport.may_have_more(len, buffer.len(), peer_ended));
        Ok((len, may_have_more))
    }

    pub(crate) fn shutdown_write(&self) -> io::Result<()> {
        let mut outbound = self.outbound();
        outbound
            .transport()
            .map_or(Ok(()), Transport::shutdown_write)
    }

    /// Holds back what is sent until the next [`flush`](Self::flush).
    pub(crate) fn cork(&self) {
        self.outbound().cork();
    }

    /// Writes what is queued.
    pub(crate) fn flush(&self, scratch: &mut Vec<u8>) -> io::Result<Flushed> {
        self.outbound().flush(scratch)
    }

    /// How far sending is.
    pub(crate) fn progress(&self) -> Progress {
        let outbound = self.outbound();
        Progress {
            closing_since: outbound.closing_since(),
            is_blocked: outbound.is_blocked(),
        }
    }

    /// Bytes written since the last call.
    pub(crate) fn take_moved_len(&self) -> u64 {
        self.outbound().take_moved_len()
    }

    /// Queues an event; `true` if a worker has to be found for the socket.
    pub(crate) fn push(&self, event: Event) -> bool {
        self.inbound().push(event, self.0.limits.inbound_len_max)
    }

    /// Whether the handler is too far behind for more to be read.
    pub(crate) fn is_paused(&self) -> bool {
        self.inbound().is_paused
    }

    /// Handles events, on a worker that was found because of [`push`](Self::push). `true` if
    /// another one has to go on. `on_panic` is told of a handler that panicked.
    pub(crate) fn handle_events(&self, on_panic: impl Fn()) -> bool {
        let len_max = self.0.limits.inbound_len_max;
        let mut handler = self.inbound().take_handler();
        for _ in 0..EVENTS_MAX {
            let next = self.inbound().next(&mut handler, len_max);
            let Some((event, resumes)) = next else {
                return false;
            };
            if resumes && let Some(waker) = self.0.waker.get() {
                waker.wake();
            }
            let is_last = matches!(event, Event::Close(_));
            if let Some(handler) = &mut handler
                && !self.handle(handler.as_mut(), event)
            {
                on_panic();
            }
            if is_last {
                handler = None;
                // The I/O thread goes on when the close frame is out.
                if let Some(waker) = self.0.waker.get() {
                    waker.wake();
                }
            }
        }
        self.inbound().put_back(handler);
        true
    }

    pub(crate) fn handle(&self, handler: &mut dyn Handler, event: Event) -> bool {
        self.guarded(|| match event {
            Event::Open => handler.open(self),
            Event::Text(text) => handler.message(self, Message::Text(&text)),
            Event::Binary(data) => handler.message(self, Message::Binary(&data)),
            Event::Pong(payload) => handler.pong(self, &payload),
            Event::Close(end) => {
                let said = match &end.owed {
                    Some(Owed::Answer(code)) => code.map(|code| (code, "")),
                    Some(Owed::Failure(code)) => Some((*code, &*end.closed.reason)),
                    None => None,
                };
                if end.owed.is_some() {
                    self.outbound().close(said);
                }
                handler.close(self, &end.closed);
            }
        })
    }

    /// Calls a handler; `false`, and the socket closes, if it panics.
    pub(crate) fn guarded(&self, call: impl FnOnce()) -> bool {
        let is_sound = catch_unwind(AssertUnwindSafe(call)).is_ok();
        if !is_sound {
            self.close(CloseCode::INTERNAL_ERROR, "");
        }
        is_sound
    }
}

/// How far a socket's sending is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    /// When our close frame was queued.
    pub(crate) closing_since: Option<std::time::Instant>,
    /// Whether the peer has to read first.
    pub(crate) is_blocked: bool,
}

impl PartialEq for Socket {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for Socket {}

impl Hash for Socket {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.id.hash(state);
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Socket({} of {})", self.0.id, self.0.peer)
    }
}
