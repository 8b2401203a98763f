//! Reads the columns of rows.

use samovar_nix::narinfo::Compression;
use samovar_nix::{HashPart, NarHash, StorePath};

use crate::error::StorageError;
use crate::metadata::StoredNar;
use crate::sql::{Row, Value};

/// Columns of the table `nar`, in the order in which [`nar_of`] reads them.
macro_rules! nar_columns {
    () => {
        "nar.id, nar.nar_hash, nar.nar_size, nar.file_hash, nar.file_size, nar.compression, \
         nar.object_key"
    };
}
pub(super) use nar_columns;

/// Condition for paths whose cache, in this column or parameter, is not deleted.
macro_rules! is_shown {
    ($cache:literal) => {
        concat!(
            "(select deletion = 0 from cache as its where its.id = ",
            $cache,
            ")"
        )
    };
}
pub(super) use is_shown;

/// Condition for NARs that a [`Client`](crate::metadata::Client) may use: a path of the cache uses
/// the NAR, and the client may read the cache, or the NAR was sent with its token. `?1`: the cache.
/// `?2`: the token, or null. `?3`: whether the client may read.
///
/// Without `offset 0`, PostgreSQL may evaluate a subquery once for all rows of the table instead of
/// for the few NARs that are found, which takes longer the more paths there are.
macro_rules! is_usable {
    () => {
        concat!(
            "(?3 = 1 and exists (select 1 from path where nar_id = nar.id and cache_id = ?1 \
             limit 1 offset 0) and ",
            is_shown!("?1"),
            " or exists (select 1 from sent \
             where nar_id = nar.id and token_id = ?2 and is_held = 0 limit 1 offset 0))"
        )
    };
}
pub(super) use is_usable;

/// Parses the NAR in the first columns of a row: see `nar_columns`.
pub(super) fn nar_of(row: &Row<'_>) -> Result<StoredNar, StorageError> {
    Ok(StoredNar {
        id: row.get(0)?,
        nar_hash: NarHash::from_bytes(row.get(1)?),
        nar_size: unsigned(row.get(2)?)?,
        file_hash: row.get(3)?,
        file_size: unsigned(row.get(4)?)?,
        compression: compression(row.get(5)?)?,
        object_key: row.get(6)?,
    })
}

fn compression(name: &str) -> Result<Compression, StorageError> {
    let known = Compression::from_name(name);
    known.ok_or_else(|| damaged(&format!("unknown compression {name:?}")))
}

pub(super) fn path_of(hash_part: HashPart, name: &str) -> Result<StorePath, StorageError> {
    base_name(&format!("{hash_part}-{name}"))
}

pub(super) fn base_name(text: &str) -> Result<StorePath, StorageError> {
    StorePath::from_base_name(text).map_err(|error| damaged(&format!("{text:?}: {error}")))
}

/// Returns row numbers as parameters.
pub(super) fn values(ids: &[i64]) -> Vec<Value<'_>> {
    ids.iter().copied().map(Value::from).collect()
}

pub(super) fn damaged(reason: &str) -> StorageError {
    StorageError::Damaged(reason.to_owned())
}

pub(super) fn unsigned(number: i64) -> Result<u64, StorageError> {
    u64::try_from(number).map_err(|_negative| damaged(&format!("{number} is negative")))
}

pub(super) fn signed(number: u64) -> Result<i64, StorageError> {
    i64::try_from(number)
        .map_err(|_too_large| StorageError::Database(format!("{number} is too large")))
}
