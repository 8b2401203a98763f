//! The store that needs no installation: SQLite, with a log that is synchronised at each commit.
//!
//! # Theory of operation
//!
//! Totals are sums over the newest measurement of each device, so that has to be known before a row
//! can be counted. It is kept in memory, 100 bytes for a device. On disk it would be an update at a
//! random place for each row, which costs three times the row itself. So each transaction appends
//! what it changed to the table `change` instead, a kettle's first measurement included. Once in a
//! while `device` is brought up to date and `change` made shorter: some devices with each commit,
//! in the order of the table, so that they share pages: one at a random place writes a page for
//! itself. A start reads both.

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags, Statement, Transaction, TransactionBehavior, params};

use read::{measurement, read_changes, read_commands, read_devices, read_totals, write_change};

use super::{Batch, Committed, Loaded, Pruned, Result, Store, StoreError};
use crate::command::Command;
use crate::device::{DeviceId, Latest, Measurement};
use crate::stats::{History, Totals};
use crate::time::Time;

mod read;
#[cfg(test)]
mod tests;

const SCHEMA: &str = include_str!("../../migrations/sqlite/001-kettles.sql");
const SCHEMA_VERSION: i64 = 1;
/// How long changes may wait for `device` to be brought up to date.
const CHECKPOINT_TIME: Duration = Duration::from_secs(60);
/// How many devices may wait for that: reading so many back takes a quarter of a second.
const CHANGES_MAX: usize = 1_000_000;
/// Devices that are brought up to date with one commit, or twice its rows: more than may come new.
const CHECKPOINT_LEN: usize = 500;
/// Pages of the log, of 4 KiB, after which SQLite brings it into the file: all that comes meanwhile
/// waits, so not four times a second, and what was changed often is brought once.
const LOG_LEN: i64 = 4000;
/// Rows that one call of [`Store::prune`] deletes.
const PRUNE_LEN: usize = 5000;
/// How long a commit waits for somebody else who writes to the file, such as `sqlite3`. Kettles
/// wait meanwhile, so it is less than they are made to wait.
const BUSY_TIME: Duration = Duration::from_secs(1);
/// Rows of one statement: the work around a row is half of it where each has a statement.
const INSERT_LEN: usize = 50;
/// Bytes of one entry of a row of `change`.
const CHANGE_LEN: usize = 48;

/// Measurements in a file of SQLite.
#[derive(Debug)]
pub struct SqliteStore {
    connection: Connection,
    totals: Totals,
    pruned: History,
    devices: HashMap<DeviceId, Known>,
    checkpoint: Checkpoint,
    /// Keeps other writers out; none for a reader.
    _lock: Option<File>,
}

/// What is known of a device.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    latest: Option<Latest>,
    /// The last transaction that changed it, and its place among the changes of that.
    number: i64,
    place: usize,
    /// It is in [`Checkpoint::changed`] if that is of this round.
    round: u64,
}

/// How far `device` is behind.
#[derive(Debug)]
struct Checkpoint {
    /// Devices whose newest measurement is not in `device`, each once.
    changed: Vec<DeviceId>,
    /// How often `changed` was begun anew.
    round: u64,
    /// Those of them that are on their way there, until none is left; the next are at the end.
    leaving: Vec<DeviceId>,
    /// How many of those leave with this transaction.
    step_len: usize,
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
        // The file itself, which may have several names. SQLite's locks are of another kind.
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let lock = options.open(path)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::InUse),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        // SQLite takes `:memory:` and `file:…` for something else than files, unless they begin so.
        let connection = Connection::open(std::path::absolute(path)?)?;
        connection.busy_timeout(BUSY_TIME)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "wal_autocheckpoint", LOG_LEN)?;
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
        return Err(StoreError::Malformed("tables of another program"));
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
            // What is in memory has to be what is on disk.
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
    devices: &'a mut HashMap<DeviceId, Known>,
    /// What was known of the devices before; `None` of those that were not.
    before: Vec<(DeviceId, Option<Known>)>,
    /// Devices with a newer measurement, each once.
    changes: Vec<(DeviceId, Latest)>,
    /// Those of them that had none since the last checkpoint began.
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

    /// Makes a device known that has measured nothing yet.
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
        // Nearly always all are new, and then nobody has to say which.
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

    /// Inserts all rows, if there are many and none is there already; else none.
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

    /// Counts a row that was inserted.
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

    /// Notes what has changed, and brings some devices up to date.
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
    /// Starts to bring devices up to date if it is time.
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

    /// The devices to bring up to date with this transaction.
    fn next(&self) -> &[DeviceId] {
        let rest = self.leaving.len().saturating_sub(self.step_len);
        self.leaving.get(rest..).unwrap_or_default()
    }

    fn is_last(&self) -> bool {
        (1..=self.step_len).contains(&self.leaving.len())
    }

    /// The transaction is durable.
    fn end(&mut self, has_changes: bool, changed: Vec<DeviceId>) {
        let rest = self.leaving.len().saturating_sub(self.step_len);
        self.leaving.truncate(rest);
        self.number += i64::from(has_changes);
        self.changed.extend(changed);
    }
}

/// Writes rows with as few statements as may be, and returns how many were inserted or replaced.
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

/// Inserts so many rows, but for those that are there.
fn insert_sql(row_count: usize) -> String {
    let rows = vec!["(?, ?, ?, ?, ?, ?, ?, ?)"; row_count].join(", ");
    format!("INSERT INTO measurement VALUES {rows} ON CONFLICT (time, device) DO NOTHING")
}

/// Binds the values of one of the rows of such a statement.
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

/// Brings so many devices up to date.
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
