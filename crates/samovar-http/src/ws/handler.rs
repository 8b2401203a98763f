//! What an application does with a socket's events.

use std::fmt;

use super::{Message, Socket};

/// How a socket ended; as a browser tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    /// The code: what the peer said or, if the server failed the connection, what the peer was
    /// told. 1005 if the peer said none, 1006 if the connection was lost.
    pub code: u16,
    /// The reason, in words.
    pub reason: String,
    /// Whether both sides said goodbye.
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

/// What an application does with the events of one socket.
///
/// One value serves one socket, so its fields are the state of a session and need no lock. Methods
/// run on workers and may block, unless the socket is [inline](super::Upgrade::inline). A panic
/// closes the socket with 1011; [`close`](Self::close) is still called.
///
/// A closure `FnMut(&Socket, Message<'_>)` is a handler for messages alone.
pub trait Handler: Send + 'static {
    /// The handshake is out. The first event.
    fn open(&mut self, socket: &Socket) {
        let _unused = socket;
    }

    /// A message.
    fn message(&mut self, socket: &Socket, message: Message<'_>);

    /// An answer to [`Socket::ping`], or a pong that nobody asked for. The engine's own pings do
    /// not show.
    fn pong(&mut self, socket: &Socket, payload: &[u8]) {
        let _unused = (socket, payload);
    }

    /// The socket has ended. The last event, and always one. Nothing can be sent any more.
    fn close(&mut self, socket: &Socket, closed: &Closed) {
        let _unused = (socket, closed);
    }
}

impl<F: FnMut(&Socket, Message<'_>) + Send + 'static> Handler for F {
    fn message(&mut self, socket: &Socket, message: Message<'_>) {
        self(socket, message);
    }
}
