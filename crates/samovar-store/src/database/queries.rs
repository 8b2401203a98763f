//! The queries of a [`Database`]. Each query sees one state of the database.

use samovar_nix::{HashPart, PathInfo, StorePath};

use super::row::{self, begin, prefix};
use super::{Database, closure, realisation};
use crate::closure::Closure;
use crate::error::{LookupResult, StoreError};
use crate::realisation::RealisationId;

impl Database {
    /// Looks up the path with this hash part.
    ///
    /// A row whose `narSize` is unknown (NULL or 0, from stores older than that column) counts as
    /// absent: its NAR cannot be announced, and clients reject a narinfo with `NarSize: 0`.
    pub(crate) fn path_info(&self, hash_part: HashPart) -> Result<Option<PathInfo>, StoreError> {
        let prefix = prefix(&self.store_dir, hash_part);
        self.query(|connection| row::path_info(connection, &self.store_dir, &prefix))
    }

    /// Looks up many paths in one transaction.
    pub(crate) fn path_infos(
        &self,
        hash_parts: &[HashPart],
    ) -> Result<Vec<LookupResult>, StoreError> {
        self.query(|connection| {
            let transaction = begin(connection)?;
            let mut results = Vec::with_capacity(hash_parts.len());
            for hash_part in hash_parts {
                match row::path_info(
                    &transaction,
                    &self.store_dir,
                    &prefix(&self.store_dir, *hash_part),
                ) {
                    Err(error) if !error.is_about_one_path() => return Err(error),
                    other => results.push(other),
                }
            }
            Ok(results)
        })
    }

    /// Reads the servable rows with the highest ids, highest first.
    pub(crate) fn newest(
        &self,
        before: Option<i64>,
        count_max: usize,
    ) -> Result<Vec<PathInfo>, StoreError> {
        self.query(|connection| row::newest(connection, &self.store_dir, before, count_max))
    }

    /// Finds the closure of the path with this hash part.
    pub(crate) fn closure(
        &self,
        hash_part: HashPart,
        count_max: usize,
    ) -> Result<Option<Closure>, StoreError> {
        self.query(|connection| closure::closure(connection, &self.store_dir, hash_part, count_max))
    }

    /// Reads the outputs of a valid derivation.
    pub(crate) fn outputs(&self, derivation: &StorePath) -> Result<Vec<StorePath>, StoreError> {
        self.query(|connection| realisation::outputs(connection, &self.store_dir, derivation))
    }

    /// Reads the JSON document of a realisation.
    pub(crate) fn realisation(&self, id: &RealisationId) -> Result<Option<String>, StoreError> {
        self.query(|connection| realisation::realisation(connection, &self.store_dir, id))
    }
}
