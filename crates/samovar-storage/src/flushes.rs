//! [`Flushes`]: notices a disk that completes no flush.
//!
//! A thread that waits for a disk cannot give up: the kernel answers it when the disk does, perhaps
//! never. So what waits for a flush waits as long as the disk hangs, but after
//! [`FLUSH_TIME_MAX`] without a completed flush, nothing else begins to wait.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::StorageError;

/// Time without a completed flush after which a disk counts as hanging. A disk that is only slow
/// completes the small ones meanwhile.
pub(crate) const FLUSH_TIME_MAX: Duration = Duration::from_secs(30);

/// The flushes in progress.
#[derive(Debug, Default)]
pub(crate) struct Flushes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    running_count: u64,
    /// Time of the last flush that was completed, or began while no other was in progress.
    last: Option<Instant>,
}

impl Flushes {
    /// Calls a function that waits for the disk.
    pub(crate) fn flush<T>(&self, wait: impl FnOnce() -> T) -> T {
        let _running = Running::begin(self);
        wait()
    }

    /// Fails if the disk hangs.
    pub(crate) fn check(&self) -> Result<(), StorageError> {
        self.check_at(Instant::now())
    }

    fn check_at(&self, now: Instant) -> Result<(), StorageError> {
        let state = self.state();
        let hangs = |last: Instant| now.saturating_duration_since(last) > FLUSH_TIME_MAX;
        match state.running_count > 0 && state.last.is_some_and(hangs) {
            true => Err(StorageError::DiskHangs(FLUSH_TIME_MAX)),
            false => Ok(()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A flush in progress.
struct Running<'a>(&'a Flushes);

impl<'a> Running<'a> {
    fn begin(flushes: &'a Flushes) -> Self {
        let mut state = flushes.state();
        if state.running_count == 0 {
            state.last = Some(Instant::now());
        }
        state.running_count += 1;
        Self(flushes)
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
    fn a_disk_hangs_that_completes_no_flush() {
        let flushes = Flushes::default();
        let last = || flushes.state().last.unwrap();
        let late = FLUSH_TIME_MAX + Duration::from_millis(1);
        flushes.flush(|| {
            let begun = last();
            assert!(flushes.check_at(begun + FLUSH_TIME_MAX).is_ok());
            assert!(flushes.check_at(begun + late).is_err());
            // Another one is completed.
            flushes.flush(|| ());
            assert!(flushes.check_at(last() + FLUSH_TIME_MAX).is_ok());
            assert!(flushes.check_at(last() + late).is_err());
        });
        assert!(flushes.check_at(last() + late).is_ok());
    }
}
