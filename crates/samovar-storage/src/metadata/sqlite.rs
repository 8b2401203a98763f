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

use super::writer::{Taken, Writer};
use super::{Clock, lineage, schema};
use crate::error::StorageError;
use crate::token;
use crate::waiting::{PATIENCE, Waits};

/// Maximum number of idle connections in the pool for reading.
const IDLE_COUNT_MAX: usize = 8;

/// Maximum page cache of the connection that writes, in KiB. A transaction that changes more pages
/// writes them several times.
const WRITER_CACHE_KIB: i64 = 32 << 10;

/// Maximum time that a diagnosis waits for a lock of the database.
const READ_PATIENCE: Duration = Duration::from_secs(10);

/// The metadata of a storage in an SQLite database file.
#[derive(Debug)]
pub struct Sqlite {
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

/// The time at which a transaction is flushed to the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flush {
    AtCommit,
    /// With the next transaction that is flushed at its commit.
    Later,
}

impl Sqlite {
    /// Opens the database. Creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// [`StorageError::Database`], or [`StorageError::SchemaTooNew`] if a newer version wrote the
    /// database.
    pub fn open(path: &Path) -> Result<Self, StorageError> {
        Self::with_clock(path, token::now)
    }

    /// Opens the database with a clock other than the system's.
    ///
    /// # Errors
    ///
    /// [`StorageError::Database`], or [`StorageError::SchemaTooNew`] if a newer version wrote the
    /// database.
    pub fn with_clock(path: &Path, clock: Clock) -> Result<Self, StorageError> {
        let mut writer = connect(path, Access::Change)?;
        if writer.is_readonly("main")? {
            let reason = "the user of this program may not write to it";
            return Err(StorageError::Database(reason.to_owned()));
        }
        writer.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
        schema::migrate(&mut writer)?;
        lineage::notice_restored(&mut writer, path)?;
        Self::new(path, Access::Change, writer, clock)
    }

    /// Opens a database of this or an older schema for diagnosis, and changes nothing. Only
    /// functions that read may be called, and for an older schema only those that work with it.
    /// Also returns the schema version.
    ///
    /// # Errors
    ///
    /// [`StorageError::Database`], or [`StorageError::SchemaTooNew`] if a newer version wrote the
    /// database.
    pub(crate) fn open_to_inspect(path: &Path) -> Result<(Self, i64), StorageError> {
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
    pub(crate) const fn waits(&self) -> &Waits {
        &self.waits
    }

    /// Returns the present time by the clock of the database, in seconds since 1970.
    #[must_use]
    pub fn now(&self) -> i64 {
        (self.clock)()
    }

    /// Checks that the database is still the file that was opened. Each other function checks that,
    /// too: queries before they run, and transactions before they return.
    ///
    /// # Errors
    ///
    /// [`StorageError::Gone`] if the file was moved or replaced.
    pub(crate) fn check_file(&self) -> Result<(), StorageError> {
        let is_same = file(&self.path).is_ok_and(|file| file == self.file);
        let root = self.path.parent().and_then(Path::parent);
        match is_same {
            true => Ok(()),
            false => Err(StorageError::Gone(root.unwrap_or(&self.path).to_owned())),
        }
    }

    /// Returns the identifier of the storage, which was generated with the database.
    pub(crate) fn store_id(&self) -> Result<String, StorageError> {
        self.read(|connection| {
            let id = "select value from meta where key = 'store-id'";
            Ok(connection.query_row(id, [], |row| row.get(0))?)
        })
    }

    /// Sets the identifier of the storage to the identifier in its directory, for a database that
    /// replaces a lost one.
    pub(crate) fn set_store_id(&self, id: &str) -> Result<(), StorageError> {
        let update = "update meta set value = ?1 where key = 'store-id'";
        self.writer()?.execute(update, [id])?;
        Ok(())
    }

    pub(super) fn writer(&self) -> Result<Taken<'_>, StorageError> {
        self.writer.take(PATIENCE)
    }

    /// Runs statements in one transaction, and commits it unless they fail.
    pub(super) fn write<T>(
        &self,
        statements: impl FnOnce(&Transaction<'_>) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        self.write_within(PATIENCE, statements)
    }

    /// Like [`write`](Self::write), but does not flush the disk: a power cut may undo the
    /// transaction until the next one is written.
    pub(super) fn write_lazily<T>(
        &self,
        statements: impl FnOnce(&Transaction<'_>) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        self.transact(PATIENCE, Flush::Later, statements)
    }

    /// Like [`write`](Self::write), but waits at most `patience` for other writers.
    pub(super) fn write_within<T>(
        &self,
        patience: Duration,
        statements: impl FnOnce(&Transaction<'_>) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        self.transact(patience, Flush::AtCommit, statements)
    }

    /// Runs statements in one transaction. Waits at most `patience` for other writers.
    fn transact<T>(
        &self,
        patience: Duration,
        flush: Flush,
        statements: impl FnOnce(&Transaction<'_>) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let mut statements = Some(statements);
        self.waits.patiently(patience, |patience| {
            let mut writer = self.writer.take(patience)?;
            if flush == Flush::Later {
                writer.defer_flush()?;
            }
            let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
            // A second attempt follows only if the first did not begin its transaction.
            let statements = statements.take().ok_or(StorageError::Busy)?;
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
    pub(crate) fn read<T>(
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
