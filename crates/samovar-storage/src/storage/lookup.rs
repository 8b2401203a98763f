//! Looking up uploaded paths of a cache.

use samovar_nix::HashPart;

use crate::catalog::Row;
use crate::error::StorageError;
use crate::metadata::{LookupResult, StoredPath, USE_INTERVAL, packs, paths};
use crate::storage::StoredCache;

impl StoredCache {
    /// Returns whether an uploaded path with this hash part may exist. If `false`, it certainly
    /// does not. Never blocks on a disk.
    #[must_use]
    pub fn may_contain(&self, hash_part: HashPart) -> bool {
        self.storage.catalog.view().may_contain(self.id, hash_part)
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
        if self.storage.catalog.is_followed() {
            // Another node may have deleted it a moment ago. Who asks prepares for the answer of
            // the database.
            return false;
        }
        let index = self.storage.catalog.index();
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
        let mut path = match storage.catalog.row(self.id, hash_part) {
            Some(path) => Some(path),
            None => self.find(hash_part)?,
        };
        if let Some(found) = &path
            && !storage.seems_whole(&found.nar)?
        {
            path = None;
        }
        match &path {
            Some(path) => self.record_use(path),
            None => {
                storage.forget(self.id, hash_part)?;
            }
        }
        Ok(path)
    }

    /// Returns the uploaded path with this hash part from the database, and keeps its row in memory
    /// if several nodes share the database. While that is away, returns the row in memory.
    fn find(&self, hash_part: HashPart) -> Result<Option<StoredPath>, StorageError> {
        let storage = &*self.storage;
        let catalog = &storage.catalog;
        let key = (self.id, hash_part);
        if !catalog.is_followed() {
            return paths::find(&storage.metadata, self.id, hash_part);
        }
        let held = || catalog.held(storage.rules.hold)?.find(&key);
        if let Some(held) = held() {
            return Ok(Some(held));
        }
        let epoch = catalog.rows.epoch(&key);
        match paths::find(&storage.metadata, self.id, hash_part) {
            Ok(Some(path)) => {
                let nar = path.nar.id;
                let pack = packs::places(&storage.metadata, &storage.objects, &[nar])?.remove(&nar);
                let row = Row {
                    path: path.clone(),
                    pack,
                };
                catalog.rows.keep(key, epoch, row);
                Ok(Some(path))
            }
            Err(error @ StorageError::Unavailable(_)) => held().map(Some).ok_or(error),
            outcome => outcome,
        }
    }

    /// Records that a path was used, unless a recent use of it is recorded.
    fn record_use(&self, path: &StoredPath) {
        let storage = &*self.storage;
        let now = storage.metadata.now();
        if path.used_at <= now - USE_INTERVAL {
            storage.uses().paths.insert(path.id);
            let key = (self.id, path.path.hash_part());
            storage.catalog.rows.used(&key, now);
        }
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
        let view = storage.catalog.view();
        let mut answers: Vec<LookupResult> = Vec::with_capacity(hash_parts.len());
        // The places of the answers that the database has to give.
        let mut asked = Vec::new();
        for (at, hash_part) in hash_parts.iter().enumerate() {
            let is_possible = view.may_contain(self.id, *hash_part);
            let row = is_possible.then(|| storage.catalog.row(self.id, *hash_part));
            if is_possible && row.as_ref().is_none_or(Option::is_none) {
                asked.push(at);
            }
            answers.push(Ok(row.flatten()));
        }
        drop(view);
        let parts: Vec<HashPart> = asked.iter().map(|at| hash_parts[*at]).collect();
        for (at, found) in asked.into_iter().zip(self.find_all(&parts)?) {
            answers[at] = found;
        }
        for (hash_part, answer) in hash_parts.iter().zip(&mut answers) {
            match answer {
                Ok(Some(path)) if !storage.seems_whole(&path.nar)? => *answer = Ok(None),
                _ => {}
            }
            match answer {
                Ok(Some(path)) => self.record_use(path),
                Ok(None)
                    if storage
                        .catalog
                        .index()
                        .paths
                        .contains(&(self.id, *hash_part)) =>
                {
                    storage.forget(self.id, *hash_part)?;
                }
                _ => {}
            }
        }
        Ok(answers)
    }

    /// Like [`find`](Self::find), for many paths.
    fn find_all(&self, hash_parts: &[HashPart]) -> Result<Vec<LookupResult>, StorageError> {
        let storage = &*self.storage;
        let catalog = &storage.catalog;
        if hash_parts.is_empty() || !catalog.is_followed() {
            return match hash_parts.is_empty() {
                true => Ok(Vec::new()),
                false => paths::find_all(&storage.metadata, self.id, hash_parts),
            };
        }
        let key = |hash_part: &HashPart| (self.id, *hash_part);
        let held = |error: &StorageError| -> Vec<LookupResult> {
            let rows = catalog.held(storage.rules.hold);
            let held = |hash_part| rows?.find(&key(hash_part));
            let held = |hash_part| held(hash_part).map(Some).ok_or(error.copy());
            hash_parts.iter().map(held).collect()
        };
        if catalog.held(storage.rules.hold).is_some() {
            let away = StorageError::Unavailable("the database is away".to_owned());
            return Ok(held(&away));
        }
        let epochs: Vec<_> = hash_parts
            .iter()
            .map(|hash_part| catalog.rows.epoch(&key(hash_part)))
            .collect();
        let found = match paths::find_all(&storage.metadata, self.id, hash_parts) {
            Err(error @ StorageError::Unavailable(_)) => return Ok(held(&error)),
            found => found?,
        };
        let paths: Vec<_> = found.iter().flatten().flatten().collect();
        let nars: Vec<i64> = paths.iter().map(|path| path.nar.id).collect();
        let places = packs::places(&storage.metadata, &storage.objects, &nars)?;
        for ((hash_part, epoch), found) in hash_parts.iter().zip(epochs).zip(&found) {
            if let Ok(Some(path)) = found {
                // Several paths may have the same NAR.
                let (path, pack) = (path.clone(), places.get(&path.nar.id).cloned());
                catalog.rows.keep(key(hash_part), epoch, Row { path, pack });
            }
        }
        Ok(found)
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
