//! Looking up uploaded paths of a cache.

use samovar_nix::HashPart;

use crate::error::StorageError;
use crate::metadata::{LookupResult, StoredPath, USE_INTERVAL, paths};
use crate::storage::StoredCache;

impl StoredCache {
    /// Returns whether an uploaded path with this hash part may exist. If `false`, it certainly
    /// does not. Never blocks on a disk.
    #[must_use]
    pub fn may_contain(&self, hash_part: HashPart) -> bool {
        self.storage.index().may_contain(self.id, hash_part)
    }

    /// Returns when this process has noticed that an uploaded path was deleted, in seconds since
    /// 1970. `None`: it was not, or a policy of the cache may hide it. Never blocks on a disk.
    #[must_use]
    pub fn deleted_at(&self, hash_part: HashPart) -> Option<i64> {
        let at = self.storage.collected.at((self.id, hash_part))?;
        (self.hides.is_none() && !self.may_contain(hash_part)).then_some(at)
    }

    /// Returns whether an uploaded path with this hash part is in the index in memory.
    pub(super) fn surely_contains(&self, hash_part: HashPart) -> bool {
        let index = self.storage.index();
        index.paths.contains(&(self.id, hash_part))
    }

    /// Returns the uploaded path with this hash part, and records a use of it. The collector does
    /// not delete a returned path for [`Rules::hold`](crate::gc::Rules::hold). Returns `None` if
    /// the cache does not have the path.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn lookup(&self, hash_part: HashPart) -> Result<Option<StoredPath>, StorageError> {
        if !self.may_contain(hash_part) {
            return Ok(None);
        }
        let storage = &*self.storage;
        let mut path = paths::find(&storage.metadata, self.id, hash_part)?;
        if let Some(found) = &path
            && !storage.seems_whole(&found.nar)?
        {
            path = None;
        }
        match &path {
            Some(path) if path.used_at <= storage.metadata.now() - USE_INTERVAL => {
                storage.uses().paths.insert(path.id);
            }
            Some(_) => {}
            None => {
                storage.forget(self.id, hash_part)?;
            }
        }
        Ok(path)
    }

    /// Returns the uploaded paths with these hash parts, in the same order. Each result is the same
    /// as with [`lookup`](Self::lookup), at less cost. Pass a few hundred at a time: all condemned
    /// ones among them are revived in one transaction.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`]. A damaged row fails only the result of its own path.
    pub fn lookup_many(&self, hash_parts: &[HashPart]) -> Result<Vec<LookupResult>, StorageError> {
        let storage = &*self.storage;
        let index = storage.index();
        let possible: Vec<bool> = hash_parts
            .iter()
            .map(|hash_part| index.may_contain(self.id, *hash_part))
            .collect();
        drop(index);
        let asked: Vec<HashPart> = hash_parts
            .iter()
            .zip(&possible)
            .filter_map(|(hash_part, is_possible)| is_possible.then_some(*hash_part))
            .collect();
        if asked.is_empty() {
            return Ok(possible.iter().map(|_| Ok(None)).collect());
        }
        let mut found = paths::find_all(&storage.metadata, self.id, &asked)?;
        for found in &mut found {
            if let Ok(Some(path)) = found
                && !storage.seems_whole(&path.nar)?
            {
                *found = Ok(None);
            }
        }
        let before = storage.metadata.now() - USE_INTERVAL;
        let mut uses = storage.uses();
        let used = found.iter().flatten().flatten();
        uses.paths.extend(
            used.filter(|path| path.used_at <= before)
                .map(|path| path.id),
        );
        drop(uses);
        for (hash_part, found) in asked.iter().zip(&found) {
            if matches!(found, Ok(None)) {
                storage.forget(self.id, *hash_part)?;
            }
        }
        let mut found = found.into_iter();
        let answers = possible.into_iter().map(|is_possible| match is_possible {
            true => found.next().unwrap_or(Ok(None)),
            false => Ok(None),
        });
        Ok(answers.collect())
    }

    /// Returns the uploaded path with this hash part, without recording a use or reviving it.
    /// `None`: the cache does not have the path.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn peek(&self, hash_part: HashPart) -> Result<Option<StoredPath>, StorageError> {
        match self.may_contain(hash_part) {
            true => paths::peek(&self.storage.metadata, self.id, hash_part),
            false => Ok(None),
        }
    }
}
