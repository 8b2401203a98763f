//! [`Caches`]: lists and deletes the caches of a storage, for `samovar cache`.

use super::CacheId;
use crate::error::StorageError;

/// The part of [`Metadata`](super::Metadata) for whole caches.
///
/// A cache is deleted in two stages. [`delete_cache`](Self::delete_cache) hides its paths in one
/// transaction. [`purge_cache`](Self::purge_cache) then deletes their rows, a few at a time, so
/// that uploads into other caches do not wait. NARs that no other cache uses are left to the
/// collector.
pub trait Caches {
    /// Returns the caches that have a row or a valid token of their own, sorted by name. Omits
    /// deleted ones.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn caches(&self) -> Result<Vec<CacheSummary>, StorageError>;

    /// Returns the number of paths in a cache. Scans an index, which takes about 30 ms for a
    /// million paths.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn path_count(&self, cache: CacheId) -> Result<u64, StorageError>;

    /// Returns the NARs that the paths of this cache use and those of no other cache.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn own_nars(&self, name: &str) -> Result<Freed, StorageError>;

    /// Hides the paths of a cache, removes its pins, and revokes the tokens that are valid for this
    /// cache only, in one transaction. Returns `None` if there is no such cache and no such token.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`]. Nothing is changed then.
    fn delete_cache(&self, name: &str) -> Result<Option<DeletedCache>, StorageError>;

    /// Returns a cache whose paths are hidden and not deleted yet, or `None` if there is none.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn cache_to_purge(&self) -> Result<Option<CacheId>, StorageError>;

    /// Deletes at most `count_max` paths or realisations of a hidden cache, in one transaction in
    /// which `remove_mirror` is called with the key of each of their files in the directory. If
    /// none is left, records that the deletion of the cache is complete.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`]. No row is deleted then.
    fn purge_cache(
        &self,
        cache: CacheId,
        count_max: u32,
        remove_mirror: &mut dyn FnMut(&str) -> Result<(), StorageError>,
    ) -> Result<(), StorageError>;
}

/// A cache with its totals.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheSummary {
    /// Name of the cache.
    pub name: String,
    /// Number of paths in the cache.
    pub path_count: u64,
    /// Total length of what the cache stores, in bytes: see
    /// [`Metadata::used_bytes`](super::Metadata::used_bytes).
    pub used_bytes: u64,
    /// Number of pins, in which each generation counts.
    pub pin_count: u64,
    /// Number of valid tokens that are restricted to this cache.
    pub token_count: u64,
    /// Time of the last upload of a new path, in seconds since 1970. `None`: there is no path.
    pub uploaded_at: Option<i64>,
    /// Whether the cache was deleted and some of its rows are left.
    pub is_hidden: bool,
}

/// What the deletion of a cache has removed at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeletedCache {
    /// Number of removed pins, in which each generation counts.
    pub pin_count: usize,
    /// Number of revoked tokens.
    pub token_count: usize,
}

/// NARs that the collector deletes once a cache is deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Freed {
    /// Number of NARs.
    pub nar_count: u64,
    /// Total length of their files, in bytes.
    pub file_bytes: u64,
}
