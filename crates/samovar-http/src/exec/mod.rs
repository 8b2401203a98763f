//! Worker threads, which may block, and the jobs that they run.

mod exchange;
mod handshake;
mod http1;
mod http2;
mod job;
mod lane;
mod lent;
mod preferences;
mod progress;
mod queue;
mod turns;
mod uploads;
mod worker;

pub(crate) use exchange::handle;
pub(crate) use http1::{cut_off, fail, render_deferred, report};
pub(crate) use job::Job;
pub(crate) use lane::Lane;
pub use lent::lend_slot;
pub(crate) use preferences::Preferences;
pub(crate) use progress::Jobs;
pub use progress::Unfinished;
pub(crate) use queue::{LentSlot, Queue, Wait, submit};
pub(crate) use uploads::Listed;
pub(crate) use worker::run;
