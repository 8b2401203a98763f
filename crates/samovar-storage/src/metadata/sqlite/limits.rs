//! Statements about what a cache stores, and its limit.

use rusqlite::Connection;

use super::rows::unsigned;
use crate::error::StorageError;
use crate::metadata::{CacheId, NewPath, OWN_LEN, SizeLimit};

pub(super) fn used_bytes(connection: &Connection, cache: CacheId) -> Result<u64, StorageError> {
    let (files, extras) = bytes(connection, cache)?;
    Ok(files + extras)
}

/// Returns the total length of the files of NARs of a cache, and that of all else.
fn bytes(connection: &Connection, cache: CacheId) -> Result<(u64, u64), StorageError> {
    let mut statement =
        connection.prepare_cached("select file_bytes, extra_bytes from cache where id = ?1")?;
    let (files, extras) = statement.query_row([cache.0], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok((unsigned(files)?, unsigned(extras)?))
}

/// Returns the used part of the limit of a cache if files of NARs and other data of these lengths
/// would exceed it. Otherwise returns `None`.
pub(super) fn over_limit(
    connection: &Connection,
    cache: CacheId,
    limit: SizeLimit,
    file_size: u64,
    extra_len: u64,
) -> Result<Option<u64>, StorageError> {
    let (files, extras) = bytes(connection, cache)?;
    let (used, added, max) = match limit.quota {
        Some(quota) => (files + extras, file_size.saturating_add(extra_len), quota),
        None => (extras, extra_len, limit.extra_max),
    };
    Ok((added > 0 && used.saturating_add(added) > max).then_some(used))
}

/// Returns the length of a new path without its NAR, in bytes.
pub(super) fn own_len(new: &NewPath, sigs: &str) -> u64 {
    let references = new.references.iter();
    let references: usize = references.map(|new| new.path.base_name().len()).sum();
    OWN_LEN + (references + sigs.len()) as u64
}
