//! [`Removal`]: the objects that a transaction of the database removes.

use crate::error::StorageError;

/// Receives the keys of the objects that a transaction removes.
pub(crate) trait Removal {
    /// Begins the transaction, perhaps again: forgets the keys that an attempt has named which was
    /// undone.
    fn begin(&mut self) {}

    /// Removes an object, at once or after the transaction.
    fn remove(&mut self, key: &str) -> Result<(), StorageError>;

    /// Removes the named objects now, before the transaction is committed, while other writers
    /// wait. It is needed if an upload may write an object of the same key as soon as it is
    /// committed.
    fn finish(&mut self) -> Result<(), StorageError> {
        Ok(())
    }
}

impl<F: FnMut(&str) -> Result<(), StorageError>> Removal for F {
    fn remove(&mut self, key: &str) -> Result<(), StorageError> {
        self(key)
    }
}

/// The keys of objects that are removed together by a function.
#[derive(Debug)]
pub(super) struct Later<R> {
    remove_all: R,
    keys: Vec<String>,
}

impl<R> Later<R> {
    pub(super) const fn new(remove_all: R) -> Self {
        Self {
            remove_all,
            keys: Vec::new(),
        }
    }
}

impl<R: FnMut(&[String]) -> Result<(), StorageError>> Removal for Later<R> {
    fn begin(&mut self) {
        self.keys.clear();
    }

    fn remove(&mut self, key: &str) -> Result<(), StorageError> {
        self.keys.push(key.to_owned());
        Ok(())
    }

    fn finish(&mut self) -> Result<(), StorageError> {
        (self.remove_all)(&std::mem::take(&mut self.keys))
    }
}
