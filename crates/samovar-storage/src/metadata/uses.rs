//! Records uses of paths and NARs, and revives those that are condemned.

use std::collections::{HashMap, HashSet};

use super::rows::values;
use super::{CacheId, Database};
use crate::error::StorageError;
use crate::sql::{Connection, params};

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
        let mut nars: HashMap<CacheId, Vec<i64>> = HashMap::new();
        for (cache, nar) in &uses.nars {
            nars.entry(*cache).or_default().push(*nar);
        }
        nars.into_iter()
            .try_for_each(|(cache, nars)| record_nars(transaction, cache, &nars, now))
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
    let update = "update path set used_at = case when used_at < ?1 then ?1 else used_at end, \
         condemned_at = null where (used_at <= ?2 or condemned_at is not null) and id";
    connection.execute_of(update, params![now, now - USE_INTERVAL], &values(&ids))?;
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

/// Records a use of all paths of a cache that have one of these NARs, and revives those that are
/// condemned.
pub(super) fn record_nars(
    connection: &Connection<'_>,
    cache: CacheId,
    nars: &[i64],
    now: i64,
) -> Result<(), StorageError> {
    let update = "update path set used_at = case when used_at < ?1 then ?1 else used_at end, \
         condemned_at = null where (used_at <= ?2 or condemned_at is not null) \
         and cache_id = ?3 and nar_id";
    let params = params![now, now - USE_INTERVAL, cache];
    connection.execute_of(update, params, &values(nars))?;
    Ok(())
}

/// Revives those of these NARs that are condemned.
pub(super) fn revive_nars(
    connection: &Connection<'_>,
    nars: &[i64],
    now: i64,
) -> Result<(), StorageError> {
    let update = "update nar set state = 1, state_at = ?1 where state = 2 and id";
    connection.execute_of(update, params![now], &values(nars))?;
    Ok(())
}
