//! The queue of narinfos to prefetch, and the credit that limits it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use samovar_nix::HashPart;

use crate::sync::{Locked, unpoisoned};

/// Queued paths; further ones are dropped. 24 bytes each.
const QUEUE_COUNT_MAX: usize = 16 * 1024;

/// The credit that a prefetched narinfo costs.
const COST: i64 = 8;

/// Credit for a prefetched narinfo that is requested; one hit in four breaks even.
const EARNED: i64 = 4 * COST;

/// Credit for a narinfo rendered for a request: one in eight probes whether prefetch pays again.
const EARNED_COLD: i64 = 1;

/// The limit of credit, and the credit at the start: 1024 narinfos.
const CREDIT_MAX: i64 = 1024 * COST;

/// Paths looked up at once: the database connection is used for less than a millisecond.
pub(crate) const STEP_COUNT: usize = 32;

/// The queue, shared by workers and the prefetcher.
#[derive(Debug)]
pub(crate) struct PrefetchQueue {
    state: Mutex<State>,
    changed: Condvar,
    credit: AtomicI64,
}

impl Default for PrefetchQueue {
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
    /// Paths, and the depth of references to follow from each.
    queue: VecDeque<(HashPart, u8)>,
    /// Whether there is a thread.
    is_served: bool,
    is_stopped: bool,
}

/// The next work of the thread.
pub(crate) enum Task {
    Prefetch(Vec<(HashPart, u8)>),
    Idle,
    Stop,
}

impl PrefetchQueue {
    /// Queues these paths, with references to follow to `depth - 1`, unless the credit is spent.
    pub(crate) fn add(&self, hash_parts: impl Iterator<Item = HashPart>, depth: u8) {
        if depth == 0 || self.credit.load(Ordering::Relaxed) < COST {
            return;
        }
        let mut state = self.state.locked();
        if !state.is_served {
            return;
        }
        let was_empty = state.queue.is_empty();
        let room = QUEUE_COUNT_MAX.saturating_sub(state.queue.len());
        state
            .queue
            .extend(hash_parts.take(room).map(|one| (one, depth)));
        let is_news = was_empty && !state.queue.is_empty();
        drop(state);
        if is_news {
            self.changed.notify_one();
        }
    }

    /// A narinfo had to be rendered for a request.
    pub(crate) fn note_cold(&self) {
        self.earn(EARNED_COLD);
    }

    /// A prefetched narinfo was requested.
    pub(crate) fn note_useful(&self) {
        self.earn(EARNED);
    }

    /// Spends the credit for `count` narinfos.
    pub(crate) fn pay(&self, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.credit
            .fetch_sub(count.saturating_mul(COST), Ordering::Relaxed);
    }

    fn earn(&self, sum: i64) {
        // Two threads at once may exceed the limit by a little.
        if self.credit.load(Ordering::Relaxed) < CREDIT_MAX {
            self.credit.fetch_add(sum, Ordering::Relaxed);
        }
    }

    /// Takes paths from now on: a thread serves the queue.
    pub(crate) fn serve(&self) {
        self.state.locked().is_served = true;
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.state.locked().is_stopped = true;
        self.changed.notify_one();
    }

    /// Waits for work, `patience` at most.
    pub(crate) fn next(&self, patience: Duration) -> Task {
        let state = self.state.locked();
        let waited = self.changed.wait_timeout_while(state, patience, |state| {
            state.queue.is_empty() && !state.is_stopped
        });
        let (mut state, _) = unpoisoned(waited);
        if state.is_stopped {
            return Task::Stop;
        }
        if state.queue.is_empty() {
            return Task::Idle;
        }
        let count = state.queue.len().min(STEP_COUNT);
        Task::Prefetch(state.queue.drain(..count).collect())
    }
}
