//! [`Turns`]: a value that one caller uses at a time.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::StorageError;

/// A value that one caller uses at a time. Callers wait for it with a time limit, which a [`Mutex`]
/// does not support.
#[derive(Debug)]
pub(super) struct Turns<T> {
    value: Mutex<T>,
    is_taken: Mutex<bool>,
    /// Notified when a caller returns the value.
    returned: Condvar,
}

/// The right to use the value. Dropping it returns the value.
#[derive(Debug)]
pub(super) struct Turn<'t, T> {
    // Dropped first: who is notified finds the value free.
    value: MutexGuard<'t, T>,
    _end: End<'t>,
}

#[derive(Debug)]
struct End<'t> {
    is_taken: &'t Mutex<bool>,
    returned: &'t Condvar,
}

impl<T> Turns<T> {
    pub(super) const fn new(value: T) -> Self {
        Self {
            value: Mutex::new(value),
            is_taken: Mutex::new(false),
            returned: Condvar::new(),
        }
    }

    /// Takes the value. Waits at most `patience` for other callers. A caller that has panicked has
    /// returned the value as it was then.
    ///
    /// # Errors
    ///
    /// [`StorageError::Busy`].
    pub(super) fn take(&self, patience: Duration) -> Result<Turn<'_, T>, StorageError> {
        let is_taken = self.is_taken.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut is_taken, _timeout) = self
            .returned
            .wait_timeout_while(is_taken, patience, |is_taken| *is_taken)
            .unwrap_or_else(PoisonError::into_inner);
        if *is_taken {
            return Err(StorageError::Busy);
        }
        *is_taken = true;
        drop(is_taken);
        let end = End {
            is_taken: &self.is_taken,
            returned: &self.returned,
        };
        Ok(Turn {
            value: self.value.lock().unwrap_or_else(PoisonError::into_inner),
            _end: end,
        })
    }
}

impl<T> Deref for Turn<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Turn<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        let is_taken = self.is_taken.lock();
        *is_taken.unwrap_or_else(PoisonError::into_inner) = false;
        self.returned.notify_one();
    }
}
