//! Worker threads, which may block, and what they do.

mod exchange;
#[cfg(feature = "tls")]
mod handshake;
mod http1;
#[cfg(feature = "http2")]
mod http2;
mod lane;
mod queue;
mod worker;

pub(crate) use exchange::{Preferences, handle};
pub(crate) use http1::{begin, cut_off, fail, render_deferred, report};
pub(crate) use lane::Lane;
pub(crate) use queue::{Job, Queue};
pub(crate) use worker::run;
