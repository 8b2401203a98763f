//! [`Database`]: the metadata of a storage.

use std::path::Path;
use std::time::Duration;

use super::connection::{Connection, Transaction};
use super::engine::{Clock, Flush};
use super::postgres::Postgres;
use super::sqlite::Sqlite;
use super::value::params;
use crate::error::StorageError;
use crate::postgres::PostgresSettings;
use crate::token;
use crate::waiting::{PATIENCE, Waits};

/// The metadata of a storage.
#[derive(Debug)]
pub struct Database {
    engine: Engine,
}

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a process has one or two databases"
)]
enum Engine {
    /// A file.
    Sqlite(Sqlite),
    /// A server.
    Postgres(Postgres),
}

impl Database {
    /// Opens the database in a file. Creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// [`StorageError::Database`], or [`StorageError::SchemaTooNew`] if a newer version wrote the
    /// database.
    pub fn open(path: &Path) -> Result<Self, StorageError> {
        Self::with_clock(path, token::now)
    }

    /// Opens the database in a file with a clock other than the system's.
    ///
    /// # Errors
    ///
    /// [`StorageError::Database`], or [`StorageError::SchemaTooNew`] if a newer version wrote the
    /// database.
    pub fn with_clock(path: &Path, clock: Clock) -> Result<Self, StorageError> {
        Ok(Self::of_sqlite(Sqlite::with_clock(path, clock)?))
    }

    /// Opens the database in a file, which has this or an older schema, for diagnosis, and changes
    /// nothing. Only functions that read may be called, and for an older schema only those that
    /// work with it. Also returns the schema version.
    ///
    /// # Errors
    ///
    /// [`StorageError::Database`], or [`StorageError::SchemaTooNew`] if a newer version wrote the
    /// database.
    pub(crate) fn open_to_inspect(path: &Path) -> Result<(Self, i64), StorageError> {
        let (sqlite, schema) = Sqlite::open_to_inspect(path)?;
        Ok((Self::of_sqlite(sqlite), schema))
    }

    /// Opens the database on a PostgreSQL server. Creates its tables if they do not exist. `clock`:
    /// another clock than the server's, for tests.
    ///
    /// # Errors
    ///
    /// [`StorageError::Unavailable`] if the server cannot be reached for some time;
    /// [`StorageError::Database`], or [`StorageError::SchemaTooNew`] if a newer version wrote the
    /// database.
    pub(crate) fn open_postgres(
        settings: &PostgresSettings,
        clock: Option<Clock>,
    ) -> Result<Self, StorageError> {
        Ok(Self {
            engine: Engine::Postgres(Postgres::open(settings, clock)?),
        })
    }

    /// Returns the database that several nodes share. `None`: this one is a file.
    pub(crate) const fn postgres(&self) -> Option<&Postgres> {
        match &self.engine {
            Engine::Sqlite(_) => None,
            Engine::Postgres(postgres) => Some(postgres),
        }
    }

    /// Does work that one node does at a time, and returns its outcome. Returns `None` if another
    /// node does the work of this name now. If the connection to the server is lost meanwhile,
    /// another node may begin.
    ///
    /// # Errors
    ///
    /// [`StorageError::Unavailable`], [`StorageError::Database`], and any error of the work.
    pub(crate) fn alone<T>(
        &self,
        name: &str,
        work: impl FnOnce() -> Result<T, StorageError>,
    ) -> Result<Option<T>, StorageError> {
        let _exclusive = match self.postgres() {
            Some(postgres) => match postgres.exclusive(name)? {
                None => return Ok(None),
                exclusive => exclusive,
            },
            None => None,
        };
        work().map(Some)
    }

    const fn of_sqlite(sqlite: Sqlite) -> Self {
        Self {
            engine: Engine::Sqlite(sqlite),
        }
    }

    /// Returns how callers wait for this database.
    pub(crate) const fn waits(&self) -> &Waits {
        match &self.engine {
            Engine::Sqlite(sqlite) => sqlite.waits(),
            Engine::Postgres(postgres) => postgres.waits(),
        }
    }

    /// Returns the present time by the clock of the database, in seconds since 1970.
    #[must_use]
    pub fn now(&self) -> i64 {
        match &self.engine {
            Engine::Sqlite(sqlite) => sqlite.now(),
            Engine::Postgres(postgres) => postgres.now(),
        }
    }

    /// Checks that the database is still the file that was opened. Each other function checks that,
    /// too: queries before they run, and transactions before they return. A database that is not a
    /// file passes.
    ///
    /// # Errors
    ///
    /// [`StorageError::Gone`] if the file was moved or replaced.
    pub(crate) fn check_file(&self) -> Result<(), StorageError> {
        match &self.engine {
            Engine::Sqlite(sqlite) => sqlite.check_file(),
            Engine::Postgres(_) => Ok(()),
        }
    }

    /// Returns the identifier of the storage, which was generated with the database.
    pub(crate) fn store_id(&self) -> Result<String, StorageError> {
        let query = "select value from meta where key = 'store-id'";
        self.read(|connection| connection.row(query, &[], |row| row.get(0)))
    }

    /// Sets the identifier of the storage to the identifier in its directory, for a database that
    /// replaces a lost one.
    pub(crate) fn set_store_id(&self, id: &str) -> Result<(), StorageError> {
        let update = "update meta set value = ?1 where key = 'store-id'";
        self.write(|transaction| transaction.execute(update, params![id]))?;
        Ok(())
    }

    /// Returns whether a rebuild of this database began and did not end. A database that is a file
    /// has no such mark: the mark is beside it.
    pub(crate) fn is_rebuilding(&self) -> Result<bool, StorageError> {
        if self.postgres().is_none() {
            return Ok(false);
        }
        let query = "select exists (select 1 from meta where key = 'rebuilding')";
        self.read(|connection| connection.row(query, &[], |row| row.get(0)))
    }

    /// Records that a rebuild of this database begins or ends.
    pub(crate) fn set_rebuilding(&self, is_rebuilding: bool) -> Result<(), StorageError> {
        let statement = match is_rebuilding {
            true => "insert into meta values ('rebuilding', '1') on conflict (key) do nothing",
            false => "delete from meta where key = 'rebuilding'",
        };
        self.write(|transaction| transaction.execute(statement, &[]))?;
        Ok(())
    }

    /// Runs a query on one of the pool's connections. Its statements see what was committed before
    /// they run: a query of several statements that must agree runs them in a
    /// [`snapshot`](Connection::snapshot). An engine on another machine calls `query` again if it
    /// was lost meanwhile.
    pub(crate) fn read<T>(
        &self,
        mut query: impl FnMut(&Connection<'_>) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        match &self.engine {
            Engine::Sqlite(sqlite) => sqlite.read(|raw| query(&Connection::Sqlite(raw))),
            Engine::Postgres(postgres) => {
                postgres.read(|session| query(&Connection::Postgres(session)))
            }
        }
    }

    /// Runs statements in one transaction, and commits it unless they fail.
    ///
    /// An engine on another machine calls `statements` again if it was lost meanwhile and has not
    /// committed the transaction. So what they change besides the database, they can change again.
    pub(crate) fn write<T>(
        &self,
        statements: impl FnMut(&Transaction<'_>) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        self.write_within(PATIENCE, statements)
    }

    /// Like [`write`](Self::write), but does not flush the disk: a power cut may undo the
    /// transaction until the next one is written.
    pub(crate) fn write_lazily<T>(
        &self,
        statements: impl FnMut(&Transaction<'_>) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        self.transact(PATIENCE, Flush::Later, statements)
    }

    /// Like [`write`](Self::write), but waits at most `patience` for other writers.
    pub(crate) fn write_within<T>(
        &self,
        patience: Duration,
        statements: impl FnMut(&Transaction<'_>) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        self.transact(patience, Flush::AtCommit, statements)
    }

    fn transact<T>(
        &self,
        patience: Duration,
        flush: Flush,
        mut statements: impl FnMut(&Transaction<'_>) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        match &self.engine {
            Engine::Sqlite(sqlite) => sqlite.transact(patience, flush, |raw| {
                statements(&Transaction::new(Connection::Sqlite(raw)))
            }),
            Engine::Postgres(postgres) => postgres.transact(patience, flush, |session| {
                let transaction = Transaction::new(Connection::Postgres(session));
                let outcome = statements(&transaction)?;
                Ok((outcome, transaction.into_changes()))
            }),
        }
    }
}
