//! Queries of one cache for its web interface. They record no use and revive nothing.

use std::collections::HashSet;

use samovar_nix::{HashPart, StorePath};

use crate::error::StorageError;
use crate::metadata::{
    CLOSURE_COUNT_MAX, ClosureSize, Details, Pin, RecentPath, RecentPush, StoredPath, caches,
    limits, overview, paths, pins,
};
use crate::storage::cache::{Hides, StoredCache};

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
        overview::recent(&self.storage.metadata, self.id, accepts, count_max)
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
        overview::recent_pushes(metadata, self.id, count_max, other_count_max)
    }

    /// Returns the number of uploaded paths in this cache.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn path_count(&self) -> Result<u64, StorageError> {
        caches::path_count(&self.storage.metadata, self.id)
    }

    /// Returns the details of an uploaded path, or `None` if the cache does not have it. Its
    /// closure has no paths that the policy hides. The caller applies the policy to the path
    /// itself, to its references and to its referrers.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn details(&self, hash_part: HashPart) -> Result<Option<Details>, StorageError> {
        if !self.may_contain(hash_part) {
            return Ok(None);
        }
        let mut details = overview::details(&self.storage.metadata, self.id, hash_part)?;
        if let (Some(details), Some(Hides(hides))) = (&mut details, &self.hides) {
            details.closure = self.shown_closure(&details.path, &**hides)?;
        }
        Ok(details)
    }

    /// Returns the size of the part of a closure that can be reached without a hidden path, or
    /// `None` if it has more than [`CLOSURE_COUNT_MAX`] paths.
    fn shown_closure(
        &self,
        path: &StoredPath,
        hides: &dyn Fn(&StoredPath) -> bool,
    ) -> Result<Option<ClosureSize>, StorageError> {
        let mut seen = HashSet::from([path.path.hash_part()]);
        let mut size = ClosureSize {
            path_count: 1,
            nar_size: path.nar.nar_size,
        };
        let mut pending: Vec<HashPart> = path.references.iter().map(StorePath::hash_part).collect();
        while let Some(hash_part) = pending.pop() {
            if !seen.insert(hash_part) {
                continue;
            }
            let member = paths::peek(&self.storage.metadata, self.id, hash_part)?;
            let Some(member) = member.filter(|member| !hides(member)) else {
                continue;
            };
            if size.path_count == u64::from(CLOSURE_COUNT_MAX) {
                return Ok(None);
            }
            size.path_count += 1;
            size.nar_size = size.nar_size.saturating_add(member.nar.nar_size);
            pending.extend(member.references.iter().map(StorePath::hash_part));
        }
        Ok(Some(size))
    }

    /// Returns the pins of this cache, sorted by name, the newest generation first.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn pins(&self) -> Result<Vec<Pin>, StorageError> {
        let mut pins = pins::all(&self.storage.metadata)?;
        pins.retain(|pin| pin.cache == self.name);
        Ok(pins)
    }

    /// Returns the total length of what the cache stores, in bytes.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn used_bytes(&self) -> Result<u64, StorageError> {
        limits::used_bytes(&self.storage.metadata, self.id)
    }
}
