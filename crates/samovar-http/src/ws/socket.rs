//! The sending handle of a WebSocket.

use std::cell::RefCell;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use super::frame::op_code;
use super::inbound::Inbound;
use super::outbound::{Outbound, control_frame};
use super::{CloseReply, Event, Frame, Handler, Limits, Message, SendError};
use crate::client::Peer;
use crate::net::transport::Transport;
use crate::net::wake::Waker;
use crate::proto::ws::CloseCode;
use crate::proto::ws::frame::{self, OpCode};
use crate::sync::Lock;

/// Number of events that a worker processes for a socket before it requeues the socket.
const EVENTS_MAX: usize = 64;
/// Capacity that a thread's frame buffer keeps after a large frame, in bytes.
const SCRATCH_LEN_KEPT: usize = 256 * 1024;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Handle of a WebSocket, for sending. Cheap to clone and usable from any thread. Compared and
/// hashed by identity. Methods never block, and have no effect once the socket has ended.
#[derive(Clone)]
pub struct Socket(Arc<Shared>);

struct Shared {
    id: u64,
    peer: Peer,
    protocol: Option<Box<str>>,
    limits: Limits,
    outbound: Mutex<Outbound>,
    inbound: Mutex<Inbound>,
    /// Waker of the connection's I/O thread; set once the handshake response was sent.
    waker: OnceLock<Waker>,
}

impl Socket {
    pub(crate) fn new(
        peer: Peer,
        protocol: Option<Box<str>>,
        limits: Limits,
        handler: Option<Box<dyn Handler>>,
    ) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        Self(Arc::new(Shared {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            peer,
            protocol,
            limits,
            outbound: Mutex::default(),
            inbound: Mutex::new(Inbound::new(handler)),
            waker: OnceLock::new(),
        }))
    }

    /// Returns an identifier that is unique in this process.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Returns the address of the peer.
    pub fn peer(&self) -> Peer {
        self.0.peer
    }

    /// Returns the negotiated subprotocol; `None` if the socket has none.
    pub fn protocol(&self) -> Option<&str> {
        self.0.protocol.as_deref()
    }

    /// Returns whether messages can still be sent.
    pub fn is_open(&self) -> bool {
        self.outbound().is_open()
    }

    /// Sends or queues a message. If the queue is full, the socket is closed with 1013. Messages to
    /// a closing socket are dropped.
    pub fn send<'a>(&self, message: impl Into<Message<'a>>) {
        if self.try_send(message) == Err(SendError::Full) {
            self.outbound().overflow();
        }
    }

    /// Sends or queues a message. On an error the message is dropped, and the socket stays
    /// unchanged.
    ///
    /// # Errors
    ///
    /// If the queue for the peer is full, or the socket is closing.
    pub fn try_send<'a>(&self, message: impl Into<Message<'a>>) -> Result<(), SendError> {
        let message = message.into();
        let payload = message.as_bytes();
        SCRATCH.with_borrow_mut(|scratch| {
            frame::encode(scratch, op_code(message), payload.len());
            scratch.extend_from_slice(payload);
            let sent = self.put(scratch, None);
            scratch.clear();
            scratch.shrink_to(SCRATCH_LEN_KEPT);
            sent
        })
    }

    /// Like [`send`](Self::send), for a message that goes to many sockets.
    pub fn send_frame(&self, frame: &Frame) {
        let bytes = frame.bytes();
        if self.put(bytes, Some(bytes)) == Err(SendError::Full) {
            self.outbound().overflow();
        }
    }

    /// Sends or queues a ping. A payload of more than 125 bytes is truncated. If the queue is full,
    /// the socket is closed with 1013, as by [`send`](Self::send).
    ///
    /// The peer replies with a pong of the same payload, which goes to [`Handler::pong`]. The reply
    /// may also be for a later ping, if the peer has received several (RFC 6455, 5.5.3).
    pub fn ping(&self, payload: &[u8]) {
        self.send_control(OpCode::Ping, payload);
    }

    /// Sends or queues a pong that answers no ping: a one-way heartbeat. The engine answers pings
    /// of the peer by itself. Limits as for [`ping`](Self::ping).
    pub fn pong(&self, payload: &[u8]) {
        self.send_control(OpCode::Pong, payload);
    }

    fn send_control(&self, op_code: OpCode, payload: &[u8]) {
        if self.put(&control_frame(op_code, payload), None) == Err(SendError::Full) {
            self.outbound().overflow();
        }
    }

    fn put(&self, bytes: &[u8], shared: Option<&Arc<[u8]>>) -> Result<(), SendError> {
        let mut outbound = self.outbound();
        outbound.check_room(bytes.len(), self.0.limits.outbound_len_max)?;
        outbound.put(bytes, shared);
        Ok(())
    }

    /// Closes the socket after all queued messages were sent. A reason of more than 123 bytes is
    /// truncated.
    pub fn close(&self, code: CloseCode, reason: &str) {
        self.outbound().close(Some((code, reason)));
    }

    /// Ends the socket at once, without a close frame: drops queued messages and resets the
    /// connection. For a peer whose messages are not trusted any more. The handler gets a close
    /// event that is not [clean](super::Closed::is_clean).
    pub fn abort(&self) {
        self.outbound().abort();
        if let Some(waker) = self.0.waker.get() {
            waker.wake();
        }
    }

    /// Returns the number of bytes that are queued for the peer; see
    /// [`Limits::outbound_len_max`](super::Limits::outbound_len_max). A sender that can leave
    /// messages out does so while the peer is behind.
    pub fn queued_len(&self) -> usize {
        self.outbound().queued_len()
    }

    // Methods for the engine.

    pub(crate) fn outbound(&self) -> MutexGuard<'_, Outbound> {
        self.0.outbound.locked()
    }

    fn inbound(&self) -> MutexGuard<'_, Inbound> {
        self.0.inbound.locked()
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// Starts sending after the handshake response was sent.
    pub(crate) fn start(&self, transport: Transport, waker: Waker) {
        drop(self.0.waker.set(waker));
        self.outbound().transport = Some(transport);
    }

    /// Reads once. Returns the number of bytes, as [`Transport::recv`] does, and whether another
    /// read may return more.
    pub(crate) fn recv(
        &self,
        buffer: &mut [u8],
        peer_ended: bool,
    ) -> io::Result<(Option<usize>, bool)> {
        let mut outbound = self.outbound();
        let Some(transport) = &mut outbound.transport else {
            return Ok((Some(0), false));
        };
        let len = transport.recv(buffer)?;
        let may_have_more = transport.may_have_more(len, buffer.len(), peer_ended);
        Ok((len, may_have_more))
    }

    /// Queues an event; returns `true` if the socket must be queued for a worker.
    pub(crate) fn push(&self, event: Event<'static>) -> bool {
        self.inbound().push(event, self.0.limits.inbound_len_max)
    }

    /// Returns whether reading is paused because the handler's queue is full.
    pub(crate) fn is_paused(&self) -> bool {
        self.inbound().is_paused
    }

    /// Processes events on a worker after [`push`](Self::push) has returned `true`. Returns `true`
    /// if the socket must be requeued. Calls `on_panic` if the handler panics.
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
                // Wake the I/O thread, which continues once the close frame was sent.
                if let Some(waker) = self.0.waker.get() {
                    waker.wake();
                }
            }
        }
        self.inbound().put_back(handler);
        true
    }

    /// Passes an event to the handler. If the handler panics, closes the socket and returns
    /// `false`.
    pub(crate) fn handle(&self, handler: &mut dyn Handler, event: Event<'_>) -> bool {
        let handled = catch_unwind(AssertUnwindSafe(|| match event {
            Event::Open => handler.open(self),
            Event::Text(text) => handler.message(self, Message::Text(&text)),
            Event::Binary(data) => handler.message(self, Message::Binary(&data)),
            Event::Ping(payload) => handler.ping(self, &payload),
            Event::Pong(payload) => handler.pong(self, &payload),
            Event::Close(end) => {
                let frame = match &end.reply {
                    Some(CloseReply::Echo(code)) => code.map(|code| (code, "")),
                    Some(CloseReply::Failure(code)) => Some((*code, &*end.closed.reason)),
                    None => None,
                };
                if end.reply.is_some() {
                    self.outbound().close(frame);
                }
                handler.close(self, &end.closed);
            }
        }));
        if handled.is_err() {
            self.close(CloseCode::INTERNAL_ERROR, "");
        }
        handled.is_ok()
    }
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
