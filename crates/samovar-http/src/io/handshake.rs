//! TLS handshakes on an I/O thread.
//!
//! A connection has no TLS state until its client has sent something, and workers do all
//! computation. The I/O thread only waits.

use super::conn::Conn;
use super::context::{Context, Next};
use super::stage::Stage;
use super::sys::Edges;

use crate::service::Service;
use crate::tls::Handshake;

/// Continues the handshake on any event, because it may wait for either direction.
pub(super) fn on_event(edges: Edges) -> Next {
    if edges == Edges::default() {
        Next::Wait
    } else {
        Next::Shake
    }
}

impl<S: Service> Context<S> {
    /// A worker has returned a connection. `edges`: events since it was given away.
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
                conn.enter(Stage::Lingering);
                conn.restart_clock(self.now);
                self.linger(conn)
            }
            Handshake::Done => {
                conn.handshake = None;
                conn.enter(Stage::Receiving);
                conn.restart_clock(self.now);
                // The first request may have arrived with the end of the handshake.
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
