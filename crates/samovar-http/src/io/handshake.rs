//! What an I/O thread does for a connection whose TLS handshake is not done.
//!
//! It holds no memory of TLS until the peer has said something, and everything that computes is
//! done by workers. Here is only the waiting.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::conn::Conn;
use super::sys::Edges;
use super::thread::{IoThread, Next};
use super::transport::Transport;
use crate::head::Peer;
use crate::observer::Incident;
use crate::server::Core;
use crate::service::Service;
use crate::tls::{Handshake, Stream, TlsConfig};

/// One of the handshakes that may be under way.
#[derive(Debug)]
pub(crate) struct Shaking(Arc<Core>);

impl Shaking {
    /// `None` if there are too many.
    fn begin(core: &Arc<Core>) -> Option<Self> {
        let shaking = Self(Arc::clone(core));
        let count = core.handshake_count.fetch_add(1, Ordering::Relaxed);
        // One too many is put back by dropping it.
        (count < core.limits.handshakes_max).then_some(shaking)
    }
}

impl Drop for Shaking {
    fn drop(&mut self) {
        self.0.handshake_count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Any event may be what the handshake waits for.
pub(super) fn on_event(edges: Edges) -> Next {
    if edges == Edges::default() {
        Next::Wait
    } else {
        Next::Shake
    }
}

impl<S: Service> IoThread<S> {
    pub(super) fn admit_tls(&mut self, socket: OwnedFd, peer: Peer, config: &TlsConfig) {
        let Some(shaking) = Shaking::begin(&self.shared.core) else {
            let observer = self.shared.service.observer();
            return observer.incident(&Incident::ConnectionsFull);
        };
        let stream = Stream::new(socket, config.server_config(self.speaks_http2()));
        self.admit(Transport::Tls(Box::new(stream)), peer, |conn| {
            conn.handshake = Some(shaking);
        });
    }

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
