//! The I/O threads, which wait for readiness events of sockets and handle them.

mod acceptor;
mod admission;
mod clock;
mod context;
mod eviction;
mod gather;
#[cfg(feature = "http2")]
mod h2;
#[cfg(not(feature = "http2"))]
#[path = "no_h2.rs"]
mod h2;
mod handshake;
mod http1;
mod link;
mod slab;
pub(crate) mod thread;
mod ws;
mod ws_clock;
mod ws_conn;
mod yield_policy;
