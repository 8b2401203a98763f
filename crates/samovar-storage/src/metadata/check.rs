//! Types for listing all rows.

use samovar_nix::{StoreDir, StorePath};

use super::{CacheId, StoredNar};

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

/// The cache whose narinfos are also in the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirroredCache {
    /// The cache.
    pub id: CacheId,
    /// Its name.
    pub name: String,
    /// The store directory of its paths.
    pub store_dir: StoreDir,
}
