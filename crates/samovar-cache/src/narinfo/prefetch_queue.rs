//! The queue of narinfos to prefetch, and the credit that limits it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use samovar_nix::HashPart;

use crate::sync::{Locked, unpoisoned};

/// Maximum number of queued paths, at 24 bytes each; further paths are dropped.
const QUEUE_COUNT_MAX: usize = 16 * 1024;

/// Credit spent on prefetching one narinfo.
const COST: i64 = 8;

/// Credit earned when a prefetched narinfo is requested: one hit in four breaks even.
const EARNED: i64 = 4 * COST;

/// Credit earned when a narinfo must be rendered for a request. Eight of these pay for one
/// prefetch, which tests whether prefetching pays again.
const EARNED_COLD: i64 = 1;

/// The maximum credit, which is also the initial one: enough for 1024 narinfos.
const CREDIT_MAX: i64 = 1024 * COST;

/// Number of paths looked up at once, so that the database connection is in use for less than a
/// millisecond.
pub(crate) const STEP_COUNT: usize = 32;

/// The prefetch queue of one cache, shared by the workers and the prefetcher.
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
    /// Paths to prefetch, each with the depth to which its references are followed.
    queue: VecDeque<(HashPart, u8)>,
    /// Whether a prefetch thread serves the queue. If not, paths are not queued.
    is_served: bool,
    is_stopped: bool,
}

/// What the prefetch thread does next.
pub(crate) enum Task {
    Prefetch(Vec<(HashPart, u8)>),
    Idle,
    Stop,
}

impl PrefetchQueue {
    /// Queues paths and, to a depth of `depth - 1`, their references, unless the credit is spent.
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
        let must_wake = was_empty && !state.queue.is_empty();
        drop(state);
        if must_wake {
            self.changed.notify_one();
        }
    }

    /// Records that a narinfo had to be rendered for a request.
    pub(crate) fn note_cold(&self) {
        self.earn(EARNED_COLD);
    }

    /// Records that a prefetched narinfo was requested.
    pub(crate) fn note_useful(&self) {
        self.earn(EARNED);
    }

    /// Spends the credit for prefetching `count` narinfos.
    pub(crate) fn pay(&self, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.credit
            .fetch_sub(count.saturating_mul(COST), Ordering::Relaxed);
    }

    fn earn(&self, sum: i64) {
        // Two threads at the same time may exceed the limit slightly.
        if self.credit.load(Ordering::Relaxed) < CREDIT_MAX {
            self.credit.fetch_add(sum, Ordering::Relaxed);
        }
    }

    /// Accepts paths from now on, because a thread serves the queue.
    pub(crate) fn serve(&self) {
        self.state.locked().is_served = true;
    }

    /// Tells the prefetch thread to end.
    pub(crate) fn stop(&self) {
        self.state.locked().is_stopped = true;
        self.changed.notify_one();
    }

    /// Waits for the next task, for at most `patience`.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn hash_parts(count: usize) -> impl Iterator<Item = HashPart> {
        (0..count).map(|number| {
            let mut bytes = [0; 20];
            bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
            HashPart::from_bytes(bytes)
        })
    }

    fn served() -> PrefetchQueue {
        let queue = PrefetchQueue::default();
        queue.serve();
        queue
    }

    /// Takes the next step of work without waiting; empty if there is none.
    fn step(queue: &PrefetchQueue) -> Vec<(HashPart, u8)> {
        match queue.next(Duration::ZERO) {
            Task::Prefetch(step) => step,
            Task::Idle => Vec::new(),
            Task::Stop => panic!("stopped"),
        }
    }

    fn drain(queue: &PrefetchQueue) -> Vec<(HashPart, u8)> {
        let steps = std::iter::from_fn(|| Some(step(queue)));
        steps
            .take_while(|step| !step.is_empty())
            .flatten()
            .collect()
    }

    /// Whether a path would be queued.
    fn has_credit(queue: &PrefetchQueue) -> bool {
        queue.add(hash_parts(1), 1);
        drain(queue).len() == 1
    }

    #[test]
    fn nothing_is_queued_without_a_thread_or_without_depth() {
        let queue = PrefetchQueue::default();
        queue.add(hash_parts(1), 1);
        queue.serve();
        queue.add(hash_parts(1), 0);
        assert!(matches!(queue.next(Duration::ZERO), Task::Idle));
    }

    #[test]
    fn paths_leave_in_order_with_their_depth_and_in_steps() {
        let queue = served();
        queue.add(hash_parts(STEP_COUNT), 2);
        queue.add(hash_parts(1), 1);
        let first = step(&queue);
        assert!(
            first
                .iter()
                .copied()
                .eq(hash_parts(STEP_COUNT).map(|one| (one, 2)))
        );
        assert!(
            step(&queue)
                .into_iter()
                .eq(hash_parts(1).map(|one| (one, 1)))
        );
        assert!(step(&queue).is_empty());
    }

    #[test]
    fn a_full_queue_drops_further_paths_and_takes_paths_again_after_a_step() {
        let queue = served();
        queue.add(hash_parts(QUEUE_COUNT_MAX - 1), 1);
        queue.add(hash_parts(2), 2);
        queue.add(hash_parts(1), 3);
        assert_eq!(step(&queue).len(), STEP_COUNT);
        queue.add(hash_parts(STEP_COUNT + 1), 4);
        let rest = drain(&queue);
        let count = |depth| rest.iter().filter(|one| one.1 == depth).count();
        assert_eq!([count(2), count(3), count(4)], [1, 0, STEP_COUNT]);
        assert_eq!(rest.len(), QUEUE_COUNT_MAX);
    }

    #[test]
    fn the_first_credit_is_for_1024_narinfos_and_is_also_the_limit() {
        let queue = served();
        for _ in 0..100 {
            queue.note_useful();
        }
        queue.pay(1023);
        assert!(has_credit(&queue));
        queue.pay(1);
        assert!(!has_credit(&queue));
    }

    #[test]
    fn a_requested_narinfo_earns_four_and_eight_rendered_ones_earn_one() {
        let queue = served();
        queue.pay(1024);
        queue.note_useful();
        queue.pay(3);
        assert!(has_credit(&queue));
        queue.pay(1);
        for _ in 0..7 {
            queue.note_cold();
            assert!(!has_credit(&queue));
        }
        queue.note_cold();
        assert!(has_credit(&queue));
    }

    #[test]
    fn a_stopped_queue_ends_its_thread_with_work_left() {
        let queue = served();
        queue.add(hash_parts(1), 1);
        queue.stop();
        assert!(matches!(queue.next(Duration::MAX), Task::Stop));
    }
}
