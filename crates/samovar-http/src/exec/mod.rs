//! Threads that may block.

mod queue;
mod worker;

pub(crate) use queue::{Job, Queue};
pub(crate) use worker::{begin, cut_off, fail, report, run};
