//! [`Rows`]: lists and repairs rows, for the commands that check, import and export a storage.

use samovar_nix::{HashPart, StoreDir, StorePath};

use super::{CacheId, StoredNar, StoredPath};
use crate::error::StorageError;

/// The part of [`Metadata`](super::Metadata) for commands on whole storages.
pub trait Rows {
    /// Returns the next NARs after row `id`, in the order of their rows.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn nars_after(&self, id: i64, count_max: u32) -> Result<Vec<ListedNar>, StorageError>;

    /// Returns the next paths of all caches after row `id`, in the order of their rows: a path
    /// comes after those to which it refers.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn paths_after(&self, id: i64, count_max: u32) -> Result<Vec<ListedPath>, StorageError>;

    /// Returns the same as [`Metadata::path`](super::Metadata::path), but does not revive the path.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn peek(&self, cache: CacheId, hash_part: HashPart)
    -> Result<Option<StoredPath>, StorageError>;

    /// Returns the paths that use a NAR.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn paths_of_nar(&self, nar_id: i64) -> Result<Vec<ListedPath>, StorageError>;

    /// Returns the index of a NAR's zstd frames.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn frames(&self, nar_id: i64) -> Result<Option<Vec<u8>>, StorageError>;

    /// Replaces the index of a NAR's zstd frames.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn set_frames(&self, nar_id: i64, frames: Option<&[u8]>) -> Result<(), StorageError>;

    /// Records in one transaction that a NAR is lost (`true`) or intact. Does nothing if
    /// `is_unchanged`, which is called in the transaction, returns `false`. For each path of the
    /// mirrored cache whose NAR is lost, calls `remove_mirror`. Returns whether it was recorded.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn set_lost(
        &self,
        nar_id: i64,
        is_lost: bool,
        is_unchanged: &mut dyn FnMut() -> Result<bool, StorageError>,
        remove_mirror: &mut dyn FnMut(HashPart) -> Result<(), StorageError>,
    ) -> Result<bool, StorageError>;

    /// Returns the cache whose narinfos are also in the directory.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn mirrored_cache(&self) -> Result<Option<CacheRow>, StorageError>;

    /// Returns the date of today, as `2026-11-23`.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn today(&self) -> Result<String, StorageError>;

    /// Calls `write` with a line of JSON for each token, each pin and the last use of each path.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`], and those of `write`.
    fn dump(
        &self,
        write: &mut dyn FnMut(&str) -> Result<(), StorageError>,
    ) -> Result<(), StorageError>;

    /// Restores lines of [`dump`](Self::dump) in one transaction. Ignores pins and uses of paths
    /// that do not exist.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn restore(&self, lines: &[String]) -> Result<(), StorageError>;

    /// Returns the cache of this name.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn find_cache(&self, name: &str) -> Result<Option<CacheRow>, StorageError>;

    /// Whether no NAR has this object, and its deletion is not in progress.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn is_orphan(&self, object_key: &str) -> Result<bool, StorageError>;

    /// Records the keys that no NAR has as garbage, in one transaction. Returns these keys.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn discard(&self, object_keys: &[String]) -> Result<Vec<String>, StorageError>;

    /// Checks the database, and returns at most `count_max` faults of its structure and of the
    /// references between its rows. `deep`: also compares indexes with tables.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn faults(&self, deep: bool, count_max: u32) -> Result<Vec<String>, StorageError>;
}

/// A NAR in a list of all NARs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedNar {
    /// The NAR.
    pub nar: StoredNar,
    /// Whether its object is known to be missing or damaged.
    pub is_lost: bool,
}

/// A path in a list of all paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedPath {
    /// Number of the row.
    pub id: i64,
    /// The cache of the path.
    pub cache: CacheId,
    /// Name of the cache.
    pub cache_name: String,
    /// The store path.
    pub path: StorePath,
    /// Whether its NAR is lost.
    pub is_lost: bool,
}

/// A cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheRow {
    /// Number of the row.
    pub id: CacheId,
    /// Name of the cache.
    pub name: String,
    /// The store directory of its paths.
    pub store_dir: StoreDir,
}
