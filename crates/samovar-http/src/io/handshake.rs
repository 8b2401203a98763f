//! What an I/O thread does for a connection whose TLS handshake is not done.
//!
//! It holds no memory of TLS until the peer has said something, and everything that computes is
//! done by workers. Here is only the waiting.

use super::conn::Conn;
use super::context::{Context, Next};
use super::sys::Edges;

use crate::service::Service;
use crate::tls::Handshake;

/// Any event may be what the handshake waits for.
pub(super) fn on_event(edges: Edges) -> Next {
    if edges == Edges::default() {
        Next::Wait
    } else {
        Next::Shake
    }
}

impl<S: Service> Context<S> {
    /// A connection comes back from a worker. `edges`: what came meanwhile.
    pub(super) fn on_handshake(
        &mut self,
        conn: &mut Conn,
        handshake: Handshake,
        edges: Edges,
    ) -> Next {
        match handshake {
            Handshake::WantsRead | Handshake::WantsWrite => on_event(edges),
            Handshake::Over => {
                conn.handshake = None;
                conn.is_lingering = true;
                conn.restart_clock(self.now);
                self.linger(conn)
            }
            Handshake::Done => {
                conn.handshake = None;
                conn.restart_clock(self.now);
                // The first request may have come with the end of the handshake.
                conn.readable = true;
                #[cfg(feature = "http2")]
                if conn.transport.speaks_http2() {
                    return Next::Http2;
                }
                self.go_on(conn)
            }
        }
    }
}
