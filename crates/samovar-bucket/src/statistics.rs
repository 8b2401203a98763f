//! Counts of requests to the engine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::operation::Operation;

/// What one [`crate::Bucket`] has done since it was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// By operation, in the order of [`Operation::ALL`].
    pub operations: [OperationStatistics; Operation::COUNT],
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

/// What happened to the requests of one operation. Each attempt counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperationStatistics {
    /// Number of requests that succeeded, or found that an object is absent.
    pub succeeded: u64,
    /// Number of requests that failed or were refused.
    pub failed: u64,
    /// Time from the start of all of them to the heads of their answers.
    pub time: Duration,
}

/// The counters behind [`Statistics`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    operations: [OfOperation; Operation::COUNT],
    pub(crate) slow_downs: AtomicU64,
    pub(crate) resumed: AtomicU64,
    pub(crate) sent_len: AtomicU64,
    pub(crate) received_len: AtomicU64,
}

#[derive(Debug, Default)]
struct OfOperation {
    succeeded: AtomicU64,
    failed: AtomicU64,
    time_us: AtomicU64,
}

impl Counters {
    /// Counts a request and its answer.
    pub(crate) fn count(&self, operation: Operation, has_succeeded: bool, time: Duration) {
        let it = &self.operations[operation.index()];
        let counter = if has_succeeded {
            &it.succeeded
        } else {
            &it.failed
        };
        add(counter, 1);
        add(
            &it.time_us,
            u64::try_from(time.as_micros()).unwrap_or(u64::MAX),
        );
    }

    /// Returns the counts. `in_flight` and `in_flight_max` are those of the limit.
    pub(crate) fn statistics(&self, (in_flight, in_flight_max): (u32, u32)) -> Statistics {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let of = |it: &OfOperation| OperationStatistics {
            succeeded: value(&it.succeeded),
            failed: value(&it.failed),
            time: Duration::from_micros(value(&it.time_us)),
        };
        Statistics {
            operations: self.operations.each_ref().map(of),
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
