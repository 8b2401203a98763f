//! The reading side of a WebSocket connection.

use std::sync::Arc;

use super::ws_clock::Clock;
use crate::net::key::Key;
use crate::proto::ws::message::Assembler;
use crate::sys::Edges;
use crate::tls::Session;
use crate::ws::{Handler, Socket};

/// The stage of a WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Open,
    /// Received bytes are ignored (RFC 6455, 7.1.7).
    Ending,
    Lingering,
}

/// The reading side of a WebSocket.
pub(crate) struct SocketConn {
    pub(super) socket: Socket,
    pub(super) key: Key,
    pub(super) assembler: Assembler,
    /// The handler, if it runs on the I/O thread; otherwise `None`, and the socket owns it.
    pub(super) inline: Option<Box<dyn Handler>>,
    /// Whether the handler gets the peer's pings and pongs.
    pub(super) observes_pings: bool,
    /// Bytes that were read but must wait for the handler.
    pub(super) input: Vec<u8>,
    pub(super) stage: Stage,
    /// Whether a read may return bytes or the end of the stream.
    pub(super) readable: bool,
    pub(super) peer_ended: bool,
    /// Whether the handler was notified of the socket's end.
    pub(super) is_end_delivered: bool,
    pub(super) clock: Clock,
    /// The TLS session, if the client has sent a certificate; otherwise `None`.
    pub(super) session: Option<Arc<Session>>,
}

impl SocketConn {
    pub(crate) fn note(&mut self, edges: Edges) {
        self.readable |= edges.readable;
        self.peer_ended |= edges.ended;
    }

    /// Reads once; returns `None` if no bytes are available, and `Some(0)` at the end of the
    /// stream.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<Option<usize>> {
        let len;
        (len, self.readable) = self.socket.recv(buffer, self.peer_ended)?;
        self.clock.moved_len += len.unwrap_or(0) as u64;
        Ok(len)
    }
}

impl std::fmt::Debug for SocketConn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.socket.fmt(f)
    }
}

impl Drop for SocketConn {
    /// Closes the descriptor, even if handles still exist.
    fn drop(&mut self) {
        drop(self.socket.outbound().end());
    }
}
