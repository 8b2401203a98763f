//! The queue of events for a socket's handler.

use std::borrow::Cow;
use std::collections::VecDeque;

use super::{CloseCode, Closed, Handler};

/// Accounted overhead of each queued event, in bytes.
const EVENT_LEN: usize = 64;

/// An event of a socket.
#[derive(Debug)]
pub(crate) enum Event<'a> {
    Open,
    Text(Cow<'a, str>),
    Binary(Cow<'a, [u8]>),
    Ping(Cow<'a, [u8]>),
    Pong(Cow<'a, [u8]>),
    Close(Box<End>),
}

/// The end of a socket, queued after its last message.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) closed: Closed,
    /// The close frame that is sent after the handler has processed all messages, so that the
    /// handler's replies precede it (RFC 6455, 5.5.1, permits the delay). `None` if no close frame
    /// is to be sent.
    pub(crate) reply: Option<CloseReply>,
}

/// A close frame to be sent.
#[derive(Debug)]
pub(crate) enum CloseReply {
    /// Reply to the peer's close frame, with the same code, if the peer sent one.
    Echo(Option<CloseCode>),
    /// Close frame for a protocol error of the peer; the reason names the error.
    Failure(CloseCode),
}

impl Event<'_> {
    pub(crate) fn into_owned(self) -> Event<'static> {
        match self {
            Self::Open => Event::Open,
            Self::Text(text) => Event::Text(text.into_owned().into()),
            Self::Binary(data) => Event::Binary(data.into_owned().into()),
            Self::Ping(payload) => Event::Ping(payload.into_owned().into()),
            Self::Pong(payload) => Event::Pong(payload.into_owned().into()),
            Self::Close(end) => Event::Close(end),
        }
    }

    fn len(&self) -> usize {
        let payload_len = match self {
            Self::Open | Self::Close(_) => 0,
            Self::Text(text) => text.len(),
            Self::Binary(data) | Self::Ping(data) | Self::Pong(data) => data.len(),
        };
        payload_len + EVENT_LEN
    }
}

/// The event queue. It also stores the handler while no worker runs it.
#[derive(Default)]
pub(super) struct Inbound {
    events: VecDeque<Event<'static>>,
    len: usize,
    handler: Option<Box<dyn Handler>>,
    /// Whether the socket is queued for a worker, or a worker runs the handler.
    is_claimed: bool,
    /// Whether reading is paused because the queue was full; it resumes once the queue is half
    /// empty.
    pub(super) is_paused: bool,
}

impl Inbound {
    pub(super) fn new(handler: Option<Box<dyn Handler>>) -> Self {
        Self {
            handler,
            ..Self::default()
        }
    }

    /// Adds an event; returns `true` if the socket must be queued for a worker.
    pub(super) fn push(&mut self, event: Event<'static>, len_max: usize) -> bool {
        self.len += event.len();
        self.is_paused |= self.len > len_max;
        self.events.push_back(event);
        !std::mem::replace(&mut self.is_claimed, true)
    }

    /// Takes the handler, for the worker that claimed the socket; returns `None` if another worker
    /// has the handler, or if it runs on the I/O thread.
    pub(super) fn take_handler(&mut self) -> Option<Box<dyn Handler>> {
        self.handler.take()
    }

    /// Returns the next event, and whether reading may resume. If the queue is empty, it returns
    /// `None`, stores `handler` and ends the worker's claim.
    pub(super) fn next(
        &mut self,
        handler: &mut Option<Box<dyn Handler>>,
        len_max: usize,
    ) -> Option<(Event<'static>, bool)> {
        let Some(event) = self.events.pop_front() else {
            self.is_claimed = false;
            self.handler = handler.take();
            // Free the queue's memory, so that an idle socket uses none.
            self.events = VecDeque::new();
            return None;
        };
        self.len = self.len.saturating_sub(event.len());
        let resumes = self.is_paused && self.len <= len_max / 2;
        self.is_paused &= !resumes;
        Some((event, resumes))
    }

    /// Stores the handler after the worker has processed its share of events; another worker
    /// continues.
    pub(super) fn put_back(&mut self, handler: Option<Box<dyn Handler>>) {
        self.handler = handler;
    }
}
