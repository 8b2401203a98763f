//! Handlers of a socket's events.

use std::fmt;

use super::{Message, Socket};

/// The end of a socket: its close code and reason, and whether it was clean. The fields are those
/// of a browser's `CloseEvent`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    /// Close code sent by the peer, or by the server if it failed the connection. 1005: the peer
    /// sent no code. 1006: the connection was lost.
    pub code: u16,
    /// Close reason.
    pub reason: String,
    /// Whether both sides have sent a close frame.
    pub is_clean: bool,
}

impl Closed {
    pub(crate) fn lost(reason: impl fmt::Display) -> Self {
        Self {
            code: 1006,
            reason: reason.to_string(),
            is_clean: false,
        }
    }
}

/// Handler of the events of one socket.
///
/// Each socket has its own value, so fields can hold session state without a lock. Methods run on
/// workers and may block, unless the socket is [inline](super::Upgrade::inline). A panic closes the
/// socket with 1011; [`close`](Self::close) is still called.
///
/// A closure `FnMut(&Socket, Message<'_>)` is a handler that handles only messages.
pub trait Handler: Send + 'static {
    /// Called before all other methods, once the handshake response was sent.
    fn open(&mut self, socket: &Socket) {
        let _unused = socket;
    }

    /// Called for each message.
    fn message(&mut self, socket: &Socket, message: Message<'_>);

    /// Returns whether to call [`ping`](Self::ping) and [`pong`](Self::pong). Called once, before
    /// the handshake response is sent. By default, control frames are not queued for the handler,
    /// so a flood of them costs no worker.
    fn observes_pings(&self) -> bool {
        false
    }

    /// Called for each ping of the peer, if [`observes_pings`](Self::observes_pings). The engine
    /// has sent the pong already.
    fn ping(&mut self, socket: &Socket, payload: &[u8]) {
        let _unused = (socket, payload);
    }

    /// Called for each pong of the peer, if [`observes_pings`](Self::observes_pings): the reply to
    /// [`Socket::ping`], or one that nobody has asked for. Replies to the engine's own pings are
    /// not reported.
    fn pong(&mut self, socket: &Socket, payload: &[u8]) {
        let _unused = (socket, payload);
    }

    /// Called last, when the socket has ended. Messages can no longer be sent.
    fn close(&mut self, socket: &Socket, closed: &Closed) {
        let _unused = (socket, closed);
    }
}

impl<F: FnMut(&Socket, Message<'_>) + Send + 'static> Handler for F {
    fn message(&mut self, socket: &Socket, message: Message<'_>) {
        self(socket, message);
    }
}
