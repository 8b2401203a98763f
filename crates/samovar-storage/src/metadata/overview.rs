//! [`Overview`]: the queries for metrics and for the web interface. They change nothing and record
//! no use.

use samovar_nix::{HashPart, StorePath};

use super::{CacheId, StoredPath, Totals};
use crate::error::StorageError;

/// Queries about a storage for its operators and users.
pub trait Overview {
    /// Returns the totals of the database from one snapshot. Scans the table of NARs.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn totals(&self) -> Result<Totals, StorageError>;

    /// Returns the paths that were published last in a cache, newest first, at most `count_max`.
    /// Searches only the newest paths of the whole storage, so it may omit paths of a cache into
    /// which nothing was uploaded for a long time.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn recent(
        &self,
        cache: CacheId,
        accepts: &dyn Fn(&StorePath) -> bool,
        count_max: usize,
    ) -> Result<Vec<RecentPath>, StorageError>;

    /// Returns the last pushes to a cache, at most `count_max`, the newest first, with at most
    /// `other_count_max` other paths in all. Searches the same paths as [`Overview::recent`].
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn recent_pushes(
        &self,
        cache: CacheId,
        count_max: usize,
        other_count_max: usize,
    ) -> Result<Vec<RecentPush>, StorageError>;

    /// Returns the details of an uploaded path. Returns `None` if the cache does not have the path,
    /// or if its NAR is lost.
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
    /// The store path that was published.
    pub path: StorePath,
    /// Time of publication, in seconds since 1970.
    pub registered_at: i64,
    /// Length of the NAR, in bytes.
    pub nar_size: u64,
    /// Length of the NAR's file, in bytes.
    pub file_size: u64,
    /// Name of the token that uploaded the path, if it is known.
    pub token: Option<String>,
}

/// A path that was pushed, and the paths that were pushed with it because it needs them. The
/// storage does not record what a client was asked to push, so this is derived from references.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecentPush {
    /// A path to which no other path refers that was published with the same token shortly after.
    pub path: RecentPath,
    /// Paths to which it refers, directly or not, and that were published shortly before it with
    /// the same token. A path to which several pushes refer belongs to one of them. May lack some:
    /// the sum over all pushes is limited.
    pub others: Vec<RecentPath>,
    /// Number of these paths, with those that [`others`](Self::others) lacks.
    pub other_count: u64,
}

/// The details of an uploaded path for the web interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Details {
    /// The path with its NAR, references and signatures.
    pub path: StoredPath,
    /// Name of the token that uploaded the path, if it is known.
    pub token: Option<String>,
    /// Whether the path is condemned: it will be deleted unless it is used.
    pub is_condemned: bool,
    /// Name and generation of each valid pin of the path.
    pub pins: Vec<(String, i64)>,
    /// Uploaded paths that refer to the path, at most [`REFERRER_COUNT_MAX`].
    pub referrers: Vec<StorePath>,
    /// Size of the uploaded part of the path's closure. `None`: that part has more than
    /// [`CLOSURE_COUNT_MAX`] paths.
    pub closure: Option<ClosureSize>,
}

/// The number of paths in a closure and their size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClosureSize {
    /// Number of paths in the closure.
    pub path_count: u64,
    /// Total length of the NARs of these paths, in bytes.
    pub nar_size: u64,
}

/// Maximum number of entries in [`Details::referrers`].
pub const REFERRER_COUNT_MAX: u32 = 100;

/// Maximum number of paths in a closure whose size is computed.
pub const CLOSURE_COUNT_MAX: u32 = 2000;
