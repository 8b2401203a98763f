//! The totals of the database.

use rusqlite::{Connection, OptionalExtension as _};

use super::Database;
use super::rows::unsigned;
use crate::error::StorageError;

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
    database.read_raw(collected_at_in)
}

/// Returns the totals of the database from one snapshot. Scans the table of NARs.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn read(database: &Database) -> Result<Totals, StorageError> {
    database.read_raw(|connection| {
        // All queries read the same snapshot.
        let transaction = connection.unchecked_transaction()?;
        let mut totals = transaction
            .query_row(
                "select count(*), coalesce(sum(nar_size), 0), coalesce(sum(file_size), 0), \
             coalesce(sum(is_loose), 0), coalesce(sum(iif(is_loose, file_size, 0)), 0), \
             coalesce(sum(state = 3), 0) \
             from (select nar_size, file_size, state, \
                   not exists (select 1 from path where nar_id = nar.id) as is_loose from nar)",
                [],
                |row| {
                    Ok([
                        row.get(0)?,
                        row.get(1)?,
                        row.get(2)?,
                        row.get(3)?,
                        row.get(4)?,
                        row.get(5)?,
                    ])
                },
            )
            .map_err(StorageError::from)
            .and_then(|numbers: [i64; 6]| {
                Ok(Totals {
                    nar_count: unsigned(numbers[0])?,
                    nar_bytes: unsigned(numbers[1])?,
                    file_bytes: unsigned(numbers[2])?,
                    loose_count: unsigned(numbers[3])?,
                    loose_bytes: unsigned(numbers[4])?,
                    lost_count: unsigned(numbers[5])?,
                    ..Totals::default()
                })
            })?;
        let mut statement = transaction.prepare_cached(
            "select name, file_bytes + extra_bytes, \
                 (select count(*) from path where cache_id = cache.id) \
             from cache where deletion = 0 order by name",
        )?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            totals.caches.push(CacheTotals {
                name: row.get(0)?,
                used_bytes: unsigned(row.get(1)?)?,
                path_count: unsigned(row.get(2)?)?,
            });
        }
        let count = |query: &str| unsigned(transaction.query_row(query, [], |row| row.get(0))?);
        totals.condemned_count = count("select count(*) from path where condemned_at is not null")?;
        totals.log_count = count("select count(*) from log")?;
        totals.extra_bytes = count("select coalesce(sum(extra_bytes), 0) from cache")?;
        totals.pin_count = count("select count(*) from pin")?;
        totals.collected_at = collected_at_in(&transaction)?;
        Ok(totals)
    })
}

/// Records the present time as the end of the collector's last complete run.
pub(crate) fn set_collected(database: &Database) -> Result<(), StorageError> {
    let connection = &*database.writer()?;
    let now = database.now();
    connection.execute(
        "insert or replace into meta values (?1, ?2)",
        [COLLECTED_AT, &now.to_string()],
    )?;
    Ok(())
}

fn collected_at_in(connection: &Connection) -> Result<Option<i64>, StorageError> {
    let query = "select value from meta where key = ?1";
    let time: Option<String> = connection
        .query_row(query, [COLLECTED_AT], |row| row.get(0))
        .optional()?;
    Ok(time.and_then(|time| time.parse().ok()))
}
