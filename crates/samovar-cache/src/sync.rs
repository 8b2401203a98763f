//! Locking without poisoning, for data that is consistent even if a holder of the lock panicked.

use std::sync::{LockResult, Mutex, MutexGuard, PoisonError};

/// Locks a mutex as [`Mutex::lock`] does, even if it is poisoned.
pub(crate) trait Locked<T> {
    fn locked(&self) -> MutexGuard<'_, T>;
}

impl<T> Locked<T> for Mutex<T> {
    fn locked(&self) -> MutexGuard<'_, T> {
        unpoisoned(self.lock())
    }
}

/// Returns the guard of a lock or a wait, even if the lock is poisoned.
pub(crate) fn unpoisoned<G>(result: LockResult<G>) -> G {
    result.unwrap_or_else(PoisonError::into_inner)
}
