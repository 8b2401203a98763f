//! [`Sqlite`]: stores the metadata in one database file.
//!
//! # Concurrency
//!
//! One connection writes, under a lock; readers take connections from a pool. Other processes may
//! open the database at the same time: `samovar token`, and the new process during a zero-downtime
//! upgrade. The journal mode is WAL and `synchronous` is `full`, so a commit survives a power cut
//! once it has returned.

mod paths;
mod rows;
mod schema;
mod tokens;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, Transaction, TransactionBehavior};
use samovar_nix::HashPart;

use super::{CacheId, Metadata, NewNar, NewPath, NewToken, Published, StoredNar, StoredPath};
use crate::error::StorageError;
use crate::token::{Token, TokenHash, now};

/// Maximum time to wait for the lock of another process, which holds it for one commit.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of idle connections in the pool for reading.
const IDLE_COUNT_MAX: usize = 8;

/// Metadata in an SQLite database file.
#[derive(Debug)]
pub struct Sqlite {
    path: PathBuf,
    writer: Mutex<Connection>,
    idle: Mutex<Vec<Connection>>,
}

impl Sqlite {
    /// Opens the database; creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// [`StorageError::Database`], [`StorageError::SchemaTooNew`].
    pub fn open(path: &Path) -> Result<Self, StorageError> {
        let mut writer = connect(path)?;
        schema::migrate(&mut writer)?;
        Ok(Self {
            path: path.to_owned(),
            writer: Mutex::new(writer),
            idle: Mutex::default(),
        })
    }

    fn writer(&self) -> MutexGuard<'_, Connection> {
        // A panic leaves no open transaction: dropping the transaction's guard rolls it back.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs statements in one transaction, which is committed unless they fail.
    fn write<T>(
        &self,
        statements: impl FnOnce(&Transaction<'_>) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let mut writer = self.writer();
        let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let outcome = statements(&transaction)?;
        transaction.commit()?;
        Ok(outcome)
    }

    /// Runs a query on a connection of the pool.
    fn read<T>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let pooled = idle().pop();
        let connection = match pooled {
            Some(connection) => connection,
            None => connect(&self.path)?,
        };
        let outcome = query(&connection);
        let mut idle = idle();
        if idle.len() < IDLE_COUNT_MAX {
            idle.push(connection);
        }
        outcome
    }
}

fn connect(path: &Path) -> Result<Connection, StorageError> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.execute_batch(
        "pragma journal_mode = wal; pragma synchronous = full; pragma foreign_keys = on;",
    )?;
    Ok(connection)
}

impl Metadata for Sqlite {
    fn store_id(&self) -> Result<String, StorageError> {
        self.read(|connection| {
            let id = "select value from meta where key = 'store-id'";
            Ok(connection.query_row(id, [], |row| row.get(0))?)
        })
    }

    fn cache(&self, name: &str, store_dir: &str) -> Result<CacheId, StorageError> {
        paths::cache(&self.writer(), name, store_dir, now())
    }

    fn hash_parts(&self) -> Result<Vec<(CacheId, HashPart)>, StorageError> {
        self.read(paths::hash_parts)
    }

    fn path(
        &self,
        cache: CacheId,
        hash_part: HashPart,
    ) -> Result<Option<StoredPath>, StorageError> {
        self.read(|connection| paths::stored_path(connection, cache, hash_part))
    }

    fn listing(&self, nar_id: i64) -> Result<Option<Vec<u8>>, StorageError> {
        self.read(|connection| paths::listing(connection, nar_id))
    }

    fn file(
        &self,
        cache: CacheId,
        token: Option<i64>,
        file_hash: &[u8; 32],
    ) -> Result<Option<StoredNar>, StorageError> {
        self.read(|connection| paths::file(connection, cache, token, file_hash))
    }

    fn add_nar(&self, token: i64, new: &NewNar) -> Result<(), StorageError> {
        self.write(|transaction| paths::add_nar(transaction, token, new, now()))
    }

    fn publish(&self, batch: &[NewPath]) -> Result<Vec<Published>, StorageError> {
        self.write(|transaction| {
            let now = now();
            let outcomes = batch
                .iter()
                .map(|new| paths::publish_one(transaction, new, now));
            outcomes.collect()
        })
    }

    fn add_token(&self, hash: &TokenHash, token: &NewToken) -> Result<i64, StorageError> {
        tokens::add(&self.writer(), hash, token)
    }

    fn tokens(&self) -> Result<Vec<Token>, StorageError> {
        self.read(tokens::all)
    }

    fn token(&self, hash: &TokenHash) -> Result<Option<Token>, StorageError> {
        self.read(|connection| tokens::find(connection, hash))
    }

    fn is_token_valid(&self, token: i64) -> Result<bool, StorageError> {
        self.read(|connection| tokens::is_valid(connection, token, now()))
    }

    fn revoke_tokens(&self, name: &str) -> Result<usize, StorageError> {
        tokens::revoke(&self.writer(), name)
    }
}
