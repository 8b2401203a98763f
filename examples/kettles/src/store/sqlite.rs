//! The SQLite store. It needs no installation, and syncs its log at each commit.
//!
//! # Theory of operation
//!
//! Totals are sums over the newest measurement of each device, so the store must know that
//! measurement before it can count a new row. It keeps the newest measurements in memory, in 100
//! bytes per device. If they were only on disk, each row would need an update at a random place, at
//! three times the cost of the row itself. Instead, each transaction appends its changes to the
//! table `change`. In the background, a checkpoint copies the changes to the table `device` and
//! deletes them from `change`: a few devices per commit, in table order, so that they share pages.
//! At the start, the store reads both tables.

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags, Statement, Transaction, TransactionBehavior, params};

use read::{
    measurement, read_changes, read_commands, read_devices, read_habits, read_totals, write_change,
};

use super::{Batch, Committed, Loaded, Pruned, Result, Store, StoreError};
use crate::command::Command;
use crate::device::{DeviceId, Latest, Measurement};
use crate::habit::Habit;
use crate::stats::{History, Totals};
use crate::time::Time;

mod read;
#[cfg(test)]
mod tests;

const SCHEMA: &str = include_str!("../../migrations/sqlite/001-kettles.sql");
const HABIT: &str = include_str!("../../migrations/sqlite/002-habit.sql");
const SCHEMA_VERSION: i64 = 1;
/// Maximum time for which changes wait for a checkpoint.
const CHECKPOINT_TIME: Duration = Duration::from_secs(60);
/// Maximum number of devices that wait for a checkpoint: reading that many at a start takes a
/// quarter of a second.
const CHANGES_MAX: usize = 1_000_000;
/// Minimum number of devices to checkpoint per commit, unless twice the commit's rows are more: a
/// checkpoint must proceed faster than new changes come.
const CHECKPOINT_LEN: usize = 500;
/// Length of the write-ahead log, in pages of 4 KiB, at which SQLite copies it into the database.
/// Commits wait meanwhile, so this must not happen four times a second. A page that is changed
/// often is copied only once.
const LOG_LEN: i64 = 4000;
/// Number of rows that one call of [`Store::prune`] deletes.
const PRUNE_LEN: usize = 5000;
/// Maximum time to wait for another program that writes to the file, such as `sqlite3`. It is less
/// than the time limit of the kettles, because their requests wait too.
const BUSY_TIME: Duration = Duration::from_secs(1);
/// Number of rows per INSERT statement. With a statement for each row, half of the cost would be
/// the statement.
const INSERT_LEN: usize = 50;
/// Length of one entry in a row of `change`, in bytes.
const CHANGE_LEN: usize = 48;

/// A store in an SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    connection: Connection,
    totals: Totals,
    pruned: History,
    devices: HashMap<DeviceId, Known>,
    checkpoint: Checkpoint,
    /// Lock that excludes other writers; `None` for a reader.
    _lock: Option<File>,
}

/// The cached state of a device.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    latest: Option<Latest>,
    /// Number of the last transaction that changed the device, and the change's index in it.
    number: i64,
    place: usize,
    /// Checkpoint round in which the device was added to [`Checkpoint::changed`].
    round: u64,
}

/// Progress of copying changes to the table `device`.
#[derive(Debug)]
struct Checkpoint {
    /// Devices whose newest measurement is not yet in the table `device`, without duplicates.
    changed: Vec<DeviceId>,
    /// Number of the current round of `changed`.
    round: u64,
    /// Devices that the current checkpoint still has to copy; the last ones are copied next.
    leaving: Vec<DeviceId>,
    /// Number of devices that the current transaction copies.
    step_len: usize,
    /// Last row of `change` that can be deleted once `leaving` is empty.
    leaving_number: i64,
    /// Number of the last row of `change`.
    number: i64,
    started: Instant,
}

impl SqliteStore {
    /// Opens a store, creating it if necessary.
    ///
    /// # Errors
    ///
    /// If that fails, or another process writes to it.
    pub fn open(path: &Path) -> Result<Self> {
        // Locks the file itself, because it may have several names. SQLite's own locks are of
        // another kind and do not conflict.
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let lock = options.open(path)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::InUse),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        // SQLite treats names such as `:memory:` and `file:…` specially, unless a directory
        // precedes them.
        let connection = Connection::open(std::path::absolute(path)?)?;
        connection.busy_timeout(BUSY_TIME)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "wal_autocheckpoint", LOG_LEN)?;
        let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        match version {
            0 => migrate(&connection)?,
            SCHEMA_VERSION => {}
            _ => return Err(StoreError::Malformed("its tables have another version")),
        }
        connection.execute_batch(HABIT)?;
        Ok(Self::new(connection, Some(lock)))
    }

    /// Opens an existing store for reading, while another process may write.
    ///
    /// # Errors
    ///
    /// If it does not exist or cannot be read.
    pub fn open_to_read(path: &Path) -> Result<Self> {
        let path = std::path::absolute(path)?;
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
                changed: Vec::new(),
                round: 1,
                leaving: Vec::new(),
                step_len: 0,
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
    let count = "SELECT count(*) FROM sqlite_schema";
    if transaction.query_row(count, [], |row| row.get::<_, i64>(0))? > 0 {
        return Err(StoreError::Malformed("the tables of another program"));
    }
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
        let devices = read_devices(&transaction)?.into_iter();
        let known = |latest| Known {
            latest,
            ..Known::default()
        };
        self.devices = devices
            .map(|(device, latest)| (device, known(latest)))
            .collect();
        let checkpoint = &mut self.checkpoint;
        checkpoint.number = read_changes(&transaction, |device, latest| {
            let known = self.devices.entry(device).or_default();
            if std::mem::replace(&mut known.round, checkpoint.round) != checkpoint.round {
                checkpoint.changed.push(device);
            }
            if known.latest.is_none_or(|known| known.time < latest.time) {
                known.latest = Some(latest);
            }
        })?;
        let commands = read_commands(&transaction)?;
        Ok(Loaded {
            totals: self.totals.clone(),
            commands,
        })
    }

    fn commit(&mut self, batch: &Batch) -> Result<Committed> {
        self.checkpoint.begin(batch.measurements.len());
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut writing = Writing {
            transaction: &transaction,
            totals: self.totals.clone(),
            devices: &mut self.devices,
            before: Vec::new(),
            changes: Vec::new(),
            changed: Vec::new(),
            duplicate_count: 0,
        };
        let outcome = writing.write(batch, &self.pruned, &self.checkpoint);
        let written = Instant::now();
        let Writing {
            totals,
            before,
            changes,
            changed,
            duplicate_count,
            ..
        } = writing;
        if let Err(error) = outcome.and_then(|()| Ok(transaction.commit()?)) {
            // After a failure, the cache is restored to the state on disk.
            for (device, known) in before.into_iter().rev() {
                match known {
                    Some(known) => drop(self.devices.insert(device, known)),
                    None => drop(self.devices.remove(&device)),
                }
            }
            return Err(error);
        }
        self.checkpoint.end(!changes.is_empty(), changed);
        self.totals = totals;
        Ok(Committed {
            totals: self.totals.clone(),
            duplicate_count,
            sync_time: written.elapsed(),
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
        // Rows are read in the order of time, so the last row of a device is its newest.
        let mut newest = HashMap::new();
        let mut query = transaction.prepare("SELECT * FROM measurement ORDER BY time, device")?;
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            let measurement = measurement(row)?;
            totals.history.add(&measurement);
            newest.insert(measurement.device, Latest::from(&measurement));
        }
        for (device, latest) in &devices {
            // The rows are authoritative. If pruning has deleted all rows of a device, the recorded
            // newest measurement is used.
            if let Some(latest) = newest.remove(device).or(*latest) {
                totals.replace(None, &latest);
            }
        }
        if newest.is_empty() {
            Ok(totals)
        } else {
            Err(StoreError::Malformed("measurements of an unknown device"))
        }
    }

    fn habits(&mut self) -> Result<Vec<(DeviceId, Habit)>> {
        read_habits(&self.connection)
    }

    fn save_habits(&mut self, habits: &[(DeviceId, Habit)]) -> Result<()> {
        let transaction = self.connection.transaction()?;
        for (device, habit) in habits {
            let mut insert = transaction.prepare_cached(
                "INSERT INTO habit VALUES (?, ?, ?) ON CONFLICT (device) DO UPDATE
                 SET seen = seen | excluded.seen, boiled = boiled | excluded.boiled",
            )?;
            insert.execute(params![device.0, habit.seen, habit.boiled])?;
        }
        Ok(transaction.commit()?)
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

/// A transaction in progress.
struct Writing<'a> {
    transaction: &'a Transaction<'a>,
    totals: Totals,
    devices: &'a mut HashMap<DeviceId, Known>,
    /// State of the changed devices before the transaction; `None` for new devices.
    before: Vec<(DeviceId, Option<Known>)>,
    /// Devices with a newer measurement, without duplicates.
    changes: Vec<(DeviceId, Latest)>,
    /// Devices in `changes` that had not changed since the last checkpoint started.
    changed: Vec<DeviceId>,
    duplicate_count: usize,
}

impl Writing<'_> {
    fn write(&mut self, batch: &Batch, pruned: &History, checkpoint: &Checkpoint) -> Result<()> {
        for device in &batch.devices {
            self.register(*device)?;
        }
        self.measurements(&batch.measurements, checkpoint)?;
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

    /// Adds a device without measurements.
    fn register(&mut self, device: DeviceId) -> Result<()> {
        if self.devices.contains_key(&device) {
            return Ok(());
        }
        self.transaction
            .prepare_cached("INSERT INTO device (id) VALUES (?)")?
            .execute([device.0])?;
        self.devices.insert(device, Known::default());
        self.before.push((device, None));
        self.totals.device_count += 1;
        Ok(())
    }

    fn measurements(&mut self, rows: &[Measurement], checkpoint: &Checkpoint) -> Result<()> {
        // Nearly always, all rows are new. Then the INSERT need not return which rows it has
        // inserted.
        let are_new = self.insert_all(rows)?;
        let mut insert = self.transaction.prepare_cached(&insert_sql(1))?;
        for row in rows {
            if !are_new {
                bind(&mut insert, 0, row)?;
                if insert.raw_execute()? == 0 {
                    self.duplicate_count += 1;
                    continue;
                }
            }
            self.count(row, checkpoint)?;
        }
        Ok(())
    }

    /// Inserts all rows if there are many and none is a duplicate; otherwise inserts none and
    /// returns `false`.
    fn insert_all(&self, rows: &[Measurement]) -> Result<bool> {
        if rows.len() < INSERT_LEN {
            return Ok(false);
        }
        self.transaction.execute_batch("SAVEPOINT rows")?;
        let inserted = write_all(self.transaction, insert_sql, bind, rows)?;
        if inserted < rows.len() {
            self.transaction.execute_batch("ROLLBACK TO rows")?;
        }
        self.transaction.execute_batch("RELEASE rows")?;
        Ok(inserted == rows.len())
    }

    /// Adds an inserted row to the totals.
    fn count(&mut self, measurement: &Measurement, checkpoint: &Checkpoint) -> Result<()> {
        let device = measurement.device;
        let known = match self.devices.get_mut(&device) {
            Some(known) => known,
            None => {
                self.before.push((device, None));
                self.totals.device_count += 1;
                self.devices.entry(device).or_default()
            }
        };
        let before = *known;
        self.totals.take(&mut known.latest, measurement);
        let Some(latest) = known.latest.filter(|_| known.latest != before.latest) else {
            return Ok(());
        };
        let number = checkpoint.number + 1;
        if known.number == number
            && let Some((_, change)) = self.changes.get_mut(known.place)
        {
            *change = latest;
            return Ok(());
        }
        (known.number, known.place) = (number, self.changes.len());
        self.changes.push((device, latest));
        if std::mem::replace(&mut known.round, checkpoint.round) != checkpoint.round {
            self.changed.push(device);
        }
        self.before.push((device, Some(before)));
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

    /// Writes the changes, and checkpoints some devices.
    fn checkpoint(&self, checkpoint: &Checkpoint) -> Result<()> {
        if !self.changes.is_empty() {
            let mut bytes = Vec::with_capacity(self.changes.len() * CHANGE_LEN);
            for (device, latest) in &self.changes {
                write_change(&mut bytes, *device, latest);
            }
            self.transaction
                .prepare_cached("INSERT INTO change (number, latest) VALUES (?, ?)")?
                .execute(params![checkpoint.number + 1, bytes])?;
        }
        let latest = |id: &DeviceId| Some((*id, self.devices.get(id)?.latest?));
        let devices: Vec<_> = checkpoint.next().iter().filter_map(latest).collect();
        write_all(self.transaction, replace_sql, bind_device, &devices)?;
        if checkpoint.is_last() {
            self.transaction
                .prepare_cached("DELETE FROM change WHERE number <= ?")?
                .execute([checkpoint.leaving_number])?;
        }
        Ok(())
    }
}

impl Checkpoint {
    /// Starts a checkpoint if one is due.
    fn begin(&mut self, row_count: usize) {
        self.step_len = CHECKPOINT_LEN.max(2 * row_count);
        let is_due = self.started.elapsed() >= CHECKPOINT_TIME || self.changed.len() >= CHANGES_MAX;
        if self.leaving.is_empty() && is_due {
            self.started = Instant::now();
            self.leaving = std::mem::take(&mut self.changed);
            self.leaving.sort_unstable();
            self.round += 1;
            self.leaving_number = self.number;
        }
    }

    /// Returns the devices that this transaction checkpoints.
    fn next(&self) -> &[DeviceId] {
        let rest = self.leaving.len().saturating_sub(self.step_len);
        self.leaving.get(rest..).unwrap_or_default()
    }

    fn is_last(&self) -> bool {
        (1..=self.step_len).contains(&self.leaving.len())
    }

    /// Updates the cached state after the commit.
    fn end(&mut self, has_changes: bool, changed: Vec<DeviceId>) {
        let rest = self.leaving.len().saturating_sub(self.step_len);
        self.leaving.truncate(rest);
        self.number += i64::from(has_changes);
        self.changed.extend(changed);
    }
}

/// Inserts rows with as few statements as possible; returns how many were inserted or replaced.
fn write_all<T>(
    transaction: &Transaction<'_>,
    sql: fn(usize) -> String,
    bind: fn(&mut Statement<'_>, usize, &T) -> Result<()>,
    rows: &[T],
) -> Result<usize> {
    let (many, rest) = rows.split_at(rows.len() - rows.len() % INSERT_LEN);
    let mut written = 0;
    for (len, rows) in [(INSERT_LEN, many), (1, rest)] {
        let mut statement = transaction.prepare_cached(&sql(len))?;
        for rows in rows.chunks(len) {
            for (index, row) in rows.iter().enumerate() {
                bind(&mut statement, index, row)?;
            }
            written += statement.raw_execute()?;
        }
    }
    Ok(written)
}

/// Returns an INSERT of `row_count` rows that skips duplicates.
fn insert_sql(row_count: usize) -> String {
    let rows = vec!["(?, ?, ?, ?, ?, ?, ?, ?)"; row_count].join(", ");
    format!("INSERT INTO measurement VALUES {rows} ON CONFLICT (time, device) DO NOTHING")
}

/// Binds the values of one row to such a statement.
fn bind(insert: &mut Statement<'_>, row_index: usize, row: &Measurement) -> Result<()> {
    let first = 8 * row_index;
    insert.raw_bind_parameter(first + 1, row.time.0)?;
    insert.raw_bind_parameter(first + 2, row.device.0)?;
    insert.raw_bind_parameter(first + 3, row.charge_now)?;
    insert.raw_bind_parameter(first + 4, row.charge_full)?;
    insert.raw_bind_parameter(first + 5, row.charge_rate)?;
    insert.raw_bind_parameter(first + 6, row.ambient_temp)?;
    insert.raw_bind_parameter(first + 7, row.water_temp)?;
    insert.raw_bind_parameter(first + 8, row.water_level)?;
    Ok(())
}

/// Returns an SQL statement that copies `row_count` devices to the table `device`.
fn replace_sql(row_count: usize) -> String {
    let rows = vec!["(?, ?, ?, ?, ?, ?)"; row_count].join(", ");
    format!("INSERT OR REPLACE INTO device VALUES {rows}")
}

fn bind_device(
    replace: &mut Statement<'_>,
    row_index: usize,
    (device, latest): &(DeviceId, Latest),
) -> Result<()> {
    let first = 6 * row_index;
    replace.raw_bind_parameter(first + 1, device.0)?;
    replace.raw_bind_parameter(first + 2, latest.time.0)?;
    replace.raw_bind_parameter(first + 3, latest.charge_now)?;
    replace.raw_bind_parameter(first + 4, latest.water_level)?;
    replace.raw_bind_parameter(first + 5, latest.ambient_temp)?;
    replace.raw_bind_parameter(first + 6, latest.water_temp)?;
    Ok(())
}
