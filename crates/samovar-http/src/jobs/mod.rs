//! Jobs of the workers, and the queue in which they wait for a worker slot.

mod growth;
mod job;
pub(crate) mod monitor;
mod progress;
mod queue;
mod slot;
mod turns;
mod uploads;

pub(crate) use job::Job;
pub use progress::Unfinished;
pub(crate) use progress::{Jobs, Running};
pub(crate) use queue::{Queue, Slots, Wait};
pub(crate) use slot::{LentSlot, has_slot, lane, reclaim_from_monitor, set_slot};
pub(crate) use uploads::Listed;
