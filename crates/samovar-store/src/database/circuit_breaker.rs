//! A circuit breaker: fails queries at once with a known error, instead of letting each one wait.
//!
//! | condition | effect |
//! | --- | --- |
//! | a query timed out on a lock | queries fail for 100 ms, then one at a time tries the lock |
//! | a query failed | [`CircuitBreaker::down`] reports the error; one caller per 50 ms may retry |
//! | a query has not returned for five seconds | all others fail until it returns |

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::error::{StoreError, Unavailable};

/// Lifetime of a cached failure to open the database. Without it, every query during an outage
/// would open the database again.
pub(super) const FAILURE_LIFE: Duration = Duration::from_millis(50);

/// Time for which other queries fail after one has timed out on a lock.
const BUSY_LIFE: Duration = Duration::from_millis(100);

/// Maximum time that a probe may wait for the lock while other queries fail: the busy timeout plus
/// a margin.
const BUSY_PROBE_LIFE: Duration = Duration::from_millis(600);

/// A query that runs longer than this is waiting for a disk that does not respond.
const STALL_TIME: Duration = Duration::from_secs(5);

/// Queries in progress, and the result of the last one.
#[derive(Debug, Default)]
pub(super) struct CircuitBreaker {
    /// Start times by query number. Numbers ascend, so the first entry is the oldest query.
    running: BTreeMap<u64, Instant>,
    next_number: u64,
    /// Time until which queries fail at once, because the database was locked. `None` if the last
    /// query got the lock.
    busy_until: Option<Instant>,
    /// Number of the query that probes the lock.
    probe: u64,
    /// Time at which a query last got the lock; `None` before the first.
    passed_at: Option<Instant>,
    failed: Option<(StoreError, Instant)>,
}

impl CircuitBreaker {
    /// Admits a query and returns its number, or returns the error with which the query fails at
    /// once.
    pub(super) fn begin(&mut self, now: Instant) -> Result<u64, StoreError> {
        if self.is_stalled(now) {
            return Err(StoreError::Unavailable(Unavailable::Stalled));
        }
        match self.busy_until {
            Some(until) if now < until => return Err(StoreError::Busy),
            Some(_) => {
                self.busy_until = Some(now + BUSY_PROBE_LIFE);
                self.probe = self.next_number + 1;
            }
            None => {}
        }
        self.next_number += 1;
        self.running.insert(self.next_number, now);
        Ok(self.next_number)
    }

    pub(super) fn end(&mut self, number: u64, error: Option<StoreError>, now: Instant) {
        let began = self.running.remove(&number);
        let is_busy = error == Some(StoreError::Busy);
        if is_busy && began <= self.passed_at {
            // Another query has taken the lock since this one began, so this timeout is outdated.
            return;
        }
        self.busy_until = is_busy.then(|| now + BUSY_LIFE);
        if !is_busy {
            self.passed_at = Some(now);
        }
        self.failed = error
            .filter(|error| !error.is_about_one_path())
            .map(|error| (error, now + FAILURE_LIFE));
    }

    /// Ends a query that says nothing about the database.
    pub(super) fn withdraw(&mut self, number: u64, now: Instant) {
        self.running.remove(&number);
        if self.probe == number && self.busy_until.is_some() {
            self.busy_until = Some(now);
        }
    }

    pub(super) fn down(&mut self, now: Instant) -> Option<StoreError> {
        if self.is_stalled(now) {
            return Some(StoreError::Unavailable(Unavailable::Stalled));
        }
        if let Some(until) = self.busy_until {
            return (now < until).then_some(StoreError::Busy);
        }
        let (error, until) = self.failed.as_mut()?;
        if now < *until {
            return Some(*error);
        }
        *until = now + FAILURE_LIFE;
        None
    }

    pub(super) fn is_busy(&self, now: Instant) -> bool {
        self.busy_until.is_some_and(|until| now < until)
    }

    fn is_stalled(&self, now: Instant) -> bool {
        self.running
            .first_key_value()
            .is_some_and(|(_, began)| now.saturating_duration_since(*began) > STALL_TIME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_query_at_a_time_waits_for_a_lock() {
        let (mut breaker, start) = (CircuitBreaker::default(), Instant::now());
        let first = breaker.begin(start).unwrap();
        let second = breaker.begin(start).unwrap();
        breaker.end(first, Some(StoreError::Busy), start);
        assert_eq!(breaker.down(start), Some(StoreError::Busy));
        assert_eq!(breaker.begin(start), Err(StoreError::Busy));
        let later = start + BUSY_LIFE;
        assert_eq!(breaker.down(later), None);
        let probe = breaker.begin(later).unwrap();
        assert_eq!(breaker.down(later), Some(StoreError::Busy));
        assert_eq!(breaker.begin(later), Err(StoreError::Busy));
        breaker.withdraw(probe, later);
        let probe = breaker.begin(later).unwrap();
        assert_eq!(breaker.begin(later), Err(StoreError::Busy));
        breaker.end(probe, None, later);
        assert_eq!(breaker.down(later), None);
        breaker.end(second, None, later);
        assert!(breaker.running.is_empty());
    }

    /// A timeout is ignored if another query has taken the lock in the meantime.
    #[test]
    fn an_outdated_timeout_is_ignored() {
        let (mut breaker, start) = (CircuitBreaker::default(), Instant::now());
        let late = breaker.begin(start).unwrap();
        let answered = breaker.begin(start).unwrap();
        breaker.end(answered, None, start);
        breaker.end(late, Some(StoreError::Busy), start);
        assert_eq!(breaker.down(start), None);
        let later = start + Duration::from_nanos(1);
        let new = breaker.begin(later).unwrap();
        breaker.end(new, Some(StoreError::Busy), later);
        assert_eq!(breaker.down(later), Some(StoreError::Busy));
    }

    #[test]
    fn one_query_at_a_time_retries_after_a_failure() {
        let (mut breaker, start) = (CircuitBreaker::default(), Instant::now());
        let error = StoreError::Unavailable(Unavailable::DatabaseMissing);
        let number = breaker.begin(start).unwrap();
        breaker.end(number, Some(error), start);
        assert_eq!(breaker.down(start), Some(error));
        let later = start + FAILURE_LIFE;
        assert_eq!(breaker.down(later), None);
        assert_eq!(breaker.down(later), Some(error));
        let number = breaker.begin(later).unwrap();
        breaker.end(number, None, later);
        assert_eq!(breaker.down(later), None);
    }

    #[test]
    fn a_query_without_an_answer_fails_all_others() {
        let (mut breaker, start) = (CircuitBreaker::default(), Instant::now());
        let old = breaker.begin(start).unwrap();
        let late = start + STALL_TIME + Duration::from_millis(1);
        let stalled = StoreError::Unavailable(Unavailable::Stalled);
        assert!(breaker.begin(start + STALL_TIME).is_ok());
        assert_eq!(breaker.down(late), Some(stalled));
        assert_eq!(breaker.begin(late), Err(stalled));
        breaker.end(old, None, late);
        assert_eq!(breaker.down(late), None);
        assert!(breaker.begin(late).is_ok());
    }
}
