//! Sockets, readiness and the threads that wait for it.

pub(crate) mod conn;
pub(crate) mod inbox;
pub(crate) mod listener;
pub(crate) mod slab;
pub(crate) mod sys;
pub(crate) mod thread;
