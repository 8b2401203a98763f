//! The PostgreSQL store. Several servers may write to the same database.
//!
//! # Theory of operation
//!
//! A transaction inserts rows, updates the newest measurement of each device, and adds the changes
//! to this writer's row of `totals`. Each writer locks its row of `totals` while connected, so no
//! other writer changes it. Totals contain sums over the newest measurement of each device, so a
//! writer must know a device's newest measurement before it stores a newer one.
//!
//! A writer caches the newest measurements ([`Memory`]), and nearly always no other writer has
//! stored measurements of the same devices. So it assumes that the cache is right and runs one
//! statement, a transaction of its own, on the condition that the newest measurements in the
//! database have the cached times. If they do not, or a row is a duplicate, the statement fails and
//! changes nothing. In that case, and for devices that are not cached, the writer locks the
//! devices, reads their newest measurements, and stores the batch in the same transaction. The
//! totals are exact because:
//!
//! * The time of a device's newest measurement only grows, and a device has one measurement per
//!   time. So if the time in the database equals the cached one, the cached measurement is still
//!   the newest, whatever else was written since.
//! * The cache is updated before the statement runs. If the statement fails, all devices of the
//!   batch are read again; if its outcome is unknown, the cache is dropped with the connection.
//! * After any failure the connection is dropped, and the next commit opens a new one and reads the
//!   totals again. If the outcome of a commit is unknown, its kettles get 503 and retry, and
//!   duplicates are not counted.
//!
//! Writers lock devices by ID and then rows by time, so they do not deadlock. If the database
//! chooses another order after all, it aborts one of the two transactions, and its writer tries
//! again with locks.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use postgres::error::SqlState;
use postgres::fallible_iterator::FallibleIterator as _;
use postgres::{Client, Config, IsolationLevel, NoTls, Row, Transaction};

use batch::{Prepared, Statements, device};
use memory::Memory;
use tables::{Division, LOCK};

use super::{Batch, Committed, Loaded, Pruned, Result, Store, StoreError};
use crate::command::Command;
use crate::device::{DeviceId, Latest, Measurement};
use crate::habit::Habit;
use crate::stats::{History, Totals};
use crate::time::Time;

mod batch;
mod memory;
mod tables;
mod values;

/// Maximum number of concurrent writers.
const WRITER_COUNT_MAX: i32 = 64;
/// Number of rows that one call of [`Store::prune`] deletes.
const PRUNE_LEN: i64 = 5000;
/// Maximum number of attempts for a batch that conflicts with another writer.
const TRIES_MAX: u32 = 3;
/// Socket directory of Debian's server, the default for a URL without a host.
const SOCKET_FOLDER: &str = "/var/run/postgresql";

/// A store in PostgreSQL.
pub struct PostgresStore {
    config: Config,
    is_reader: bool,
    session: Option<Session>,
}

impl PostgresStore {
    /// Opens a store, creating it if necessary.
    ///
    /// `url` is a URL as for `psql`; without a host it means this machine's socket.
    ///
    /// # Errors
    ///
    /// If that fails.
    pub fn open(url: &str) -> Result<Self> {
        Self::connect(url, false)
    }

    /// Opens an existing store for reading.
    ///
    /// # Errors
    ///
    /// If it does not exist or cannot be read.
    pub fn open_to_read(url: &str) -> Result<Self> {
        Self::connect(url, true)
    }

    fn connect(url: &str, is_reader: bool) -> Result<Self> {
        let config = config(url)?;
        let mut store = Self {
            config,
            is_reader,
            session: None,
        };
        store.session()?;
        Ok(store)
    }

    /// Returns the current session; opens a new one if the last one failed.
    fn session(&mut self) -> Result<&mut Session> {
        let session = match self.session.take() {
            Some(session) => session,
            None if self.is_reader => Session::reader(&self.config)?,
            None => Session::writer(&self.config)?,
        };
        Ok(self.session.insert(session))
    }

    /// Runs `action` in a session, and drops the session if that fails.
    fn with<T>(&mut self, action: impl Fn(&mut Session) -> Result<T>) -> Result<T> {
        let mut try_count = 1;
        loop {
            match action(self.session()?) {
                Err(error) => {
                    self.session = None;
                    if try_count == TRIES_MAX || !may_pass(&error) {
                        return Err(error);
                    }
                    try_count += 1;
                }
                done => return done,
            }
        }
    }
}

fn config(url: &str) -> Result<Config> {
    let mut config: Config = url.parse()?;
    if config.get_hosts().is_empty() {
        config.host_path(SOCKET_FOLDER);
    }
    config.application_name("kettles");
    Ok(config)
}

/// Connects to the database at `url`.
///
/// # Errors
///
/// If the connection fails.
pub(crate) fn client(url: &str) -> Result<Client> {
    Ok(config(url)?.connect(NoTls)?)
}

/// Returns whether an immediate retry may succeed, because another writer interfered and the
/// transaction changed nothing. The other writer may have dropped a partition that this session
/// believed to exist; a new session knows no partitions.
fn may_pass(error: &StoreError) -> bool {
    let StoreError::Postgres(error) = error else {
        return false;
    };
    let passing = [
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::T_R_SERIALIZATION_FAILURE,
        // There is no other CHECK.
        SqlState::CHECK_VIOLATION,
    ];
    error.code().is_some_and(|code| passing.contains(code))
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").finish_non_exhaustive()
    }
}

impl Store for PostgresStore {
    fn load(&mut self) -> Result<Loaded> {
        self.with(|session| {
            let mut transaction = snapshot(&mut session.client)?;
            Ok(Loaded {
                totals: read_totals(&mut transaction)?.0,
                commands: read_commands(&mut transaction)?,
            })
        })
    }

    fn look(&mut self) -> Result<Option<Loaded>> {
        self.load().map(Some)
    }

    fn habits(&mut self) -> Result<Vec<(DeviceId, Habit)>> {
        self.with(|session| {
            let rows = session
                .client
                .query("SELECT device_id, seen, boiled FROM habit", &[])?;
            let bits = |row: &Row, column| row.get::<_, i32>(column).cast_unsigned();
            let habit = |row: &Row| {
                let (seen, boiled) = (bits(row, 1), bits(row, 2));
                (row.get(0), Habit { seen, boiled })
            };
            Ok(rows.iter().map(habit).collect())
        })
    }

    fn save_habits(&mut self, habits: &[(DeviceId, Habit)]) -> Result<()> {
        let devices: Vec<_> = habits.iter().map(|(device, _)| *device).collect();
        let seen = habits.iter().map(|(_, habit)| habit.seen.cast_signed());
        let boiled = habits.iter().map(|(_, habit)| habit.boiled.cast_signed());
        let (seen, boiled): (Vec<_>, Vec<_>) = (seen.collect(), boiled.collect());
        self.with(|session| {
            session.client.execute(
                "INSERT INTO habit SELECT * FROM unnest($1::uuid[], $2::integer[], $3::integer[])
                 ON CONFLICT (device_id) DO UPDATE SET seen = habit.seen | excluded.seen,
                 boiled = habit.boiled | excluded.boiled",
                &[&devices, &seen, &boiled],
            )?;
            Ok(())
        })
    }

    fn commit(&mut self, batch: &Batch) -> Result<Committed> {
        self.with(|session| session.commit(batch))
    }

    fn recount(&mut self) -> Result<Totals> {
        self.with(|session| recount(snapshot(&mut session.client)?))
    }

    fn prune(&mut self, before: Time) -> Result<Pruned> {
        self.with(|session| session.prune(before))
    }
}

struct Session {
    client: Client,
    /// Number of this writer's row of `totals`.
    writer: i32,
    /// The totals in that row.
    totals: Totals,
    pruned: History,
    /// Partitioning of measurements by time.
    division: Division,
    /// Prepared statements.
    statements: Statements,
    memory: Memory,
}

impl Session {
    fn reader(config: &Config) -> Result<Self> {
        Ok(Self {
            client: config.connect(NoTls)?,
            writer: -1,
            totals: Totals::default(),
            pruned: History::default(),
            division: Division::Hypertable,
            statements: Statements::default(),
            memory: Memory::default(),
        })
    }

    fn writer(config: &Config) -> Result<Self> {
        let mut session = Self::reader(config)?;
        let client = &mut session.client;
        // A kettle's response promises that its measurement is on disk.
        client.batch_execute("SET synchronous_commit = on")?;
        // Makes plans use the primary key for lookups, however many rows a table has when the plan
        // is made.
        client.batch_execute(
            "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off;
             SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off",
        )?;
        session.division = tables::migrate(client)?;
        session.writer = lock_writer(client)?;
        let empty = (Totals::default().to_bytes(), History::default().to_bytes());
        client.execute(
            "INSERT INTO totals VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
            &[&session.writer, &empty.0, &empty.1],
        )?;
        let row = client.query_one(
            "SELECT totals, pruned FROM totals WHERE writer = $1",
            &[&session.writer],
        )?;
        (session.totals, session.pruned) = totals(&row)?;
        Ok(session)
    }

    fn commit(&mut self, batch: &Batch) -> Result<Committed> {
        let times = batch.measurements.iter().map(|it| it.time);
        self.division.make_room(&mut self.client, times)?;
        if let Some(committed) = self.guess(batch)? {
            return Ok(committed);
        }
        // Nearly always, all rows are new. Then the INSERT need not return which rows it has
        // inserted.
        match self.try_commit(batch, false)? {
            Some(committed) => Ok(committed),
            None => {
                let committed = self.try_commit(batch, true)?;
                Ok(committed.expect("duplicates were allowed"))
            }
        }
    }

    /// Commits a batch with one statement if the database matches this writer's cache; otherwise
    /// changes nothing and returns `None`.
    fn guess(&mut self, batch: &Batch) -> Result<Option<Committed>> {
        let Some(guess) = self.memory.guess(batch, &self.totals) else {
            return Ok(None);
        };
        let stored = guess.store(&mut self.client, &mut self.statements, self.writer)?;
        self.memory.judge(stored.is_some());
        let Some(stored) = stored else {
            return Ok(None);
        };
        self.totals = guess.totals;
        let mut totals = self.totals.clone();
        for bytes in &stored.others {
            totals.merge(&Totals::from_bytes(bytes).ok_or(StoreError::Malformed("totals"))?);
        }
        Ok(Some(Committed {
            totals,
            duplicate_count: 0,
            sync_time: stored.sync_time,
        }))
    }

    /// Commits a batch. If it has duplicates and `with_duplicates` is not set, it changes nothing
    /// and returns `None`.
    fn try_commit(&mut self, batch: &Batch, with_duplicates: bool) -> Result<Option<Committed>> {
        let mut transaction = Prepared {
            transaction: self.client.transaction()?,
            statements: &mut self.statements,
        };
        let mut totals = self.totals.clone();
        let mut devices = batch::lock_devices(&mut transaction, batch, &mut totals)?;
        let Some(mut inserted) = batch::insert(&mut transaction, batch, with_duplicates)? else {
            return Ok(None);
        };
        let mut duplicate_count = 0;
        let mut changed = HashSet::new();
        for measurement in &batch.measurements {
            if !inserted.take(measurement) {
                duplicate_count += 1;
                continue;
            }
            let latest = devices.entry(measurement.device).or_default();
            let before = *latest;
            totals.take(latest, measurement);
            if *latest != before {
                changed.insert(measurement.device);
            }
        }
        batch::update_devices(&mut transaction, &changed, &devices)?;
        batch::write_commands(&mut transaction, batch)?;
        transaction.execute(
            "UPDATE totals SET totals = $2 WHERE writer = $1",
            &[&self.writer, &totals.to_bytes()],
        )?;
        let mut all = totals.clone();
        for row in transaction.query(
            "SELECT totals, pruned FROM totals WHERE writer <> $1",
            &[&self.writer],
        )? {
            all.merge(&self::totals(&row)?.0);
        }
        let written = Instant::now();
        transaction.transaction.commit()?;
        self.totals = totals;
        for (device, latest) in devices {
            self.memory.learn(device, latest);
        }
        Ok(Some(Committed {
            totals: all,
            duplicate_count,
            sync_time: written.elapsed(),
        }))
    }

    fn prune(&mut self, before: Time) -> Result<Pruned> {
        let mut transaction = self.client.transaction()?;
        let last = transaction.query(
            "SELECT max(time) FROM (SELECT time FROM measurement WHERE time < $1
             ORDER BY time LIMIT $2) AS oldest",
            &[&before, &PRUNE_LEN],
        )?;
        let last = last.first().and_then(|row| row.get::<_, Option<Time>>(0));
        let Some(last) = last else {
            drop(transaction);
            self.division.drop_empty(&mut self.client, before)?;
            return Ok(Pruned {
                row_count: 0,
                is_done: true,
            });
        };
        // Deletes all rows up to a certain time, so possibly a few more than asked for. Counts the
        // rows that were really deleted, because another writer may delete or insert late rows
        // meanwhile.
        let mut pruned = self.pruned.clone();
        let rows = transaction.query(
            "DELETE FROM measurement WHERE time <= $1 RETURNING *",
            &[&last],
        )?;
        rows.iter().for_each(|row| pruned.add(&measurement(row)));
        transaction.execute(
            "UPDATE totals SET pruned = $2 WHERE writer = $1",
            &[&self.writer, &pruned.to_bytes()],
        )?;
        transaction.commit()?;
        self.pruned = pruned;
        Ok(Pruned {
            row_count: rows.len(),
            is_done: false,
        })
    }
}

/// Reserves a writer number for as long as `client` is connected.
fn lock_writer(client: &mut Client) -> Result<i32> {
    for writer in 0..WRITER_COUNT_MAX {
        let row = client.query_one("SELECT pg_try_advisory_lock($1, $2)", &[&LOCK, &writer])?;
        if row.get(0) {
            return Ok(writer);
        }
    }
    Err(StoreError::InUse)
}

/// Starts a read-only transaction over one snapshot.
fn snapshot(client: &mut Client) -> Result<Transaction<'_>> {
    let transaction = client.build_transaction().read_only(true);
    Ok(transaction
        .isolation_level(IsolationLevel::RepeatableRead)
        .start()?)
}

fn recount(mut transaction: Transaction<'_>) -> Result<Totals> {
    let (_, pruned) = read_totals(&mut transaction)?;
    let devices = transaction.query(
        "SELECT id, time, charge_now, water_level, ambient_temp, water_temp FROM device",
        &[],
    )?;
    let mut totals = Totals {
        history: pruned,
        device_count: devices.len() as u64,
        ..Totals::default()
    };
    let mut newest: HashMap<DeviceId, Latest> = HashMap::new();
    let columns: [i32; 0] = [];
    let mut rows = transaction.query_raw("SELECT * FROM measurement", columns)?;
    while let Some(row) = rows.next()? {
        let measurement = measurement(&row);
        totals.history.add(&measurement);
        let known = newest.entry(measurement.device);
        let known = known.or_insert_with(|| Latest::from(&measurement));
        if known.time < measurement.time {
            *known = Latest::from(&measurement);
        }
    }
    for row in &devices {
        let (id, latest) = device(row);
        // The rows are authoritative. If pruning has deleted all rows of a device, the recorded
        // newest measurement is used.
        if let Some(latest) = newest.remove(&id).or(latest) {
            totals.replace(None, &latest);
        }
    }
    if newest.is_empty() {
        Ok(totals)
    } else {
        Err(StoreError::Malformed("measurements of an unknown device"))
    }
}

/// Reads the totals of all writers, and those of pruned rows.
fn read_totals(transaction: &mut Transaction<'_>) -> Result<(Totals, History)> {
    let mut all = (Totals::default(), History::default());
    for row in transaction.query("SELECT totals, pruned FROM totals", &[])? {
        let (totals, pruned) = totals(&row)?;
        all.0.merge(&totals);
        all.1.merge(&pruned);
    }
    Ok(all)
}

fn totals(row: &Row) -> Result<(Totals, History)> {
    let totals = Totals::from_bytes(row.get(0)).ok_or(StoreError::Malformed("totals"))?;
    let pruned = History::from_bytes(row.get(1)).ok_or(StoreError::Malformed("pruned totals"))?;
    Ok((totals, pruned))
}

fn read_commands(transaction: &mut Transaction<'_>) -> Result<Vec<Command>> {
    let rows = transaction.query(
        "SELECT device_id, time, charge, fill, flush FROM command WHERE status IS NULL",
        &[],
    )?;
    let command = |row: &Row| Command {
        device: row.get(0),
        time: row.get(1),
        charge: row.get(2),
        fill: row.get(3),
        flush: row.get(4),
    };
    Ok(rows.iter().map(command).collect())
}

/// Converts a row with all columns in table order.
fn measurement(row: &Row) -> Measurement {
    Measurement {
        time: row.get(0),
        device: row.get(1),
        charge_now: row.get(2),
        charge_full: row.get(3),
        charge_rate: row.get(4),
        ambient_temp: row.get(5),
        water_temp: row.get(6),
        water_level: row.get(7),
    }
}
