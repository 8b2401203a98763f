//! WebSockets whose handshake is accepted.

use std::fmt;

use super::{Handler, Socket};
use crate::proto::ws::deflate::Inflater;

/// A handshake accepted, and its answer not sent yet.
pub(crate) struct Accepted {
    pub(crate) socket: Socket,
    /// The handler, if it runs on the I/O thread; otherwise the socket has it.
    pub(crate) inline: Option<Box<dyn Handler>>,
    pub(crate) inflater: Option<Inflater>,
    pub(crate) is_started: bool,
}

impl Drop for Accepted {
    /// If the answer was never sent, whoever has the socket learns that nothing can be.
    fn drop(&mut self) {
        if !self.is_started {
            drop(self.socket.end());
        }
    }
}

impl fmt::Debug for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket.fmt(f)
    }
}
