//! Sockets, readiness and the threads that wait for it.

mod admission;
pub(crate) mod answer;
mod clock;
pub(crate) mod conn;
mod gather;
#[cfg(feature = "http2")]
mod h2;
#[cfg(feature = "tls")]
mod handshake;
mod http1;
pub(crate) mod inbox;
mod link;
pub(crate) mod listener;
mod room;
pub(crate) mod slab;
#[cfg(feature = "http2")]
pub(crate) mod stream;
pub(crate) mod sys;
pub(crate) mod thread;
pub(crate) mod transport;
pub(crate) mod wake;
mod ws;
