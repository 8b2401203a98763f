//! [`Overview`]: the queries for metrics and for the web interface. They change nothing and record
//! no use.

use samovar_nix::{HashPart, StorePath};

use super::{CacheId, StoredPath, Totals};
use crate::error::StorageError;

/// Queries about a storage for its operators and users.
pub trait Overview {
    /// Returns totals of the database at one moment. Scans the table of NARs.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn totals(&self) -> Result<Totals, StorageError>;

    /// Returns the paths of a cache that were published last, newest first, at most `count_max`.
    /// Reads only the newest paths of the storage, so it may omit paths of a cache that was not
    /// used for long.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn recent(&self, cache: CacheId, count_max: u32) -> Result<Vec<RecentPath>, StorageError>;

    /// Returns the details of an uploaded path; `None` if the cache does not have it, or if its NAR
    /// is lost.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn details(&self, cache: CacheId, hash_part: HashPart)
    -> Result<Option<Details>, StorageError>;
}

/// A path that was published recently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecentPath {
    /// The store path.
    pub path: StorePath,
    /// Time of publication, in seconds since 1970.
    pub registered_at: i64,
    /// Length of the NAR, in bytes.
    pub nar_size: u64,
    /// Length of the file, in bytes.
    pub file_size: u64,
    /// Name of the token with which it was uploaded.
    pub token: Option<String>,
}

/// What is known about an uploaded path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Details {
    /// The path.
    pub path: StoredPath,
    /// Name of the token with which it was uploaded.
    pub token: Option<String>,
    /// Whether it will be deleted unless it is used.
    pub is_condemned: bool,
    /// The valid pins with this path: name and generation.
    pub pins: Vec<(String, i64)>,
    /// Uploaded paths that refer to it, at most [`REFERRER_COUNT_MAX`].
    pub referrers: Vec<StorePath>,
    /// The size of its closure, as far as it was uploaded; `None` if that has more than
    /// [`CLOSURE_COUNT_MAX`] paths.
    pub closure: Option<ClosureSize>,
}

/// The size of a closure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClosureSize {
    /// Number of paths.
    pub path_count: u64,
    /// Total length of their NARs, in bytes.
    pub nar_size: u64,
}

/// Maximum number of referrers in [`Details`].
pub const REFERRER_COUNT_MAX: u32 = 100;

/// Maximum number of paths in a closure whose size is computed.
pub const CLOSURE_COUNT_MAX: u32 = 2000;
