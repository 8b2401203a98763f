//! Yields the processor after each large batch of responses.
//!
//! An I/O thread that always finds more requests runs for its whole time slice of some
//! milliseconds, while clients and other I/O threads on the same core wait. The slowest responses
//! then take several slices. Yielding lets the others go first, and costs nothing if there are
//! none.
//!
//! A program that computes would use its whole slice after each yield, and slow the server down. So
//! the thread does not yield for a while after a yield that took long.

use std::thread;
use std::time::{Duration, Instant};

/// Minimum number of events in a large batch. With fewer, the thread soon waits for events anyway.
const EVENT_COUNT_MIN: usize = 8;

/// Maximum duration of a yield to threads that wait for each other, such as clients.
const YIELD_MAX: Duration = Duration::from_millis(2);

/// Time without yields after one that took longer than [`YIELD_MAX`].
const PAUSE: Duration = Duration::from_millis(10);

/// Decides when an I/O thread yields the processor.
#[derive(Debug, Default)]
pub(super) struct YieldPolicy {
    /// Time until which the thread does not yield; `None` if the last yield was short.
    paused_until: Option<Instant>,
}

impl YieldPolicy {
    /// Yields the processor if the batch had many events.
    pub(super) fn yield_after(&mut self, event_count: usize) {
        self.yield_with(event_count, Instant::now, thread::yield_now);
    }

    fn yield_with(
        &mut self,
        event_count: usize,
        now: impl Fn() -> Instant,
        yield_now: impl FnOnce(),
    ) {
        if event_count < EVENT_COUNT_MIN {
            return;
        }
        let before = now();
        if self.paused_until.is_some_and(|until| before < until) {
            return;
        }
        yield_now();
        let after = now();
        self.paused_until = (after - before > YIELD_MAX).then(|| after + PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn only_large_batches_yield_and_a_long_yield_is_followed_by_a_pause() {
        let now = Cell::new(Instant::now());
        let mut policy = YieldPolicy::default();
        let mut yields = |event_count, duration| {
            let count = Cell::new(0);
            policy.yield_with(
                event_count,
                || now.get(),
                || {
                    count.set(1);
                    now.set(now.get() + duration);
                },
            );
            count.get() == 1
        };
        let nanosecond = Duration::from_nanos(1);
        assert!(!yields(EVENT_COUNT_MIN - 1, YIELD_MAX));
        assert!(yields(EVENT_COUNT_MIN, YIELD_MAX));
        assert!(yields(EVENT_COUNT_MIN, YIELD_MAX + nanosecond));
        now.set(now.get() + PAUSE - nanosecond);
        assert!(!yields(EVENT_COUNT_MIN, YIELD_MAX));
        now.set(now.get() + nanosecond);
        assert!(yields(EVENT_COUNT_MIN, YIELD_MAX));
        assert!(yields(EVENT_COUNT_MIN, YIELD_MAX));
    }
}
