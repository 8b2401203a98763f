//! Worker threads, which may block.

mod exchange;
mod handshake;
mod http1;
mod http2;
mod lent;
pub(crate) mod patience;
mod upload;
mod worker;

pub(crate) use exchange::handle;
pub(crate) use http1::{cut_off, fail, render_deferred, report};
pub use lent::lend_slot;
pub(crate) use worker::run;
