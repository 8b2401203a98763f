//! Records uses of paths and NARs, and revives those that are condemned.

use std::collections::HashSet;

use super::{CacheId, Database};
use crate::error::StorageError;
use crate::sql::{Connection, Value, params};

/// Time that must have passed since the last recorded use of a path until another use is recorded,
/// in seconds.
pub const USE_INTERVAL: i64 = 600;

/// Paths and NARs whose use is not recorded in the database yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Uses {
    /// Row numbers of the used paths.
    pub paths: HashSet<i64>,
    /// Cache and row number of the used NARs. All paths of the cache with this NAR count as used.
    pub nars: HashSet<(CacheId, i64)>,
}

/// Records that paths were used now, and revives those that are condemned.
pub(crate) fn record(database: &Database, uses: &Uses) -> Result<(), StorageError> {
    // If a power cut undoes this, it also undoes later deletions.
    database.write_lazily(|transaction| {
        let now = database.now();
        record_paths(transaction, uses.paths.iter().copied(), now)?;
        for (cache, nar) in &uses.nars {
            record_nar(transaction, *cache, *nar, now)?;
        }
        Ok(())
    })
}

/// Records that paths were used, and revives those that are condemned.
pub(super) fn record_paths(
    connection: &Connection<'_>,
    paths: impl Iterator<Item = i64>,
    now: i64,
) -> Result<(), StorageError> {
    let mut ids: Vec<i64> = paths.collect();
    // In this order all programs lock rows.
    ids.sort_unstable();
    ids.dedup();
    let ids: Vec<Value<'_>> = ids.into_iter().map(Value::from).collect();
    let update = "update path set used_at = case when used_at < ?1 then ?1 else used_at end, \
         condemned_at = null where (used_at <= ?2 or condemned_at is not null) and id";
    connection.execute_of(update, params![now, now - USE_INTERVAL], &ids)?;
    Ok(())
}

/// Records that a path was used, and revives it if it is condemned.
pub(super) fn record_path(
    connection: &Connection<'_>,
    path: i64,
    now: i64,
) -> Result<(), StorageError> {
    record_paths(connection, std::iter::once(path), now)
}

/// Records a use of all paths of a cache that have this NAR, and revives those that are condemned.
pub(super) fn record_nar(
    connection: &Connection<'_>,
    cache: CacheId,
    nar: i64,
    now: i64,
) -> Result<(), StorageError> {
    connection.execute(
        "update path set used_at = case when used_at < ?3 then ?3 else used_at end, \
         condemned_at = null where nar_id = ?1 and cache_id = ?2 \
         and (used_at <= ?4 or condemned_at is not null)",
        params![nar, cache, now, now - USE_INTERVAL],
    )?;
    Ok(())
}

/// Revives a NAR that is condemned.
pub(super) fn revive_nar(
    connection: &Connection<'_>,
    nar: i64,
    now: i64,
) -> Result<(), StorageError> {
    let update = "update nar set state = 1, state_at = ?2 where id = ?1 and state = 2";
    connection.execute(update, params![nar, now])?;
    Ok(())
}
