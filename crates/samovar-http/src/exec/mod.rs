//! Threads that may block.

#[cfg(feature = "tls")]
mod handshake;
mod queue;
mod worker;

pub(crate) use queue::{Job, Queue};
pub(crate) use worker::{begin, cut_off, fail, report, run};
