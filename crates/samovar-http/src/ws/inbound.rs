//! Events of a socket on their way to its handler.

use std::collections::VecDeque;

use super::{CloseCode, Closed, Handler};

/// What an event weighs beside its payload, in bytes.
const EVENT_LEN: usize = 64;

/// Something that happened to a socket.
#[derive(Debug)]
pub(crate) enum Event {
    Open,
    Text(String),
    Binary(Vec<u8>),
    Pong(Vec<u8>),
    Close(Box<End>),
}

/// The end, on its way to the handler behind the messages before it.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) closed: Closed,
    /// The close frame that is still owed to the peer. It is sent when the handler has seen all
    /// messages, so that its answers to them go before it (RFC 6455, 5.5.1, allows to wait).
    pub(crate) owed: Option<Owed>,
}

/// A close frame to be sent.
#[derive(Debug)]
pub(crate) enum Owed {
    /// The answer to the peer's, with its code if it had one.
    Answer(Option<CloseCode>),
    /// The peer broke a rule, which the reason names.
    Failure(CloseCode),
}

impl Event {
    fn len(&self) -> usize {
        let payload_len = match self {
            Self::Open | Self::Close(_) => 0,
            Self::Text(text) => text.len(),
            Self::Binary(data) | Self::Pong(data) => data.len(),
        };
        payload_len + EVENT_LEN
    }
}

/// The queue, and the handler while no worker has it.
#[derive(Default)]
pub(super) struct Inbound {
    events: VecDeque<Event>,
    len: usize,
    handler: Option<Box<dyn Handler>>,
    /// A worker has the handler, or is about to.
    is_claimed: bool,
    /// Nothing is read until there is room again.
    pub(super) is_paused: bool,
}

impl Inbound {
    pub(super) fn new(handler: Option<Box<dyn Handler>>) -> Self {
        Self {
            handler,
            ..Self::default()
        }
    }

    /// Adds an event; `true` if a worker has to be found for it.
    pub(super) fn push(&mut self, event: Event, len_max: usize) -> bool {
        self.len += event.len();
        self.is_paused |= self.len > len_max;
        self.events.push_back(event);
        !std::mem::replace(&mut self.is_claimed, true)
    }

    /// Lends the handler to the worker that claimed it.
    pub(super) fn take_handler(&mut self) -> Option<Box<dyn Handler>> {
        self.handler.take()
    }

    /// The next event, and whether reading may go on. `None` ends the claim; `handler` stays here.
    pub(super) fn next(
        &mut self,
        handler: &mut Option<Box<dyn Handler>>,
        len_max: usize,
    ) -> Option<(Event, bool)> {
        let Some(event) = self.events.pop_front() else {
            self.is_claimed = false;
            self.handler = handler.take();
            // An idle socket keeps no memory for a queue.
            self.events = VecDeque::new();
            return None;
        };
        self.len = self.len.saturating_sub(event.len());
        let resumes = self.is_paused && self.len <= len_max / 2;
        self.is_paused &= !resumes;
        Some((event, resumes))
    }

    /// The worker has done its share: another one goes on.
    pub(super) fn put_back(&mut self, handler: Option<Box<dyn Handler>>) {
        self.handler = handler;
    }
}
