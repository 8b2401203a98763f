//! Counts of requests to the engine.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::error::BucketError;
use crate::operation::Operation;

/// What one [`crate::Bucket`] has done since it was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// By operation, in the order of [`Operation::ALL`].
    pub operations: [OperationStatistics; Operation::COUNT],
    /// Why the last request was not answered, in one line; `None` if it was.
    pub down: Option<String>,
    /// Number of requests that were sent again.
    pub retry_count: u64,
    /// Number of answers by which the engine asked for fewer requests (`503 SlowDown`).
    pub slow_down_count: u64,
    /// Number of downloads that went on after their connection was lost.
    pub resumed_count: u64,
    /// Bytes of bodies that were sent in requests that succeeded.
    pub sent_len: u64,
    /// Bytes of objects that were received.
    pub received_len: u64,
    /// Number of requests in flight now.
    pub in_flight: u32,
    /// Number of requests that may be in flight now.
    pub in_flight_max: u32,
}

/// What happened to the requests of one operation. Attempts do not count, but their time does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperationStatistics {
    /// Number of requests that succeeded, or found that an object is absent.
    pub answered_count: u64,
    /// Number of requests that were refused, or failed after all attempts.
    pub failed_count: u64,
    /// Time of all of them, from the first attempt to the head of the answer.
    pub total: Duration,
}

/// The counters behind [`Statistics`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    operations: [OfOperation; Operation::COUNT],
    /// Why the last request was not answered.
    down: Mutex<Option<String>>,
    /// Whether it was not, so that answers need not look.
    is_down: AtomicBool,
    pub(crate) retries: AtomicU64,
    pub(crate) slow_downs: AtomicU64,
    pub(crate) resumed: AtomicU64,
    pub(crate) sent_len: AtomicU64,
    pub(crate) received_len: AtomicU64,
}

#[derive(Debug, Default)]
struct OfOperation {
    answered: AtomicU64,
    failed: AtomicU64,
    time_us: AtomicU64,
}

impl Counters {
    /// Counts a request with all its attempts.
    pub(crate) fn count<T>(
        &self,
        operation: Operation,
        came: &Result<T, BucketError>,
        time: Duration,
    ) {
        let it = &self.operations[operation.index()];
        let is_answer = came.as_ref().err().is_none_or(BucketError::is_absent);
        let counter = if is_answer { &it.answered } else { &it.failed };
        add(counter, 1);
        add(
            &it.time_us,
            u64::try_from(time.as_micros()).unwrap_or(u64::MAX),
        );
        let why = came.as_ref().err().filter(|error| error.is_transient());
        if why.is_some() || self.is_down.load(Ordering::Relaxed) {
            self.is_down.store(why.is_some(), Ordering::Relaxed);
            // A text is right, even if a thread panicked.
            let mut down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
            *down = why.map(BucketError::with_causes);
        }
    }

    /// Returns the counts. `in_flight` and `in_flight_max` are those of the limit.
    pub(crate) fn statistics(&self, (in_flight, in_flight_max): (u32, u32)) -> Statistics {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let of = |it: &OfOperation| OperationStatistics {
            answered_count: value(&it.answered),
            failed_count: value(&it.failed),
            total: Duration::from_micros(value(&it.time_us)),
        };
        Statistics {
            operations: self.operations.each_ref().map(of),
            down: self
                .down
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
            retry_count: value(&self.retries),
            slow_down_count: value(&self.slow_downs),
            resumed_count: value(&self.resumed),
            sent_len: value(&self.sent_len),
            received_len: value(&self.received_len),
            in_flight,
            in_flight_max,
        }
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}
