//! Queries of one cache for its web interface. They record no use and revive nothing.

use samovar_nix::{HashPart, StorePath};

use crate::error::StorageError;
use crate::metadata::{Details, Pin, RecentPath, RecentPush};
use crate::stored_cache::StoredCache;

impl StoredCache {
    /// Returns the paths that were published last in this cache, newest first: those that `accepts`
    /// accepts, at most `count_max`. Only the newest 10,000 paths of the storage are considered.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn recent(
        &self,
        accepts: &dyn Fn(&StorePath) -> bool,
        count_max: usize,
    ) -> Result<Vec<RecentPath>, StorageError> {
        self.storage.metadata.recent(self.id, accepts, count_max)
    }

    /// Returns the last pushes to this cache, at most `count_max`, the newest first, with at most
    /// `other_count_max` other paths in all. Only the newest 10,000 paths of the storage are
    /// considered.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn recent_pushes(
        &self,
        count_max: usize,
        other_count_max: usize,
    ) -> Result<Vec<RecentPush>, StorageError> {
        let metadata = &self.storage.metadata;
        metadata.recent_pushes(self.id, count_max, other_count_max)
    }

    /// Returns the number of uploaded paths in this cache.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn path_count(&self) -> Result<u64, StorageError> {
        self.storage.metadata.path_count(self.id)
    }

    /// Returns the details of an uploaded path, or `None` if the cache does not have it.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn details(&self, hash_part: HashPart) -> Result<Option<Details>, StorageError> {
        match self.may_contain(hash_part) {
            true => self.storage.metadata.details(self.id, hash_part),
            false => Ok(None),
        }
    }

    /// Returns the pins of this cache, sorted by name, the newest generation first.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn pins(&self) -> Result<Vec<Pin>, StorageError> {
        let mut pins = self.storage.metadata.pins()?;
        pins.retain(|pin| pin.cache == self.name);
        Ok(pins)
    }

    /// Returns the total length of what the cache stores, in bytes.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn used_bytes(&self) -> Result<u64, StorageError> {
        self.storage.metadata.used_bytes(self.id)
    }
}
