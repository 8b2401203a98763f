//! [`Counters`]: connections and transactions since the start of the process.
//!
//! A transaction is counted once, however often it was attempted. The statements by which nodes
//! follow each other are none.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::StorageError;

/// Connections and transactions of a process since its start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DatabaseStatistics {
    /// Where the database is, without secrets.
    pub place: String,
    /// Why the last statement, or the last connection, was not answered; `None` if it was.
    pub down: Option<String>,
    /// Transactions that only read.
    pub reads: TransactionStatistics,
    /// Transactions that write.
    pub writes: TransactionStatistics,
    /// Commits that have waited until all nodes had confirmed them.
    pub confirmations: TransactionStatistics,
    /// Number of open connections.
    pub connection_count: u64,
    /// Number of connections that were made.
    pub connect_count: u64,
}

/// Transactions of one kind since the start of the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TransactionStatistics {
    /// Number of transactions that were committed.
    pub committed_count: u64,
    /// Number of transactions that have failed or were undone.
    pub failed_count: u64,
    /// Total time of all transactions without their waits.
    pub total: Duration,
    /// Total time of waits for a connection, for the server, and for the turn to write.
    pub wait: Duration,
}

/// The counters of a database.
#[derive(Debug, Default)]
pub(super) struct Counters {
    down: Mutex<Option<String>>,
    pub(super) reads: Transactions,
    pub(super) writes: Transactions,
    pub(super) confirmations: Transactions,
    connection_count: AtomicU64,
    connect_count: AtomicU64,
}

impl Counters {
    /// Counts a connection that was made.
    pub(super) fn connected(&self) {
        self.connection_count.fetch_add(1, Ordering::Relaxed);
        self.connect_count.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection that has ended.
    pub(super) fn disconnected(&self) {
        self.connection_count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Notes that the server has answered.
    pub(super) fn answered(&self) {
        *self.down() = None;
    }

    /// Notes that the server cannot be used.
    pub(super) fn failed(&self, error: &StorageError) {
        let reason = match error {
            StorageError::Unavailable(reason) => reason.clone(),
            error => error.to_string(),
        };
        *self.down() = Some(reason);
    }

    /// Returns the present values. `place`: where the database is, without secrets.
    pub(super) fn get(&self, place: String) -> DatabaseStatistics {
        DatabaseStatistics {
            place,
            down: self.down().clone(),
            reads: self.reads.get(),
            writes: self.writes.get(),
            confirmations: self.confirmations.get(),
            connection_count: self.connection_count.load(Ordering::Relaxed),
            connect_count: self.connect_count.load(Ordering::Relaxed),
        }
    }

    fn down(&self) -> MutexGuard<'_, Option<String>> {
        self.down.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The counters of transactions of one kind. Times are in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Transactions {
    committed_count: AtomicU64,
    failed_count: AtomicU64,
    total: AtomicU64,
    wait: AtomicU64,
}

impl Transactions {
    /// Runs a transaction, with all its attempts, and counts it. `transaction` measures the time in
    /// which it does not wait.
    pub(super) fn count<T>(
        &self,
        transaction: impl FnOnce(&Work) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let (started, work) = (Instant::now(), Work::default());
        let outcome = transaction(&work);
        let (elapsed, total) = (started.elapsed(), work.0.get());
        let count = match outcome {
            Ok(_) => &self.committed_count,
            Err(_) => &self.failed_count,
        };
        count.fetch_add(1, Ordering::Relaxed);
        add(&self.total, total);
        add(&self.wait, elapsed.saturating_sub(total));
        outcome
    }

    fn get(&self) -> TransactionStatistics {
        let time = |counter: &AtomicU64| Duration::from_nanos(counter.load(Ordering::Relaxed));
        TransactionStatistics {
            committed_count: self.committed_count.load(Ordering::Relaxed),
            failed_count: self.failed_count.load(Ordering::Relaxed),
            total: time(&self.total),
            wait: time(&self.wait),
        }
    }
}

/// The time in which a transaction does not wait.
#[derive(Debug, Default)]
pub(super) struct Work(Cell<Duration>);

impl Work {
    /// Calls a function that does not wait, and adds its time.
    pub(super) fn measure<T>(&self, work: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let value = work();
        self.0.set(self.0.get() + started.elapsed());
        value
    }
}

fn add(counter: &AtomicU64, time: Duration) {
    let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    counter.fetch_add(ns, Ordering::Relaxed);
}
