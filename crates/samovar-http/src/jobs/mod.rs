//! Jobs of the workers, and the queue in which they wait for a worker slot.

mod job;
mod progress;
mod queue;
mod slot;
mod turns;
mod uploads;

pub(crate) use job::Job;
pub(crate) use progress::Jobs;
pub use progress::Unfinished;
pub(crate) use queue::{Queue, Wait};
pub(crate) use slot::{LentSlot, has_slot, lane, set_lane};
pub(crate) use uploads::Listed;
