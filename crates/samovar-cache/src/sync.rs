//! Locking without poisoning, for data that is consistent even if a holder of the lock panicked;
//! and threads with a low priority.

use std::io;
use std::sync::{LockResult, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use crate::sys;

/// Locks a mutex as [`Mutex::lock`] does, even if it is poisoned.
pub(crate) trait Locked<T> {
    fn locked(&self) -> MutexGuard<'_, T>;
}

impl<T> Locked<T> for Mutex<T> {
    fn locked(&self) -> MutexGuard<'_, T> {
        unpoisoned(self.lock())
    }
}

/// Returns the guard from the result of a lock or a wait, even if the lock is poisoned.
pub(crate) fn unpoisoned<G>(result: LockResult<G>) -> G {
    result.unwrap_or_else(PoisonError::into_inner)
}

/// A thread with a low priority. Dropping this value waits for the thread, so the thread must have
/// been told to end before.
#[derive(Debug)]
pub(crate) struct LowPriority(Option<JoinHandle<()>>);

impl LowPriority {
    /// Starts a thread. `niceness` is 0 for the normal priority, 19 for the lowest.
    pub(crate) fn start(
        name: &str,
        niceness: i32,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let thread = Builder::new().name(name.to_owned()).spawn(move || {
            sys::be_nice(niceness);
            work();
        })?;
        Ok(Self(Some(thread)))
    }

    /// Prevents the thread from being joined, because it may be waiting for a disk.
    pub(crate) fn detach(&mut self) {
        drop(self.0.take());
    }
}

impl Drop for LowPriority {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // The panic hook has reported a panic of the thread, so ignore the result.
            let _ended = thread.join();
        }
    }
}
