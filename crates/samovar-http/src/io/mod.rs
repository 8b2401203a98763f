//! Sockets, readiness and the threads that wait for it.

mod admission;
mod answer;
mod clock;
pub(crate) mod conn;
pub(crate) mod inbox;
pub(crate) mod listener;
pub(crate) mod slab;
pub(crate) mod sys;
pub(crate) mod thread;
