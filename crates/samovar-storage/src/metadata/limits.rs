//! What a cache stores, and its limit.

use super::rows::unsigned;
use super::{CacheId, Database};
use crate::error::StorageError;
use crate::sql::{Connection, params};

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

/// Returns the total length of what a cache stores, in bytes: of the files of NARs that its
/// paths use, each counted once, of its build logs and realisations, and of its narinfos.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn used_bytes(database: &Database, cache: CacheId) -> Result<u64, StorageError> {
    database.read(|connection| {
        let (files, extras) = bytes(connection, cache)?;
        Ok(files + extras)
    })
}

/// Returns the total length of the files of NARs that the paths of a cache use, each counted once,
/// in bytes.
pub(crate) fn file_bytes(database: &Database, cache: CacheId) -> Result<u64, StorageError> {
    database.read(|connection| Ok(bytes(connection, cache)?.0))
}

/// Returns the total length of a cache's NAR files, and the total length of all else in the cache.
pub(super) fn bytes(
    connection: &Connection<'_>,
    cache: CacheId,
) -> Result<(u64, u64), StorageError> {
    let query = "select file_bytes, extra_bytes from cache where id = ?1";
    connection.row(query, params![cache], |row| {
        Ok((unsigned(row.get(0)?)?, unsigned(row.get(1)?)?))
    })
}

/// Returns the used part of the limit of a cache if files of NARs and other data of these lengths
/// would exceed it. Otherwise returns `None`.
pub(super) fn over_limit(
    connection: &Connection<'_>,
    cache: CacheId,
    limit: SizeLimit,
    file_size: u64,
    extra_len: u64,
) -> Result<Option<u64>, StorageError> {
    let stored = bytes(connection, cache)?;
    Ok(over(stored, limit, file_size, extra_len))
}

/// Like [`over_limit`], for a cache that stores files of NARs and other data of the lengths
/// `stored`.
pub(super) fn over(
    (files, extras): (u64, u64),
    limit: SizeLimit,
    file_size: u64,
    extra_len: u64,
) -> Option<u64> {
    let (used, added, max) = match limit.quota {
        Some(quota) => (files + extras, file_size.saturating_add(extra_len), quota),
        None => (extras, extra_len, limit.extra_max),
    };
    (added > 0 && used.saturating_add(added) > max).then_some(used)
}
