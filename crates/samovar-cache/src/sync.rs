//! Locking without poisoning, for data that is consistent even if a holder of the lock panicked.

use std::sync::{LockResult, Mutex, MutexGuard, PoisonError};

/// [`Mutex::lock`], whether the mutex is poisoned or not.
pub(crate) trait Locked<T> {
    fn locked(&self) -> MutexGuard<'_, T>;
}

impl<T> Locked<T> for Mutex<T> {
    fn locked(&self) -> MutexGuard<'_, T> {
        unpoisoned(self.lock())
    }
}

/// The guard of a lock or of a wait, whether it is poisoned or not.
pub(crate) fn unpoisoned<G>(result: LockResult<G>) -> G {
    result.unwrap_or_else(PoisonError::into_inner)
}
