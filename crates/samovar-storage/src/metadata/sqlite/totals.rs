//! Statements that compute the totals of the database.

use rusqlite::{Connection, OptionalExtension as _};

use super::rows::unsigned;
use crate::error::StorageError;
use crate::metadata::{CacheTotals, Totals};

/// Key in the table `meta` for the time at which the collector's last complete run ended.
const COLLECTED_AT: &str = "collected-at";

pub(super) fn read(connection: &Connection) -> Result<Totals, StorageError> {
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
    totals.collected_at = collected_at(&transaction)?;
    Ok(totals)
}

pub(super) fn collected_at(connection: &Connection) -> Result<Option<i64>, StorageError> {
    let query = "select value from meta where key = ?1";
    let time: Option<String> = connection
        .query_row(query, [COLLECTED_AT], |row| row.get(0))
        .optional()?;
    Ok(time.and_then(|time| time.parse().ok()))
}

pub(super) fn set_collected(connection: &Connection, now: i64) -> Result<(), StorageError> {
    connection.execute(
        "insert or replace into meta values (?1, ?2)",
        [COLLECTED_AT, &now.to_string()],
    )?;
    Ok(())
}
