//! Jobs of the workers, and the queue in which they wait for a worker slot.

mod job;
mod progress;
mod queue;
mod turns;
mod uploads;

pub(crate) use job::Job;
pub(crate) use progress::Jobs;
pub use progress::Unfinished;
pub(crate) use queue::{LentSlot, Queue, Wait, submit};
pub(crate) use uploads::Listed;
