//! The number of requests in flight.
//!
//! It begins at its maximum, is halved when the engine asks for less (`503 SlowDown`), and grows by
//! one for each number of requests that succeed in a row: the rule by which TCP shares a line. Of
//! the requests that were in flight when the limit was halved, the others that are refused do not
//! halve it again, for they were sent under the old one.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of requests in flight.
pub(crate) const IN_FLIGHT_MAX: u32 = 64;

#[derive(Debug)]
pub(crate) struct Limit {
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug)]
struct State {
    limit: u32,
    in_flight: u32,
    /// Number of requests that succeeded since the limit was changed.
    succeeded: u32,
    /// How often the limit was halved.
    halved: u64,
}

/// The place of a request in flight, until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    limit: Arc<Limit>,
    halved: u64,
}

impl Limit {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                limit: IN_FLIGHT_MAX,
                in_flight: 0,
                succeeded: 0,
                halved: 0,
            }),
            freed: Condvar::new(),
        }
    }

    /// Waits for a place, `patience` at most.
    pub(crate) fn acquire(self: &Arc<Self>, patience: Duration) -> Option<Permit> {
        let until = Instant::now() + patience;
        let mut state = self.lock();
        while state.in_flight >= state.limit {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.freed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.in_flight += 1;
        Some(Permit {
            limit: Arc::clone(self),
            halved: state.halved,
        })
    }

    // No code panics while it holds the lock, and the numbers stay right if some did.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of requests in flight, and its limit.
    pub(crate) fn numbers(&self) -> (u32, u32) {
        let state = self.lock();
        (state.in_flight, state.limit)
    }
}

impl Permit {
    /// Records that the engine has answered the request.
    pub(crate) fn succeeded(&self) {
        let mut state = self.limit.lock();
        state.succeeded += 1;
        if state.succeeded >= state.limit && state.limit < IN_FLIGHT_MAX {
            state.limit += 1;
            state.succeeded = 0;
            drop(state);
            self.limit.freed.notify_one();
        }
    }

    /// Records that the engine has asked for fewer requests.
    pub(crate) fn refused(&self) {
        let mut state = self.limit.lock();
        state.succeeded = 0;
        if state.halved == self.halved {
            state.limit = (state.limit / 2).max(1);
            state.halved += 1;
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limit.lock().in_flight -= 1;
        self.limit.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(limit: &Arc<Limit>, count: u32) -> Vec<Permit> {
        (0..count)
            .map(|_| limit.acquire(Duration::ZERO).unwrap())
            .collect()
    }

    #[test]
    fn no_more_than_the_limit_are_in_flight() {
        let limit = Arc::new(Limit::new());
        let mut held = permits(&limit, IN_FLIGHT_MAX);
        assert!(limit.acquire(Duration::from_millis(1)).is_none());
        held.pop();
        assert!(limit.acquire(Duration::ZERO).is_some());
    }

    #[test]
    fn a_refusal_halves_the_limit_once_for_all_in_flight() {
        let limit = Arc::new(Limit::new());
        for permit in permits(&limit, 8) {
            permit.refused();
        }
        assert_eq!(limit.numbers().1, IN_FLIGHT_MAX / 2);
        for _ in 0..10 {
            permits(&limit, 1)[0].refused();
        }
        assert_eq!(limit.numbers().1, 1);
    }

    #[test]
    fn successes_raise_the_limit_up_to_its_maximum() {
        let limit = Arc::new(Limit::new());
        permits(&limit, 1)[0].refused();
        for _ in 0..IN_FLIGHT_MAX / 2 {
            permits(&limit, 1)[0].succeeded();
        }
        assert_eq!(limit.numbers().1, IN_FLIGHT_MAX / 2 + 1);
        for _ in 0..10_000 {
            permits(&limit, 1)[0].succeeded();
        }
        assert_eq!(limit.numbers().1, IN_FLIGHT_MAX);
    }

    #[test]
    fn whoever_waits_gets_a_place_that_is_freed() {
        let limit = Arc::new(Limit::new());
        let held = permits(&limit, IN_FLIGHT_MAX);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| limit.acquire(Duration::from_secs(60)).is_some());
            drop(held);
            assert!(waiting.join().unwrap());
        });
    }
}
