//! Tables, and their partitioning by time.

use std::collections::HashSet;

use postgres::{Client, Transaction};

use crate::store::Result;
use crate::time::Time;

/// First half of the keys of all advisory locks: "kett" in ASCII.
pub(super) const LOCK: i32 = 0x6b65_7474;

const TABLES: &str = include_str!("../../../migrations/postgres/001-kettles.sql");
const MEASUREMENT: &str = include_str!("../../../migrations/postgres/002-measurement.sql");

/// Second half of the key of the advisory lock that is held while tables are created. Writers use
/// their number, from 0.
const LOCK_TABLES: i32 = -1;
const DAY_US: i64 = 86_400_000_000;

/// Partitioning of measurements by time, so that expired ones can be dropped together with their
/// files.
pub(super) enum Division {
    /// One partition per day. The set contains the known partitions, as days since 1970.
    Days(HashSet<i64>),
    /// Managed by `TimescaleDB`.
    Hypertable,
}

/// Creates missing tables.
pub(super) fn migrate(client: &mut Client) -> Result<Division> {
    let mut transaction = client.transaction()?;
    lock_tables(&mut transaction)?;
    transaction.batch_execute("SET LOCAL client_min_messages = warning")?;
    transaction.batch_execute(TABLES)?;
    let kind = transaction.query_one(
        "SELECT (SELECT relkind::text FROM pg_class WHERE oid = to_regclass('measurement'))",
        &[],
    )?;
    let division = match kind.get(0) {
        Some("p") => Division::Days(HashSet::new()),
        Some(_) => Division::Hypertable,
        None if make_hypertable(&mut transaction)? => Division::Hypertable,
        None => {
            transaction.batch_execute(&format!("{MEASUREMENT} PARTITION BY RANGE (time)"))?;
            Division::Days(HashSet::new())
        }
    };
    transaction.commit()?;
    Ok(division)
}

/// Creates the table of measurements as a hypertable of `TimescaleDB`, with the extension; returns
/// `false` if the extension is not installed or not usable.
fn make_hypertable(transaction: &mut Transaction<'_>) -> Result<bool> {
    // Checks the server's preloaded libraries first: if TimescaleDB is not preloaded, creating the
    // extension would break the connection.
    let row = transaction.query_one(
        "SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'timescaledb')
         AND current_setting('timescaledb.disable_load', true) IS NOT NULL",
        &[],
    )?;
    if !row.get::<_, bool>(0) {
        return Ok(false);
    }
    let mut attempt = transaction.savepoint("hypertable")?;
    let made = attempt.batch_execute(&format!(
        "CREATE EXTENSION IF NOT EXISTS timescaledb;
         {MEASUREMENT};
         SELECT create_hypertable('measurement', 'time',
             chunk_time_interval => interval '1 day', create_default_indexes => false)"
    ));
    match made {
        Ok(()) => {
            attempt.commit()?;
            Ok(true)
        }
        Err(error) if error.as_db_error().is_some() => {
            attempt.rollback()?;
            crate::log::error("cannot use TimescaleDB; using partitions instead", &error);
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

fn lock_tables(transaction: &mut Transaction<'_>) -> Result<()> {
    let sql = "SELECT pg_advisory_xact_lock($1, $2)";
    transaction.query(sql, &[&LOCK, &LOCK_TABLES])?;
    Ok(())
}

impl Division {
    /// Creates the partitions for measurements of these times.
    pub(super) fn make_room(
        &mut self,
        client: &mut Client,
        times: impl Iterator<Item = Time>,
    ) -> Result<()> {
        let Self::Days(days) = self else {
            return Ok(());
        };
        let mut last = None;
        for time in times {
            let day = time.0.div_euclid(DAY_US);
            // The times are sorted.
            if last.replace(day) == Some(day) || days.contains(&day) {
                continue;
            }
            let mut transaction = client.transaction()?;
            lock_tables(&mut transaction)?;
            let (name, from, to) = (name(day), start(day), start(day + 1));
            transaction.batch_execute(&format!(
                "CREATE TABLE IF NOT EXISTS {name} PARTITION OF measurement
                 FOR VALUES FROM ('{from}') TO ('{to}')"
            ))?;
            transaction.commit()?;
            days.insert(day);
        }
        Ok(())
    }

    /// Drops partitions whose days have expired.
    pub(super) fn drop_empty(&mut self, client: &mut Client, before: Time) -> Result<()> {
        // One day later than necessary, because measurements just before expiry may still be in the
        // queue.
        let end = before.0.div_euclid(DAY_US) - 1;
        let Self::Days(days) = self else {
            let sql = "SELECT drop_chunks('measurement', older_than => $1::timestamptz)";
            client.query(sql, &[&start(end)])?;
            return Ok(());
        };
        // All names have the same length, so they sort by day.
        let names = client.query(
            "SELECT relname::text FROM pg_inherits JOIN pg_class ON oid = inhrelid
             WHERE inhparent = 'measurement'::regclass AND relname::text < $1",
            &[&name(end)],
        )?;
        for row in &names {
            let name: &str = row.get(0);
            let mut transaction = client.transaction()?;
            lock_tables(&mut transaction)?;
            // The lock excludes writers. If it is not free soon, pruning retries in a minute.
            transaction.batch_execute(&format!(
                "SET LOCAL lock_timeout = '500ms'; LOCK TABLE ONLY measurement, {name}"
            ))?;
            let sql = format!("SELECT EXISTS (SELECT FROM {name})");
            if !transaction.query_one(&sql, &[])?.get::<_, bool>(0) {
                transaction.batch_execute(&format!("DROP TABLE {name}"))?;
            }
            transaction.commit()?;
        }
        days.retain(|day| *day >= end);
        Ok(())
    }
}

/// Returns the name of a day's partition.
fn name(day: i64) -> String {
    let date = start(day).to_string().replace(['-', ':'], "");
    format!("measurement_{}", date.trim_end_matches("T000000Z"))
}

fn start(day: i64) -> Time {
    Time(day * DAY_US)
}
