//! Locking without poisoning.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Adds to [`Mutex`] a method that locks and ignores poisoning. For data that is consistent even if
/// a thread has panicked while it held the lock.
pub(crate) trait Locked<T> {
    /// Locks the mutex, whether or not it is poisoned.
    fn locked(&self) -> MutexGuard<'_, T>;
}

impl<T> Locked<T> for Mutex<T> {
    fn locked(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
