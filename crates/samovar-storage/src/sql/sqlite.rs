//! [`Sqlite`]: the database, in one file.
//!
//! # Concurrency
//!
//! One connection writes, under a lock; readers take connections from a pool. Other processes may
//! open the database at the same time: `samovar token`, and the new process during a zero-downtime
//! upgrade. The journal mode is WAL and `synchronous` is `full`, so a commit survives a power cut
//! once it has returned.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};

pub(super) use self::integrity::{check_small_tables, faults, within};
pub(crate) use self::schema::SCHEMA;
pub(super) use self::statements::{each, execute, value};
use self::writer::Writer;
use super::engine::{Clock, Flush};
use crate::error::StorageError;
use crate::token;
use crate::waiting::{PATIENCE, Waits};

mod integrity;
mod restored;
mod schema;
mod statements;
mod writer;

/// Maximum number of idle connections in the pool for reading.
const IDLE_COUNT_MAX: usize = 8;

/// Maximum page cache of the connection that writes, in KiB. A transaction that changes more pages
/// writes them several times.
const WRITER_CACHE_KIB: i64 = 32 << 10;

/// Maximum time that a diagnosis waits for a lock of the database.
const READ_PATIENCE: Duration = Duration::from_secs(10);

/// The metadata of a storage in an SQLite database file.
#[derive(Debug)]
pub(super) struct Sqlite {
    path: PathBuf,
    access: Access,
    /// Device and inode number of the database when it was opened.
    file: (u64, u64),
    writer: Writer,
    idle: Mutex<Vec<Connection>>,
    clock: Clock,
    waits: Waits,
}

/// What the connections may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Change,
    /// Read a database that exists.
    Read,
}

impl Sqlite {
    /// Opens the database. Creates it if it does not exist.
    pub(super) fn with_clock(path: &Path, clock: Clock) -> Result<Self, StorageError> {
        let mut writer = connect(path, Access::Change)?;
        if writer.is_readonly("main")? {
            let reason = "the user of this program may not write to it";
            return Err(StorageError::Database(reason.to_owned()));
        }
        writer.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
        schema::migrate(&mut writer)?;
        restored::notice(&mut writer, path, clock())?;
        Self::new(path, Access::Change, writer, clock)
    }

    /// Opens a database of this or an older schema for diagnosis, and changes nothing. Only
    /// functions that read may be called, and for an older schema only those that work with it.
    /// Also returns the schema version.
    pub(super) fn open_to_inspect(path: &Path) -> Result<(Self, i64), StorageError> {
        let connection = connect(path, Access::Read)?;
        let found = connection.query_row("pragma user_version", [], |row| row.get(0))?;
        if found > schema::SCHEMA {
            return Err(StorageError::SchemaTooNew {
                found,
                supported: schema::SCHEMA,
            });
        }
        Ok((
            Self::new(path, Access::Read, connection, token::now)?,
            found,
        ))
    }

    fn new(
        path: &Path,
        access: Access,
        writer: Connection,
        clock: Clock,
    ) -> Result<Self, StorageError> {
        Ok(Self {
            path: path.to_owned(),
            access,
            file: file(path).map_err(|error| {
                StorageError::file("cannot read", path.to_string_lossy(), error)
            })?,
            writer: Writer::new(writer),
            idle: Mutex::default(),
            clock,
            waits: Waits::default(),
        })
    }

    /// Returns how callers wait for this database.
    pub(super) const fn waits(&self) -> &Waits {
        &self.waits
    }

    /// Returns the present time by the clock of the database, in seconds since 1970.
    pub(super) fn now(&self) -> i64 {
        (self.clock)()
    }

    /// Checks that the database is still the file that was opened. Each other function checks that,
    /// too: queries before they run, and transactions before they return.
    pub(super) fn check_file(&self) -> Result<(), StorageError> {
        let is_same = file(&self.path).is_ok_and(|file| file == self.file);
        let root = self.path.parent().and_then(Path::parent);
        match is_same {
            true => Ok(()),
            false => Err(StorageError::Gone(root.unwrap_or(&self.path).to_owned())),
        }
    }

    /// Runs statements in one transaction. Waits at most `patience` for other writers.
    pub(super) fn transact<T>(
        &self,
        patience: Duration,
        flush: Flush,
        mut statements: impl FnMut(&Transaction<'_>) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        self.waits.patiently(patience, |patience| {
            let mut writer = self.writer.take(patience)?;
            if flush == Flush::Later {
                writer.defer_flush()?;
            }
            let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let outcome = statements(&transaction)?;
            match flush {
                Flush::AtCommit => self.waits.disk.flush(|| transaction.commit())?,
                Flush::Later => self.waits.disk.write(|| transaction.commit())?,
            }
            self.check_file()?;
            Ok(outcome)
        })
    }

    /// Runs a query on one of the pool's connections.
    pub(super) fn read<T>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        self.check_file()?;
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let pooled = idle().pop();
        let connection = match pooled {
            Some(connection) => connection,
            // SQLite creates missing files, for which a frozen file system lets it wait.
            None => self.waits.disk.write(|| connect(&self.path, self.access))?,
        };
        let outcome = query(&connection);
        let mut idle = idle();
        if idle.len() < IDLE_COUNT_MAX {
            idle.push(connection);
        }
        outcome
    }
}

fn file(path: &Path) -> std::io::Result<(u64, u64)> {
    let file = fs::metadata(path)?;
    Ok((file.dev(), file.ino()))
}

fn connect(path: &Path, access: Access) -> Result<Connection, StorageError> {
    let connection = match access {
        Access::Change => Connection::open(path)?,
        Access::Read => Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?,
    };
    if access == Access::Read {
        connection.busy_timeout(READ_PATIENCE)?;
        connection.pragma_update(None, "query_only", true)?;
        return Ok(connection);
    }
    connection.busy_timeout(PATIENCE)?;
    // Without this, SQLite compiles a statement that might use a partial index again for each new
    // value of its parameters, which takes longer than to run it.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.execute_batch(
        "pragma journal_mode = wal; pragma synchronous = full; pragma foreign_keys = on;",
    )?;
    Ok(connection)
}
