//! What a place of an I/O thread holds: a connection in the protocol it speaks.

use super::conn::Conn;
#[cfg(feature = "http2")]
use super::h2::H2Conn;
use super::sys::Edges;
use super::ws_conn::SocketConn;

/// A connection that is here.
#[derive(Debug)]
pub(crate) enum Link {
    /// HTTP/1; travels to the workers and back.
    Http1(Box<Conn>),
    /// A WebSocket; stays here.
    Ws(Box<SocketConn>),
    /// HTTP/2; stays.
    #[cfg(feature = "http2")]
    H2(Box<H2Conn>),
}

impl Link {
    /// Takes note of events that came while it was away.
    pub(crate) fn note(&mut self, edges: Edges) {
        match self {
            Self::Http1(conn) => conn.note(edges),
            Self::Ws(conn) => conn.note(edges),
            #[cfg(feature = "http2")]
            Self::H2(conn) => conn.note(edges),
        }
    }
}
