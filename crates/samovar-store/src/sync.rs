//! Locking without poisoning.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// [`Mutex::lock`] for data that is consistent even if a holder of the lock panicked.
pub(crate) trait Locked<T> {
    /// Locks the mutex, whether or not it is poisoned.
    fn locked(&self) -> MutexGuard<'_, T>;
}

impl<T> Locked<T> for Mutex<T> {
    fn locked(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
