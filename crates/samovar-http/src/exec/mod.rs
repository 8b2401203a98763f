//! Threads that may block.

#[cfg(feature = "tls")]
mod handshake;
mod queue;
#[cfg(feature = "http2")]
mod stream;
mod worker;

pub(crate) use queue::{Job, Queue};
pub(crate) use worker::{begin, cut_off, fail, report, run};
