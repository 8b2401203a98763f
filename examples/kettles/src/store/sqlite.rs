//! The store that needs no installation: SQLite, with a log that is synchronised at each commit.
//!
//! # Theory of operation
//!
//! Totals are sums over the newest measurement of each device, so that has to be known before a row
//! can be counted. It is kept in memory, 100 bytes for a device. On disk it would be an update at a
//! random place for each row, which costs three times the row itself. So each transaction appends
//! what it changed to the table `change` instead, and now and then, some devices with each commit,
//! `device` is brought up to date and `change` made shorter. A start reads both.

use std::collections::{HashMap, HashSet};
use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags, Row, Transaction, TransactionBehavior, params};

use super::{Batch, Committed, Loaded, Pruned, Result, Store, StoreError};
use crate::command::Command;
use crate::device::{DeviceId, Latest, Measurement};
use crate::stats::{History, Totals};
use crate::time::Time;

#[cfg(test)]
mod tests;

const SCHEMA: &str = include_str!("../../migrations/sqlite/001-kettles.sql");
const SCHEMA_VERSION: i64 = 1;
/// How long changes may wait for `device` to be brought up to date.
const CHECKPOINT_TIME: Duration = Duration::from_secs(60);
/// How many changes may wait: reading so many back takes some 50 ms.
const CHANGES_MAX: usize = 200_000;
/// Devices that are brought up to date with one commit, in about 6 ms.
const CHECKPOINT_LEN: usize = 2000;
/// Rows that one call of [`Store::prune`] deletes.
const PRUNE_LEN: usize = 5000;
/// How long a commit waits for somebody else who writes to the file, such as `sqlite3`. Kettles
/// wait meanwhile, so it is less than they are made to wait.
const BUSY_TIME: Duration = Duration::from_secs(1);
/// Bytes of one entry of a row of `change`.
const CHANGE_LEN: usize = 48;

/// Measurements in a file of SQLite.
#[derive(Debug)]
pub struct SqliteStore {
    connection: Connection,
    totals: Totals,
    pruned: History,
    devices: HashMap<DeviceId, Option<Latest>>,
    checkpoint: Checkpoint,
    /// Keeps other writers out; none for a reader.
    _lock: Option<File>,
}

/// How far `device` is behind.
#[derive(Debug)]
struct Checkpoint {
    /// Devices whose newest measurement is not in `device`.
    changed: HashSet<DeviceId>,
    /// Those of them that are on their way there, until none is left.
    leaving: Vec<DeviceId>,
    /// The last row of `change` that is of no use when all of `leaving` have left.
    leaving_number: i64,
    /// The last row of `change`.
    number: i64,
    started: Instant,
}

impl SqliteStore {
    /// Opens a store, which is made if it is not there.
    ///
    /// # Errors
    ///
    /// If that cannot be, or another process writes to it.
    pub fn open(path: &Path) -> Result<Self> {
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let lock = File::create(lock_path)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::InUse),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY_TIME)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        match version {
            0 => migrate(&connection)?,
            SCHEMA_VERSION => {}
            _ => return Err(StoreError::Malformed("another version of its tables")),
        }
        Ok(Self::new(connection, Some(lock)))
    }

    /// Opens a store to look at it, while another process may write.
    ///
    /// # Errors
    ///
    /// If it is not there or cannot be read.
    pub fn open_to_read(path: &Path) -> Result<Self> {
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        Ok(Self::new(connection, None))
    }

    fn new(connection: Connection, lock: Option<File>) -> Self {
        Self {
            connection,
            totals: Totals::default(),
            pruned: History::default(),
            devices: HashMap::new(),
            checkpoint: Checkpoint {
                changed: HashSet::new(),
                leaving: Vec::new(),
                leaving_number: 0,
                number: 0,
                started: Instant::now(),
            },
            _lock: lock,
        }
    }
}

fn migrate(connection: &Connection) -> Result<()> {
    let transaction = connection.unchecked_transaction()?;
    transaction.execute_batch(SCHEMA)?;
    transaction.execute(
        "INSERT INTO totals (id, totals, pruned) VALUES (1, ?, ?)",
        params![Totals::default().to_bytes(), History::default().to_bytes()],
    )?;
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    Ok(transaction.commit()?)
}

impl Store for SqliteStore {
    fn load(&mut self) -> Result<Loaded> {
        let transaction = self.connection.transaction()?;
        (self.totals, self.pruned) = read_totals(&transaction)?;
        self.devices = read_devices(&transaction)?;
        let checkpoint = &mut self.checkpoint;
        checkpoint.number = read_changes(&transaction, |device, latest| {
            checkpoint.changed.insert(device);
            let known = self.devices.entry(device).or_default();
            if known.is_none_or(|known| known.time < latest.time) {
                *known = Some(latest);
            }
        })?;
        let commands = read_commands(&transaction)?;
        Ok(Loaded {
            totals: self.totals.clone(),
            commands,
        })
    }

    fn commit(&mut self, batch: &Batch) -> Result<Committed> {
        self.checkpoint.begin();
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut writing = Writing {
            transaction: &transaction,
            totals: self.totals.clone(),
            devices: &mut self.devices,
            before: Vec::new(),
            changes: Vec::new(),
            duplicate_count: 0,
        };
        let outcome = writing.write(batch, &self.pruned, &self.checkpoint);
        let Writing {
            totals,
            before,
            changes,
            duplicate_count,
            ..
        } = writing;
        if let Err(error) = outcome.and_then(|()| Ok(transaction.commit()?)) {
            // What is in memory has to be what is on disk.
            for (device, latest) in before.into_iter().rev() {
                match latest {
                    Some(latest) => drop(self.devices.insert(device, latest)),
                    None => drop(self.devices.remove(&device)),
                }
            }
            return Err(error);
        }
        self.checkpoint.end(changes);
        self.totals = totals;
        Ok(Committed {
            totals: self.totals.clone(),
            duplicate_count,
        })
    }

    fn recount(&mut self) -> Result<Totals> {
        let transaction = self.connection.transaction()?;
        let (_, pruned) = read_totals(&transaction)?;
        let mut devices = read_devices(&transaction)?;
        read_changes(&transaction, |device, latest| {
            let known = devices.entry(device).or_default();
            if known.is_none_or(|known| known.time < latest.time) {
                *known = Some(latest);
            }
        })?;
        let mut totals = Totals {
            history: pruned,
            device_count: devices.len() as u64,
            ..Totals::default()
        };
        // In the order of time, so the last row of a device is its newest.
        let mut newest = HashMap::new();
        let mut query = transaction.prepare("SELECT * FROM measurement ORDER BY time, device")?;
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            let measurement = measurement(row)?;
            totals.history.add(&measurement);
            newest.insert(measurement.device, Latest::from(&measurement));
        }
        for (device, latest) in &devices {
            // The rows are believed first; a device may have none left.
            if let Some(latest) = newest.remove(device).or(*latest) {
                totals.replace(None, &latest);
            }
        }
        if newest.is_empty() {
            Ok(totals)
        } else {
            Err(StoreError::Malformed("measurements of no device"))
        }
    }

    fn prune(&mut self, before: Time) -> Result<Pruned> {
        let transaction = self.connection.transaction()?;
        let mut pruned = self.pruned.clone();
        let mut last = None;
        let mut row_count = 0;
        {
            let mut query = transaction.prepare_cached(
                "SELECT * FROM measurement WHERE time < ? ORDER BY time, device LIMIT ?",
            )?;
            let mut rows = query.query(params![before.0, PRUNE_LEN as i64])?;
            while let Some(row) = rows.next()? {
                let measurement = measurement(row)?;
                pruned.add(&measurement);
                row_count += 1;
                last = Some(measurement);
            }
        }
        if let Some(last) = last {
            transaction.execute(
                "DELETE FROM measurement WHERE (time, device) <= (?, ?)",
                params![last.time.0, last.device.0],
            )?;
            transaction.execute("UPDATE totals SET pruned = ?", [pruned.to_bytes()])?;
            transaction.commit()?;
            self.pruned = pruned;
        }
        Ok(Pruned {
            row_count,
            is_done: row_count < PRUNE_LEN,
        })
    }
}

/// A transaction under way.
struct Writing<'a> {
    transaction: &'a Transaction<'a>,
    totals: Totals,
    devices: &'a mut HashMap<DeviceId, Option<Latest>>,
    /// What was known of the devices before; `None` of those that were not.
    before: Vec<(DeviceId, Option<Option<Latest>>)>,
    /// Devices with a newer measurement.
    changes: Vec<DeviceId>,
    duplicate_count: usize,
}

impl Writing<'_> {
    fn write(&mut self, batch: &Batch, pruned: &History, checkpoint: &Checkpoint) -> Result<()> {
        for device in &batch.devices {
            self.register(*device)?;
        }
        for measurement in &batch.measurements {
            self.measurement(measurement)?;
        }
        for command in &batch.commands {
            self.register(command.device)?;
            self.command(command)?;
        }
        for (device, time) in &batch.confirmed {
            self.transaction
                .prepare_cached(
                    "UPDATE command SET status = (time = ?2)
                     WHERE device = ?1 AND time <= ?2 AND status IS NULL",
                )?
                .execute(params![device.0, time.0])?;
        }
        self.checkpoint(checkpoint)?;
        self.transaction
            .prepare_cached("UPDATE totals SET totals = ?, pruned = ?")?
            .execute(params![self.totals.to_bytes(), pruned.to_bytes()])?;
        Ok(())
    }

    /// Makes a device known.
    fn register(&mut self, device: DeviceId) -> Result<()> {
        if self.devices.contains_key(&device) {
            return Ok(());
        }
        self.transaction
            .prepare_cached("INSERT INTO device (id) VALUES (?)")?
            .execute([device.0])?;
        self.devices.insert(device, None);
        self.before.push((device, None));
        self.totals.device_count += 1;
        Ok(())
    }

    fn measurement(&mut self, measurement: &Measurement) -> Result<()> {
        self.register(measurement.device)?;
        let inserted = self
            .transaction
            .prepare_cached(
                "INSERT INTO measurement VALUES (?, ?, ?, ?, ?, ?, ?, ?)
                 ON CONFLICT (time, device) DO NOTHING",
            )?
            .execute(params![
                measurement.time.0,
                measurement.device.0,
                measurement.charge_now,
                measurement.charge_full,
                measurement.charge_rate,
                measurement.ambient_temp,
                measurement.water_temp,
                measurement.water_level,
            ])?;
        if inserted == 0 {
            self.duplicate_count += 1;
            return Ok(());
        }
        let latest = self.devices.entry(measurement.device).or_default();
        let before = *latest;
        self.totals.take(latest, measurement);
        if *latest != before {
            self.before.push((measurement.device, Some(before)));
            self.changes.push(measurement.device);
        }
        Ok(())
    }

    fn command(&self, command: &Command) -> Result<()> {
        self.transaction
            .prepare_cached(
                "INSERT INTO command (device, time, charge, fill, flush) VALUES (?, ?, ?, ?, ?)
                 ON CONFLICT (device, time) DO UPDATE SET
                 charge = excluded.charge, fill = excluded.fill, flush = excluded.flush,
                 status = NULL",
            )?
            .execute(params![
                command.device.0,
                command.time.0,
                command.charge,
                command.fill,
                command.flush,
            ])?;
        Ok(())
    }

    /// Notes what has changed, and brings some devices up to date.
    fn checkpoint(&self, checkpoint: &Checkpoint) -> Result<()> {
        let latest_of = |device: &DeviceId| self.devices.get(device).copied().flatten();
        if !self.changes.is_empty() {
            let mut bytes = Vec::with_capacity(self.changes.len() * CHANGE_LEN);
            for device in &self.changes {
                if let Some(latest) = latest_of(device) {
                    write_change(&mut bytes, *device, &latest);
                }
            }
            self.transaction
                .prepare_cached("INSERT INTO change (number, latest) VALUES (?, ?)")?
                .execute(params![checkpoint.number + 1, bytes])?;
        }
        let mut update = self.transaction.prepare_cached(
            "UPDATE device SET time = ?, charge_now = ?, water_level = ?, ambient_temp = ?,
             water_temp = ? WHERE id = ?",
        )?;
        for device in checkpoint.next() {
            if let Some(latest) = latest_of(device) {
                update.execute(params![
                    latest.time.0,
                    latest.charge_now,
                    latest.water_level,
                    latest.ambient_temp,
                    latest.water_temp,
                    device.0,
                ])?;
            }
        }
        if checkpoint.is_last() {
            self.transaction
                .prepare_cached("DELETE FROM change WHERE number <= ?")?
                .execute([checkpoint.leaving_number])?;
        }
        Ok(())
    }
}

impl Checkpoint {
    /// Starts to bring devices up to date if it is time.
    fn begin(&mut self) {
        let is_due = self.started.elapsed() >= CHECKPOINT_TIME || self.changed.len() >= CHANGES_MAX;
        if self.leaving.is_empty() && is_due {
            self.started = Instant::now();
            self.leaving = self.changed.drain().collect();
            self.leaving_number = self.number;
        }
    }

    /// The devices to bring up to date with this transaction.
    fn next(&self) -> &[DeviceId] {
        let rest = self.leaving.len().saturating_sub(CHECKPOINT_LEN);
        self.leaving.get(rest..).unwrap_or_default()
    }

    fn is_last(&self) -> bool {
        (1..=CHECKPOINT_LEN).contains(&self.leaving.len())
    }

    /// The transaction is durable.
    fn end(&mut self, changes: Vec<DeviceId>) {
        let rest = self.leaving.len().saturating_sub(CHECKPOINT_LEN);
        self.leaving.truncate(rest);
        if !changes.is_empty() {
            self.number += 1;
            self.changed.extend(changes);
        }
    }
}

fn read_totals(transaction: &Transaction<'_>) -> Result<(Totals, History)> {
    let (totals, pruned) =
        transaction.query_row("SELECT totals, pruned FROM totals", [], |row| {
            Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, Vec<u8>>(1)?))
        })?;
    let totals = Totals::from_bytes(&totals).ok_or(StoreError::Malformed("totals"))?;
    let pruned = History::from_bytes(&pruned).ok_or(StoreError::Malformed("what was pruned"))?;
    Ok((totals, pruned))
}

fn read_devices(transaction: &Transaction<'_>) -> Result<HashMap<DeviceId, Option<Latest>>> {
    let mut query = transaction.prepare(
        "SELECT id, time, charge_now, water_level, ambient_temp, water_temp FROM device",
    )?;
    let device = |row: &Row<'_>| -> rusqlite::Result<_> {
        let latest = match row.get(1)? {
            Some(time) => Some(Latest {
                time: Time(time),
                charge_now: row.get(2)?,
                water_level: row.get(3)?,
                ambient_temp: row.get(4)?,
                water_temp: row.get(5)?,
            }),
            None => None,
        };
        Ok((DeviceId(row.get(0)?), latest))
    };
    Ok(query
        .query_map([], device)?
        .collect::<rusqlite::Result<_>>()?)
}

/// Reads what is not in `device`; returns the number of the last row.
fn read_changes(
    transaction: &Transaction<'_>,
    mut found: impl FnMut(DeviceId, Latest),
) -> Result<i64> {
    let mut query = transaction.prepare("SELECT number, latest FROM change ORDER BY number")?;
    let mut rows = query.query([])?;
    let mut number = 0;
    while let Some(row) = rows.next()? {
        number = row.get(0)?;
        let bytes: Vec<u8> = row.get(1)?;
        for entry in bytes.chunks(CHANGE_LEN) {
            let (device, latest) = read_change(entry).ok_or(StoreError::Malformed("changes"))?;
            found(device, latest);
        }
    }
    Ok(number)
}

fn write_change(bytes: &mut Vec<u8>, device: DeviceId, latest: &Latest) {
    bytes.extend_from_slice(&device.0);
    bytes.extend_from_slice(&latest.time.0.to_le_bytes());
    bytes.extend_from_slice(&latest.charge_now.to_le_bytes());
    bytes.extend_from_slice(&latest.water_level.to_le_bytes());
    bytes.extend_from_slice(&latest.ambient_temp.to_le_bytes());
    bytes.extend_from_slice(&latest.water_temp.to_le_bytes());
}

fn read_change(bytes: &[u8]) -> Option<(DeviceId, Latest)> {
    let (device, bytes) = bytes.split_first_chunk()?;
    let (time, bytes) = bytes.split_first_chunk()?;
    let (charge_now, bytes) = bytes.split_first_chunk()?;
    let (water_level, bytes) = bytes.split_first_chunk()?;
    let (ambient_temp, bytes) = bytes.split_first_chunk()?;
    let latest = Latest {
        time: Time(i64::from_le_bytes(*time)),
        charge_now: i32::from_le_bytes(*charge_now),
        water_level: i32::from_le_bytes(*water_level),
        ambient_temp: f64::from_le_bytes(*ambient_temp),
        water_temp: f64::from_le_bytes(bytes.try_into().ok()?),
    };
    Some((DeviceId(*device), latest))
}

fn read_commands(transaction: &Transaction<'_>) -> Result<Vec<Command>> {
    let mut query = transaction
        .prepare("SELECT device, time, charge, fill, flush FROM command WHERE status IS NULL")?;
    let command = |row: &Row<'_>| -> rusqlite::Result<_> {
        Ok(Command {
            device: DeviceId(row.get(0)?),
            time: Time(row.get(1)?),
            charge: row.get(2)?,
            fill: row.get(3)?,
            flush: row.get(4)?,
        })
    };
    Ok(query
        .query_map([], command)?
        .collect::<rusqlite::Result<_>>()?)
}

/// A row of all columns in the order of the table.
fn measurement(row: &Row<'_>) -> rusqlite::Result<Measurement> {
    Ok(Measurement {
        time: Time(row.get(0)?),
        device: DeviceId(row.get(1)?),
        charge_now: row.get(2)?,
        charge_full: row.get(3)?,
        charge_rate: row.get(4)?,
        ambient_temp: row.get(5)?,
        water_temp: row.get(6)?,
        water_level: row.get(7)?,
    })
}
