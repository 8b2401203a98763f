//! TLS handshakes on an I/O thread.
//!
//! A connection gets TLS state only after its client has sent data, and workers do all computation.
//! The I/O thread only waits for events.

use super::context::{Context, Next};
use super::http1;
use crate::conn::{Conn, Stage};
use crate::service::Service;
use crate::sys::Edges;
use crate::tls::Handshake;

/// Continues the handshake on any event, because the handshake may wait for either direction.
pub(super) fn on_event(edges: Edges) -> Next {
    if edges == Edges::default() {
        Next::Wait
    } else {
        Next::Shake
    }
}

/// Handles a connection that a worker has returned. `edges`: events since the connection moved
/// to the worker.
pub(super) fn on_return<S: Service>(
    cx: &mut Context<S>,
    conn: &mut Conn,
    handshake: Handshake,
    edges: Edges,
) -> Next {
    match handshake {
        Handshake::WantsRead | Handshake::WantsWrite => on_event(edges),
        Handshake::Over => {
            conn.handshake = None;
            conn.enter(Stage::Lingering);
            conn.restart_clock(cx.now);
            http1::linger(conn, &mut cx.read_buffer)
        }
        Handshake::Done => {
            conn.handshake = None;
            conn.enter(Stage::Receiving);
            conn.restart_clock(cx.now);
            // The first request may have arrived together with the end of the handshake.
            conn.readable = true;
            if conn.transport.speaks_http2() {
                return Next::Http2;
            }
            http1::go_on(cx, conn)
        }
    }
}
