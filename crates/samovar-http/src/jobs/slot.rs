//! The worker slot of a thread.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::queue::{Finished, Queue, Wait};
use crate::lane::Lane;

/// The slot of a worker thread, as the thread itself and the monitor see it.
///
/// A thread occupies a slot from the start of a job to its end. Meanwhile the thread may lend the
/// slot and reclaim it, and the monitor may lend it on behalf of a handler that hangs. Each of them
/// first changes this state, atomically, and then the counts of the queue, so that no slot is lent
/// twice.
#[derive(Debug, Default)]
pub(crate) struct Slot(AtomicU8);

/// No slot is occupied: the thread has no job, or has lent its slot.
const NONE: u8 = 0;
/// Added to the index of the lane if the slot is occupied.
const OCCUPIED: u8 = 0x10;
/// Added to the index of the lane if the monitor has lent the slot.
const LENT: u8 = 0x20;

/// The lanes, by their index.
const LANES: [Lane; 5] = [
    Lane::Prompt,
    Lane::Slow,
    Lane::Writing,
    Lane::Costly,
    Lane::Handshake,
];

fn lane_of(state: u8) -> Option<Lane> {
    LANES.get(usize::from(state & 0x0f)).copied()
}

thread_local! {
    /// The slot of the thread; `None` if the thread is no worker.
    static SLOT: RefCell<Option<Arc<Slot>>> = const { RefCell::new(None) };
}

/// Makes the calling thread a worker with this slot, or no worker.
pub(crate) fn set_slot(slot: Option<Arc<Slot>>) {
    SLOT.set(slot);
}

/// Returns the lane of the slot that the calling thread occupies; `None` if the thread is no worker
/// or its slot is lent.
pub(crate) fn lane() -> Option<Lane> {
    SLOT.with_borrow(|slot| slot.as_ref()?.lane())
}

/// Returns whether the calling thread is a worker that occupies a slot.
pub(crate) fn has_slot() -> bool {
    lane().is_some()
}

/// Reclaims the slot of the calling thread if the monitor has lent it. For a thread whose handler
/// has returned: the rest of the job occupies a slot again.
pub(crate) fn reclaim_from_monitor(queue: &Queue) {
    SLOT.with_borrow(|slot| {
        if let Some(slot) = slot {
            slot.reclaim(queue);
        }
    });
}

impl Slot {
    /// Records that the thread starts a job of the lane, or has reclaimed its slot.
    pub(crate) fn occupy(&self, lane: Lane) {
        self.0.store(OCCUPIED + lane as u8, Ordering::Release);
    }

    /// Returns the lane of the slot; `None` if it is not occupied.
    pub(super) fn lane(&self) -> Option<Lane> {
        match self.0.load(Ordering::Acquire) {
            state if state & OCCUPIED != 0 => lane_of(state),
            _ => None,
        }
    }

    /// Records that the job has ended. Returns what the queue must count for that; `None` if there
    /// was no job.
    pub(crate) fn finish(&self) -> Option<Finished> {
        match self.0.swap(NONE, Ordering::AcqRel) {
            NONE => None,
            state if state & LENT != 0 => Some(Finished::Hanging),
            state => lane_of(state).map(Finished::In),
        }
    }

    /// Gives the slot up; returns its lane, or `None` if it is not occupied.
    fn give_up(&self) -> Option<Lane> {
        self.replace(OCCUPIED, NONE)
    }

    /// As [`give_up`](Self::give_up), on behalf of the thread.
    pub(super) fn give_up_for_thread(&self) -> Option<Lane> {
        self.replace(OCCUPIED, LENT)
    }

    /// Replaces a state of the kind `from` by one of the kind `to`; returns the lane.
    fn replace(&self, from: u8, to: u8) -> Option<Lane> {
        let before = self.0.load(Ordering::Acquire);
        if before & from == 0 {
            return None;
        }
        let lane = before & 0x0f;
        let after = if to == NONE { NONE } else { to + lane };
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        let replaced = self.0.compare_exchange(before, after, order.0, order.1);
        replaced.ok().and_then(lane_of)
    }

    fn reclaim(&self, queue: &Queue) {
        if let Some(lane) = self.replace(LENT, OCCUPIED) {
            queue.reclaim(lane, Wait::Hanging);
        }
    }
}

/// A worker slot lent to other jobs, reclaimed when dropped.
pub(crate) struct LentSlot<'a> {
    queue: &'a Queue,
    lane: Lane,
    wait: Wait,
}

impl<'a> LentSlot<'a> {
    /// Lends a slot of the lane, which is the calling thread's slot if that is a worker. Returns
    /// `None` if it is lent already, or if too many slots are lent.
    pub(crate) fn lend(queue: &'a Queue, lane: Lane, wait: Wait) -> Option<Self> {
        let lane = SLOT.with_borrow(|slot| match slot {
            Some(slot) => slot.give_up(),
            // A handler may read its request body in another thread. The monitor does not know
            // that, and might lend the slot a second time.
            None => (!queue.lends_hanging()).then_some(lane),
        })?;
        if !queue.lend(lane, wait) {
            occupy_again(lane);
            return None;
        }
        Some(Self { queue, lane, wait })
    }
}

impl Drop for LentSlot<'_> {
    fn drop(&mut self) {
        self.queue.reclaim(self.lane, self.wait);
        occupy_again(self.lane);
    }
}

fn occupy_again(lane: Lane) {
    SLOT.with_borrow(|slot| {
        if let Some(slot) = slot {
            slot.occupy(lane);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_given_up_once() {
        let slot = Slot::default();
        assert_eq!(slot.give_up(), None);
        for lane in LANES {
            slot.occupy(lane);
            assert_eq!(slot.lane(), Some(lane));
            assert_eq!(slot.give_up(), Some(lane));
            assert_eq!((slot.lane(), slot.give_up()), (None, None));
            assert_eq!(slot.give_up_for_thread(), None);
            assert_eq!(slot.finish(), None);
            slot.occupy(lane);
            assert_eq!(slot.give_up_for_thread(), Some(lane));
            assert_eq!((slot.lane(), slot.give_up()), (None, None));
            assert_eq!(slot.finish(), Some(Finished::Hanging));
            slot.occupy(lane);
            assert_eq!(slot.finish(), Some(Finished::In(lane)));
        }
    }
}
