//! [`Rows`]: lists and repairs rows for `samovar fsck`, `import` and `export`.

use samovar_nix::{HashPart, StoreDir, StorePath};

use super::{CacheId, StoredNar, StoredPath};
use crate::error::StorageError;

/// The part of [`Metadata`](super::Metadata) for commands on whole storages.
pub trait Rows {
    /// Returns at most `count_max` NARs whose row numbers are higher than `id`, in the order of
    /// their rows.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn nars_after(&self, id: i64, count_max: u32) -> Result<Vec<ListedNar>, StorageError>;

    /// Returns at most `count_max` paths of all caches whose row numbers are higher than `id`, in
    /// the order of their rows. A path comes after its references.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn paths_after(&self, id: i64, count_max: u32) -> Result<Vec<ListedPath>, StorageError>;

    /// Returns the same as [`Metadata::path`](super::Metadata::path), but does not revive a
    /// condemned path.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn peek(&self, cache: CacheId, hash_part: HashPart)
    -> Result<Option<StoredPath>, StorageError>;

    /// Returns the paths of all caches that use a NAR.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn paths_of_nar(&self, nar_id: i64) -> Result<Vec<ListedPath>, StorageError>;

    /// Returns the index of a NAR's zstd frames, or `None` if the NAR has no index.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn frames(&self, nar_id: i64) -> Result<Option<Vec<u8>>, StorageError>;

    /// Replaces the index of a NAR's zstd frames. `None` removes it.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn set_frames(&self, nar_id: i64, frames: Option<&[u8]>) -> Result<(), StorageError>;

    /// Records in one transaction that a NAR is lost (`true`) or intact (`false`). Returns whether
    /// anything was changed: nothing is if the row does not exist or records the same already, or
    /// if `is_unchanged`, which is called in the transaction, returns `false`. For each path of the
    /// mirrored cache whose NAR is lost, calls `remove_mirror`.
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

    /// Returns the cache whose narinfos are also written into the directory. `None`: no cache is
    /// mirrored.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn mirrored_cache(&self) -> Result<Option<CacheRow>, StorageError>;

    /// Returns today's date in the form `2026-11-23`.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn today(&self) -> Result<String, StorageError>;

    /// Calls `write` with a line of JSON for each token, each pin, the last use of each path, the
    /// mirrored cache, and the narinfo of each path of another cache. Returns the fault of the
    /// first path that is left out because its row is damaged.
    ///
    /// # Errors
    ///
    /// Any other [`StorageError`], and those of `write`.
    fn dump(
        &self,
        write: &mut dyn FnMut(&str) -> Result<(), StorageError>,
    ) -> Result<Option<StorageError>, StorageError>;

    /// Returns the narinfos in lines that [`dump`](Self::dump) has written, each with the name of
    /// its cache. A path comes after its references.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn dumped_narinfos(&self, lines: &[String]) -> Result<Vec<(String, String)>, StorageError>;

    /// Returns whether a token, a pin or a path of a cache that is not mirrored is in lines that
    /// [`dump`](Self::dump) has written, but not in the database. Ignores other lines.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn lacks_any(&self, lines: &[String]) -> Result<bool, StorageError>;

    /// Returns the name of the mirrored cache in lines that [`dump`](Self::dump) has written.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn dumped_mirrored_cache(&self, lines: &[String]) -> Result<Option<String>, StorageError>;

    /// Returns a text that changes when what [`dump`](Self::dump) writes changes, except the last
    /// uses.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn dump_state(&self) -> Result<String, StorageError>;

    /// Restores lines that [`dump`](Self::dump) has written, in one transaction. Ignores narinfos,
    /// and pins and uses of paths that do not exist.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn restore(&self, lines: &[String]) -> Result<(), StorageError>;

    /// Returns the cache with this name, or `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn find_cache(&self, name: &str) -> Result<Option<CacheRow>, StorageError>;

    /// Returns the name of a cache that has a path with this hash part.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn cache_of(&self, hash_part: HashPart) -> Result<Option<String>, StorageError>;

    /// Returns the names of all caches that are not deleted.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn cache_names(&self) -> Result<Vec<String>, StorageError>;

    /// Returns whether no NAR uses the object with this key, and its deletion is not already in
    /// progress.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn is_orphan(&self, object_key: &str) -> Result<bool, StorageError>;

    /// Records those of these keys that no NAR uses as garbage, in one transaction. Returns them.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn discard(&self, object_keys: &[String]) -> Result<Vec<String>, StorageError>;

    /// Checks the tables and indexes that decide what is kept and who may do what: caches, tokens,
    /// pins and pushes. They are small.
    ///
    /// # Errors
    ///
    /// [`StorageError::Damaged`] if one of them is damaged. Other errors.
    fn check_small_tables(&self) -> Result<(), StorageError>;

    /// Returns the time at which the collector's last complete run ended, in seconds since 1970.
    /// `None`: no run was complete yet.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn collected_at(&self) -> Result<Option<i64>, StorageError>;

    /// Recomputes the total length of the files of each cache, which triggers keep current. Returns
    /// a description of each one that is wrong. `repairs`: also corrects them.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn wrong_totals(&self, repairs: bool) -> Result<Vec<String>, StorageError>;

    /// Checks the database. Returns at most `count_max` faults of its structure and of the
    /// references between rows. With `deep`, also compares indexes with tables.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn faults(&self, deep: bool, count_max: u32) -> Result<Vec<String>, StorageError>;
}

/// A NAR in a list of all NARs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedNar {
    /// The NAR and its file.
    pub nar: StoredNar,
    /// Whether the NAR's object is known to be missing or damaged.
    pub is_lost: bool,
}

/// A path in a list of all paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedPath {
    /// Row number of the path.
    pub id: i64,
    /// Identifier of the path's cache.
    pub cache: CacheId,
    /// Name of the path's cache.
    pub cache_name: String,
    /// The store path that the row describes.
    pub path: StorePath,
    /// Whether the path's NAR is lost.
    pub is_lost: bool,
}

/// A row of the table of caches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheRow {
    /// Row number, which identifies the cache.
    pub id: CacheId,
    /// Name of the cache.
    pub name: String,
    /// The store directory of the cache's paths.
    pub store_dir: StoreDir,
}
