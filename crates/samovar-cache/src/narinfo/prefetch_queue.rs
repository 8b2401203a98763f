//! The queue of narinfos to prefetch, and the credit that limits it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use samovar_nix::HashPart;

/// Wishes that wait; more are forgotten. 24 bytes each.
const WISH_COUNT_MAX: usize = 16 * 1024;

/// What a narinfo made for a wish costs.
const COST: i64 = 8;

/// What one earns that is asked for: one in four is enough.
const EARNED: i64 = 4 * COST;

/// What a cold narinfo earns: one in eight finds out whether wishes have become worth it.
const EARNED_COLD: i64 = 1;

/// The most that can be saved, and what there is at the start: 1024 narinfos.
const CREDIT_MAX: i64 = 1024 * COST;

/// Paths looked up at once: less than a millisecond with the connection.
pub(crate) const STEP_COUNT: usize = 32;

/// What is to be made ready next; shared with those who wish.
#[derive(Debug)]
pub(crate) struct Wishes {
    state: Mutex<State>,
    changed: Condvar,
    credit: AtomicI64,
}

impl Default for Wishes {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::default(),
            credit: AtomicI64::new(CREDIT_MAX),
        }
    }
}

#[derive(Debug, Default)]
struct State {
    /// With how far to go from each.
    queue: VecDeque<(HashPart, u8)>,
    /// Whether there is a thread.
    is_served: bool,
    is_stopped: bool,
}

/// What to do next.
pub(crate) enum Task {
    Wishes(Vec<(HashPart, u8)>),
    Idle,
    Stop,
}

impl Wishes {
    /// Wishes for these paths, and for what is `depth - 1` references away from them; unless wishes
    /// have proved to be in vain.
    pub(crate) fn add(&self, hash_parts: impl Iterator<Item = HashPart>, depth: u8) {
        if depth == 0 || self.credit.load(Ordering::Relaxed) < COST {
            return;
        }
        let mut state = self.state();
        if !state.is_served {
            return;
        }
        let was_empty = state.queue.is_empty();
        let room = WISH_COUNT_MAX.saturating_sub(state.queue.len());
        state
            .queue
            .extend(hash_parts.take(room).map(|one| (one, depth)));
        let is_news = was_empty && !state.queue.is_empty();
        drop(state);
        if is_news {
            self.changed.notify_one();
        }
    }

    /// A narinfo had to be made while somebody waited.
    pub(crate) fn note_cold(&self) {
        self.earn(EARNED_COLD);
    }

    /// A narinfo that was wished for was asked for.
    pub(crate) fn note_useful(&self) {
        self.earn(EARNED);
    }

    /// Pays for so many narinfos.
    pub(crate) fn pay(&self, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.credit
            .fetch_sub(count.saturating_mul(COST), Ordering::Relaxed);
    }

    fn earn(&self, sum: i64) {
        // Two at once may miss the limit by a little.
        if self.credit.load(Ordering::Relaxed) < CREDIT_MAX {
            self.credit.fetch_add(sum, Ordering::Relaxed);
        }
    }

    /// Takes wishes from now on: a thread serves them.
    pub(crate) fn serve(&self) {
        self.state().is_served = true;
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.state().is_stopped = true;
        self.changed.notify_one();
    }

    /// Waits for something to do, for `patience` at most.
    pub(crate) fn next(&self, patience: Duration) -> Task {
        let state = self.state();
        let (mut state, _) = self
            .changed
            .wait_timeout_while(state, patience, |state| {
                state.queue.is_empty() && !state.is_stopped
            })
            .unwrap_or_else(PoisonError::into_inner);
        if state.is_stopped {
            return Task::Stop;
        }
        if state.queue.is_empty() {
            return Task::Idle;
        }
        let count = state.queue.len().min(STEP_COUNT);
        Task::Wishes(state.queue.drain(..count).collect())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
