//! Listeners, sockets with or without TLS, and wake-ups of connections.

pub(crate) mod key;
pub(crate) mod listener;
pub(crate) mod transport;
pub(crate) mod wake;
