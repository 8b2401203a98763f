//! [`Extras`]: what a cache stores besides paths and NARs: build logs and realisations.

use samovar_nix::{Glob, Signature, StorePath};

use super::CacheId;
use crate::error::StorageError;

/// Number of bytes that each path, build log and realisation counts in addition to its references
/// and signatures, its file, or its text. It is the block of a file system: each of them has a file
/// in the directory of a mirrored cache, and rows of about this length at most.
pub const OWN_LEN: u64 = 4096;

/// The limits of what a cache stores, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeLimit {
    /// Maximum total length of all that the cache stores. `None`: there is no quota.
    pub quota: Option<u64>,
    /// Maximum total length of what the cache stores besides NARs, if it has no quota.
    pub extra_max: u64,
}

/// The part of [`Metadata`](super::Metadata) for build logs and realisations.
pub trait Extras {
    /// Records a build log of `size` bytes that was uploaded with `token`. Call it before the file
    /// gets its name: then the collector, which deletes no log of the last day, leaves the file.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn record_log(
        &self,
        cache: CacheId,
        token: i64,
        log: &LogFile,
        limit: SizeLimit,
    ) -> Result<Recorded, StorageError>;

    /// Records those of the build logs in the directory of a cache that are not recorded, and
    /// removes the records of logs that are not in the directory and older than `before`.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn compare_logs(
        &self,
        cache: CacheId,
        found: &[LogFile],
        before: i64,
    ) -> Result<(), StorageError>;

    /// Records a realisation that was uploaded with `token`. Also records a use of its output, and
    /// so revives the output if it is condemned.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn record_realisation(
        &self,
        cache: CacheId,
        token: i64,
        new: &NewRealisation,
        limit: SizeLimit,
    ) -> Result<Recorded, StorageError>;

    /// Returns the realisation with this key, or `None` if the cache does not have it.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn realisation(
        &self,
        cache: CacheId,
        key: &str,
    ) -> Result<Option<StoredRealisation>, StorageError>;

    /// Returns the keys of all realisations of a cache.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn realisation_keys(&self, cache: CacheId) -> Result<Vec<String>, StorageError>;

    /// Returns the build logs and realisations that were uploaded at `before` or earlier and that
    /// belong to no path of their cache.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    fn extras_without_path(&self, before: i64) -> Result<Vec<Extra>, StorageError>;

    /// Deletes those of these build logs and realisations that still belong to no path and were
    /// uploaded at `before` or earlier, in one transaction in which `remove` is called with the key
    /// of each of their files. Returns the deleted ones.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`]. No record is deleted then.
    fn delete_extras<'a>(
        &self,
        extras: &'a [Extra],
        before: i64,
        remove: &mut dyn FnMut(&str) -> Result<(), StorageError>,
    ) -> Result<Vec<&'a Extra>, StorageError>;
}

/// The file of a build log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFile {
    /// Name of the file, which is that of the derivation.
    pub name: String,
    /// Length of the file, in bytes.
    pub size: u64,
    /// Time of the upload, in seconds since 1970.
    pub uploaded_at: i64,
}

/// A build log or realisation of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extra {
    /// The cache.
    pub cache: CacheId,
    /// Name of the cache.
    pub cache_name: String,
    /// The kind, with what identifies it in the cache.
    pub kind: ExtraKind,
    /// Name without the hash part to which rules of retention apply: that of the derivation of a
    /// log, or of the output of a realisation.
    pub name: String,
    /// Length that counts towards the quota, in bytes.
    pub size: u64,
    /// Time of the last upload, in seconds since 1970.
    pub uploaded_at: i64,
    /// Whether it belonged to a path that was deleted.
    pub is_left: bool,
}

/// The kind of an [`Extra`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtraKind {
    /// A build log; contains the name of its file.
    Log(String),
    /// A realisation; contains its key.
    Realisation(String),
}

/// A realisation to record: the output of a content-addressed derivation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRealisation {
    /// URL of the realisation, relative to the cache.
    pub key: String,
    /// Common prefix of the keys of all outputs of the derivation.
    pub key_prefix: String,
    /// The derivation. `None`: the URL names it only by a hash.
    pub derivation: Option<StorePath>,
    /// The store path of the output.
    pub out_path: StorePath,
    /// Whether the live Nix store contains the output. Then the cache need not contain it.
    pub is_elsewhere: bool,
    /// The JSON document, without signatures.
    pub body: String,
    /// The uploaded signatures.
    pub signatures: Vec<Signature>,
}

/// A realisation that was uploaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRealisation {
    /// Whether the output is a path of the cache. Otherwise it is a path of the live Nix store.
    pub is_of_cache: bool,
    /// The JSON document, without signatures.
    pub body: String,
    /// The uploaded signatures.
    pub signatures: Vec<Signature>,
}

/// The outcome of recording a build log or a realisation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// It was recorded now or before. Missing signatures were added.
    Kept,
    /// The cache already has another realisation of the same output, and keeps that one.
    Conflict,
    /// The output is not in the cache. Nothing was changed.
    MissingOutput,
    /// The derivation has the maximum number of realisations. Nothing was changed.
    TooMany,
    /// It would exceed the limit of the cache. Nothing was changed.
    OverLimit {
        /// Used part of the limit, in bytes.
        used: u64,
    },
    /// The token was revoked or has expired. Nothing was changed.
    TokenInvalid,
    /// The cache is being deleted. Nothing was changed.
    CacheDeleted,
    /// The token may push only names that match this pattern, and the name of the derivation or of
    /// the output does not match, or the name of the derivation is unknown. Nothing was changed.
    OtherName(Glob),
}
