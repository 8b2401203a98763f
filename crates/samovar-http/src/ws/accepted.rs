//! Accepted WebSocket handshakes.

use std::fmt;

use super::{Handler, Socket};

/// An accepted handshake whose response has not been sent yet.
pub(crate) struct Accepted {
    pub(crate) socket: Socket,
    /// The handler, if it runs on the I/O thread; otherwise the socket owns it.
    pub(crate) inline: Option<Box<dyn Handler>>,
    /// Whether the handler gets the peer's pings and pongs.
    pub(crate) observes_pings: bool,
    pub(crate) is_started: bool,
}

impl Drop for Accepted {
    /// Ends the socket if the response was never sent, so that sending on the socket fails.
    fn drop(&mut self) {
        if !self.is_started {
            drop(self.socket.outbound().end());
        }
    }
}

impl fmt::Debug for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket.fmt(f)
    }
}
