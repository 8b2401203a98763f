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
