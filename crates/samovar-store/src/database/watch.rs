//! How questions fare, so that those who come later need not wait for what is known.
//!
//! | what is known | until when nobody else asks |
//! | --- | --- |
//! | somebody waited for a lock in vain | 100 ms later, then one question at a time |
//! | somebody's question failed | 50 ms later, then one every 50 ms: for those who look first |
//! | a question has had no answer for five seconds | it has one |

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::FAILURE_LIFE;
use crate::error::{StoreError, Unavailable};

/// How long a question that waited for a lock in vain speaks for the others.
const BUSY_LIFE: Duration = Duration::from_millis(100);

/// How long the others leave it to one question to wait for the lock once more: its timeout and
/// some time to say so.
const BUSY_PROBE_LIFE: Duration = Duration::from_millis(600);

/// A question that takes longer waits for a disk that does not answer.
const STALL_TIME: Duration = Duration::from_secs(5);

/// Questions under way, and how the last one ended.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// When each began, by rising number: the first is the oldest.
    running: BTreeMap<u64, Instant>,
    next_number: u64,
    /// `None`: the last question that could have waited for a lock got its answer.
    busy_until: Option<Instant>,
    /// The question that waits for the lock in place of the others.
    probe: u64,
    /// When a question that could have waited for a lock last got past it.
    passed_at: Option<Instant>,
    failed: Option<(StoreError, Instant)>,
}

impl Watch {
    /// A question begins, unless it is known how it would end.
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
            // The lock it waited for may be no more: somebody has got past it.
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

    /// A question ended without being put to the database: nothing new is known.
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
    fn one_at_a_time_waits_for_a_lock() {
        let (mut watch, start) = (Watch::default(), Instant::now());
        let first = watch.begin(start).unwrap();
        let second = watch.begin(start).unwrap();
        watch.end(first, Some(StoreError::Busy), start);
        assert_eq!(watch.down(start), Some(StoreError::Busy));
        assert_eq!(watch.begin(start), Err(StoreError::Busy));
        let later = start + BUSY_LIFE;
        assert_eq!(watch.down(later), None);
        let probe = watch.begin(later).unwrap();
        assert_eq!(watch.down(later), Some(StoreError::Busy));
        assert_eq!(watch.begin(later), Err(StoreError::Busy));
        watch.withdraw(probe, later);
        let probe = watch.begin(later).unwrap();
        assert_eq!(watch.begin(later), Err(StoreError::Busy));
        watch.end(probe, None, later);
        assert_eq!(watch.down(later), None);
        watch.end(second, None, later);
        assert!(watch.running.is_empty());
    }

    /// A thread that was kept from running tells of a lock that is no more.
    #[test]
    fn old_news_of_a_lock_hold_up_nobody() {
        let (mut watch, start) = (Watch::default(), Instant::now());
        let late = watch.begin(start).unwrap();
        let answered = watch.begin(start).unwrap();
        watch.end(answered, None, start);
        watch.end(late, Some(StoreError::Busy), start);
        assert_eq!(watch.down(start), None);
        let later = start + Duration::from_nanos(1);
        let new = watch.begin(later).unwrap();
        watch.end(new, Some(StoreError::Busy), later);
        assert_eq!(watch.down(later), Some(StoreError::Busy));
    }

    #[test]
    fn one_at_a_time_tries_again() {
        let (mut watch, start) = (Watch::default(), Instant::now());
        let error = StoreError::Unavailable(Unavailable::DatabaseMissing);
        let number = watch.begin(start).unwrap();
        watch.end(number, Some(error), start);
        assert_eq!(watch.down(start), Some(error));
        let later = start + FAILURE_LIFE;
        assert_eq!(watch.down(later), None);
        assert_eq!(watch.down(later), Some(error));
        let number = watch.begin(later).unwrap();
        watch.end(number, None, later);
        assert_eq!(watch.down(later), None);
    }

    #[test]
    fn the_oldest_question_tells() {
        let (mut watch, start) = (Watch::default(), Instant::now());
        let old = watch.begin(start).unwrap();
        let late = start + STALL_TIME + Duration::from_millis(1);
        let stalled = StoreError::Unavailable(Unavailable::Stalled);
        assert!(watch.begin(start + STALL_TIME).is_ok());
        assert_eq!(watch.down(late), Some(stalled));
        assert_eq!(watch.begin(late), Err(stalled));
        watch.end(old, None, late);
        assert_eq!(watch.down(late), None);
        assert!(watch.begin(late).is_ok());
    }
}
