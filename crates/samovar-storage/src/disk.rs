//! [`Disk`]: notices a disk that completes no write, or no flush.
//!
//! A thread that waits for a disk cannot give up: its system call returns when the disk answers,
//! perhaps never. So a thread that waits for a disk waits as long as the disk hangs. But after
//! [`TIME_MAX`] without a completed operation, no other thread begins to wait.
//!
//! Writes are counted separately from flushes: a write to the page cache completes although the
//! disk hangs. A file system that is frozen, or whose journal is full, completes neither writes nor
//! flushes.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::StorageError;

/// Time without a completed operation after which a disk counts as hanging. A disk that is only
/// slow completes the small ones meanwhile.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(30);

/// The operations of a disk that are in progress.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    flushes: Operations,
    /// Writes, and changes of names.
    writes: Operations,
}

/// The operations of one kind that are in progress.
#[derive(Debug, Default)]
struct Operations(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    running_count: u64,
    /// Time of the last operation that was completed, or began while no other was in progress.
    last: Option<Instant>,
}

impl Disk {
    /// Calls a function that flushes caches of the disk.
    pub(crate) fn flush<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.flushes.run(wait)
    }

    /// Calls a function that writes to a file, or changes names.
    pub(crate) fn write<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.writes.run(wait)
    }

    /// Fails if the disk hangs.
    pub(crate) fn check(&self) -> Result<(), StorageError> {
        let now = Instant::now();
        for (kind, operations) in [("flush", &self.flushes), ("write", &self.writes)] {
            if operations.hang_at(now) {
                return Err(StorageError::DiskHangs(kind, TIME_MAX));
            }
        }
        Ok(())
    }
}

impl Operations {
    fn run<T>(&self, wait: impl FnOnce() -> T) -> T {
        let _running = Running::begin(self);
        wait()
    }

    fn hang_at(&self, now: Instant) -> bool {
        let state = self.state();
        let is_long_ago = |last: Instant| now.saturating_duration_since(last) > TIME_MAX;
        state.running_count > 0 && state.last.is_some_and(is_long_ago)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An operation in progress.
struct Running<'a>(&'a Operations);

impl<'a> Running<'a> {
    fn begin(operations: &'a Operations) -> Self {
        let mut state = operations.state();
        if state.running_count == 0 {
            state.last = Some(Instant::now());
        }
        state.running_count += 1;
        Self(operations)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.running_count -= 1;
        state.last = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_hangs_that_completes_no_operation() {
        let operations = Operations::default();
        let last = || operations.state().last.unwrap();
        let late = TIME_MAX + Duration::from_millis(1);
        operations.run(|| {
            let begun = last();
            assert!(!operations.hang_at(begun + TIME_MAX));
            assert!(operations.hang_at(begun + late));
            // Another one is completed.
            operations.run(|| ());
            assert!(!operations.hang_at(last() + TIME_MAX));
            assert!(operations.hang_at(last() + late));
        });
        assert!(!operations.hang_at(last() + late));
    }
}
