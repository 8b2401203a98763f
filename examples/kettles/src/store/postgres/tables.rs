//! The tables, and how measurements are divided by time.

use std::collections::HashSet;

use postgres::{Client, Transaction};

use super::LOCK;
use crate::store::Result;
use crate::time::Time;

const TABLES: &str = include_str!("../../../migrations/postgres/001-kettles.sql");
const MEASUREMENT: &str = include_str!("../../../migrations/postgres/002-measurement.sql");

/// Locked while tables are made; writers lock their number, from 0 on.
const LOCK_TABLES: i32 = -1;
const DAY_US: i64 = 86_400_000_000;

/// How measurements are divided by time, so that old ones go with their pages.
pub(super) enum Division {
    /// A partition for each day; those that are known to be there, as days since 1970.
    Days(HashSet<i64>),
    /// `TimescaleDB` sees to that.
    Hypertable,
}

/// Makes the tables, where they are not there.
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

/// Whether `TimescaleDB` is there and may be used, and then it is.
fn make_hypertable(transaction: &mut Transaction<'_>) -> Result<bool> {
    // A setting of what has to be loaded with the server: without that, to create the extension
    // would cost the connection.
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
            crate::log::error("TimescaleDB may not be used, but partitions may", &error);
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
    /// Makes the partitions that measurements of these times need.
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
            // They come sorted.
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

    /// Drops what holds nothing but deleted days.
    pub(super) fn drop_empty(&mut self, client: &mut Client, before: Time) -> Result<()> {
        // A day more: measurements that were just not too old may be on their way.
        let end = before.0.div_euclid(DAY_US) - 1;
        let Self::Days(days) = self else {
            let sql = "SELECT drop_chunks('measurement', older_than => $1::timestamptz)";
            client.query(sql, &[&start(end)])?;
            return Ok(());
        };
        // All names are of one length, so they are in the order of their days.
        let names = client.query(
            "SELECT relname::text FROM pg_inherits JOIN pg_class ON oid = inhrelid
             WHERE inhparent = 'measurement'::regclass AND relname::text < $1",
            &[&name(end)],
        )?;
        for row in &names {
            let name: &str = row.get(0);
            let mut transaction = client.transaction()?;
            lock_tables(&mut transaction)?;
            // Nobody writes from here on; whoever does not get this soon tries in a minute again.
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

/// The partition of a day.
fn name(day: i64) -> String {
    let date = start(day).to_string().replace(['-', ':'], "");
    format!("measurement_{}", date.trim_end_matches("T000000Z"))
}

fn start(day: i64) -> Time {
    Time(day * DAY_US)
}
