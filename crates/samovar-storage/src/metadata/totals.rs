//! The totals of the database.

use super::Database;
use super::rows::unsigned;
use crate::error::StorageError;
use crate::sql::{Connection, params};

/// Key in the table `meta` for the time at which the collector's last complete run ended.
const COLLECTED_AT: &str = "collected-at";

/// Numbers and sizes of all NARs, paths and pins in the database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    /// Totals of each cache, sorted by name.
    pub caches: Vec<CacheTotals>,
    /// Number of NARs, including lost ones.
    pub nar_count: u64,
    /// Total length of the NARs, in bytes.
    pub nar_bytes: u64,
    /// Total length of the files of NARs, in bytes.
    pub file_bytes: u64,
    /// Number of NARs that no path uses.
    pub loose_count: u64,
    /// Total length of the files of NARs that no path uses, in bytes.
    pub loose_bytes: u64,
    /// Number of NARs whose file is missing or damaged.
    pub lost_count: u64,
    /// Number of build logs.
    pub log_count: u64,
    /// Total length of build logs, realisations and narinfos, in bytes.
    pub extra_bytes: u64,
    /// Number of condemned paths, which will be deleted unless they are used.
    pub condemned_count: u64,
    /// Number of pins. Each generation of a pin counts.
    pub pin_count: u64,
    /// Time at which the last complete run of a collector ended, in any process, in seconds since
    /// 1970. `None`: there was none.
    pub collected_at: Option<i64>,
}

/// Totals of one cache.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheTotals {
    /// Name of the cache.
    pub name: String,
    /// Number of paths in the cache.
    pub path_count: u64,
    /// Total length of what the cache stores, in bytes: see
    /// [`CacheSummary::used_bytes`](super::CacheSummary::used_bytes).
    pub used_bytes: u64,
}

/// Returns the time at which the collector's last complete run ended, in seconds since 1970.
/// `None`: no run was complete yet.
pub(crate) fn collected_at(database: &Database) -> Result<Option<i64>, StorageError> {
    database.read(collected_at_in)
}

/// Returns the totals of the database from one snapshot. Scans the table of NARs.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn read(database: &Database) -> Result<Totals, StorageError> {
    database.read(|connection| connection.snapshot(read_in))
}

/// Records the present time as the end of the collector's last complete run.
pub(crate) fn set_collected(database: &Database) -> Result<(), StorageError> {
    let now = database.now().to_string();
    let set = "insert into meta (key, value) values (?1, ?2) \
               on conflict (key) do update set value = excluded.value";
    database.write(|transaction| transaction.execute(set, params![COLLECTED_AT, &now]))?;
    Ok(())
}

fn read_in(connection: &Connection<'_>) -> Result<Totals, StorageError> {
    let mut totals = nars(connection)?;
    let caches = "select name, file_bytes + extra_bytes, \
                  (select count(*) from path where cache_id = cache.id) \
                  from cache where deletion = 0 order by name";
    totals.caches = connection.rows(caches, &[], |row| {
        Ok(CacheTotals {
            name: row.get(0)?,
            used_bytes: unsigned(row.get(1)?)?,
            path_count: unsigned(row.get(2)?)?,
        })
    })?;
    let count = |query| connection.row(query, &[], |row| unsigned(row.get(0)?));
    totals.condemned_count = count("select count(*) from path where condemned_at is not null")?;
    totals.log_count = count("select count(*) from log")?;
    totals.extra_bytes = count("select cast(coalesce(sum(extra_bytes), 0) as bigint) from cache")?;
    totals.pin_count = count("select count(*) from pin")?;
    totals.collected_at = collected_at_in(connection)?;
    Ok(totals)
}

/// Returns the totals of NARs.
fn nars(connection: &Connection<'_>) -> Result<Totals, StorageError> {
    let query = "select count(*), cast(coalesce(sum(nar_size), 0) as bigint), \
         cast(coalesce(sum(file_size), 0) as bigint), count(*) filter (where is_loose), \
         cast(coalesce(sum(file_size) filter (where is_loose), 0) as bigint), \
         count(*) filter (where state = 3) \
         from (select nar_size, file_size, state, \
               not exists (select 1 from path where nar_id = nar.id) as is_loose from nar) as its";
    connection.row(query, &[], |row| {
        Ok(Totals {
            nar_count: unsigned(row.get(0)?)?,
            nar_bytes: unsigned(row.get(1)?)?,
            file_bytes: unsigned(row.get(2)?)?,
            loose_count: unsigned(row.get(3)?)?,
            loose_bytes: unsigned(row.get(4)?)?,
            lost_count: unsigned(row.get(5)?)?,
            ..Totals::default()
        })
    })
}

fn collected_at_in(connection: &Connection<'_>) -> Result<Option<i64>, StorageError> {
    let query = "select value from meta where key = ?1";
    let time = connection.optional(query, params![COLLECTED_AT], |row| {
        Ok(row.get::<&str>(0)?.parse().ok())
    })?;
    Ok(time.flatten())
}
