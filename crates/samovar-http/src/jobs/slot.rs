//! The worker slot of the calling thread.

use std::cell::Cell;

use super::queue::{Queue, Wait};
use crate::lane::Lane;

thread_local! {
    /// The lane of the slot that the thread occupies; `None` if it occupies none.
    static LANE: Cell<Option<Lane>> = const { Cell::new(None) };
}

/// Sets the lane of the slot that the calling thread occupies. Returns the previous lane.
pub(crate) fn set_lane(lane: Option<Lane>) -> Option<Lane> {
    LANE.replace(lane)
}

/// Returns the lane of the slot that the calling thread occupies; `None` if the thread is no worker
/// or has lent its slot.
pub(crate) fn lane() -> Option<Lane> {
    LANE.get()
}

/// Returns whether the calling thread is a worker that occupies a slot.
pub(crate) fn has_slot() -> bool {
    lane().is_some()
}

/// A worker slot lent to other jobs, reclaimed when dropped.
pub(crate) struct LentSlot<'a> {
    queue: &'a Queue,
    lane: Lane,
    wait: Wait,
    /// The lane of the slot that the calling thread occupied.
    before: Option<Lane>,
}

impl<'a> LentSlot<'a> {
    /// Lends a slot; returns `None` if too many slots are lent already.
    pub(crate) fn lend(queue: &'a Queue, lane: Lane, wait: Wait) -> Option<Self> {
        // `then`, not `then_some`: dropping a value for a slot that was not lent would reclaim it.
        queue.lend(lane, wait).then(|| Self {
            queue,
            lane,
            wait,
            before: set_lane(None),
        })
    }
}

impl Drop for LentSlot<'_> {
    fn drop(&mut self) {
        self.queue.reclaim(self.lane, self.wait);
        set_lane(self.before);
    }
}
