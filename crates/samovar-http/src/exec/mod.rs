//! Threads that may block.

#[cfg(feature = "tls")]
mod handshake;
mod lane;
mod queue;
#[cfg(feature = "http2")]
mod stream;
mod worker;

pub(crate) use lane::Lane;
pub(crate) use queue::{Job, Queue};
pub(crate) use worker::{begin, cut_off, fail, handle, make_promised, report, run};
