//! Sockets, their readiness events, and the I/O threads that handle them.

mod acceptor;
mod admission;
pub(crate) mod answer;
mod clock;
pub(crate) mod conn;
mod context;
mod eviction;
mod gather;
mod h2;
mod handshake;
mod http1;
pub(crate) mod inbox;
pub(crate) mod key;
mod link;
pub(crate) mod listener;
mod slab;
pub(crate) mod stage;
pub(crate) mod stream;
pub(crate) mod sys;
pub(crate) mod thread;
pub(crate) mod transport;
pub(crate) mod upload;
pub(crate) mod wake;
mod ws;
mod ws_clock;
mod ws_conn;
mod yield_policy;
