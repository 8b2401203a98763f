//! Connections of an I/O thread, by protocol.

use super::h2::H2Conn;
use super::ws_conn::SocketConn;
use crate::conn::Conn;
use crate::sys::Edges;

/// A connection in a slot of the slab, by protocol.
#[derive(Debug)]
pub(crate) enum Link {
    /// An HTTP/1 connection, which moves to workers and back.
    Http1(Box<Conn>),
    /// A WebSocket, which stays with the thread.
    Ws(Box<SocketConn>),
    /// An HTTP/2 connection, which stays with the thread.
    H2(Box<H2Conn>),
}

impl Link {
    /// Records readiness events.
    pub(crate) fn note(&mut self, edges: Edges) {
        match self {
            Self::Http1(conn) => conn.note(edges),
            Self::Ws(conn) => conn.note(edges),
            Self::H2(conn) => conn.note(edges),
        }
    }
}
