//! [`Sqlite`]: stores the metadata in one database file.
//!
//! # Concurrency
//!
//! One connection writes, under a lock; readers take connections from a pool. Other processes may
//! open the database at the same time: `samovar token`, and the new process during a zero-downtime
//! upgrade. The journal mode is WAL and `synchronous` is `full`, so a commit survives a power cut
//! once it has returned.

mod backup;
mod caches;
mod check;
mod collect;
mod extra;
mod limits;
mod lineage;
mod overview;
mod paths;
mod pins;
mod push;
mod rows;
mod schema;
mod tokens;
mod totals;
mod writer;

pub(crate) use caches::all as all_caches;
pub(crate) use schema::SCHEMA;
pub(crate) use tokens::all as all_tokens;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use samovar_nix::{HashPart, StorePath};

use self::writer::{Taken, Writer};
use super::{
    CacheId, Client, Clock, Graph, LookupResult, Metadata, NewNar, NewPath, NewToken, Published,
    StoredNar, StoredPath, Times, Uses,
};
use crate::error::StorageError;
use crate::token::{self, Token, TokenHash};
use crate::waiting::{PATIENCE, Waits};

/// Maximum number of idle connections in the pool for reading.
const IDLE_COUNT_MAX: usize = 8;

/// Maximum page cache of the connection that writes, in KiB. A transaction that changes more pages
/// writes them several times.
const WRITER_CACHE_KIB: i64 = 32 << 10;

/// The metadata of a storage in an SQLite database file.
#[derive(Debug)]
pub struct Sqlite {
    path: PathBuf,
    /// Device and inode number of the database when it was opened.
    file: (u64, u64),
    writer: Writer,
    idle: Mutex<Vec<Connection>>,
    clock: Clock,
    waits: Waits,
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
        let mut writer = connect(path)?;
        if writer.is_readonly("main")? {
            let reason = "the user of this program may not write to it";
            return Err(StorageError::Database(reason.to_owned()));
        }
        writer.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
        schema::migrate(&mut writer)?;
        lineage::notice_restored(&mut writer, path)?;
        Ok(Self {
            path: path.to_owned(),
            file: file(path).map_err(|error| {
                StorageError::file("cannot read", path.to_string_lossy(), error)
            })?,
            writer: Writer::new(writer),
            idle: Mutex::default(),
            clock,
            waits: Waits::default(),
        })
    }

    /// Sets the identifier of the storage to that of its directory, for a database that replaces a
    /// lost one.
    pub(crate) fn set_store_id(&self, id: &str) -> Result<(), StorageError> {
        let update = "update meta set value = ?1 where key = 'store-id'";
        self.writer()?.execute(update, [id])?;
        Ok(())
    }

    fn writer(&self) -> Result<Taken<'_>, StorageError> {
        self.writer.take(PATIENCE)
    }

    /// Runs statements in one transaction, and commits it unless they fail.
    fn write<T>(
        &self,
        statements: impl FnOnce(&Transaction<'_>) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        self.write_within(PATIENCE, statements)
    }

    /// Like [`write`](Self::write), but does not flush the disk: a power cut may undo the
    /// transaction until the next one is written.
    fn write_lazily<T>(
        &self,
        statements: impl FnOnce(&Transaction<'_>) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        self.transact(PATIENCE, Flush::Later, statements)
    }

    /// Like [`write`](Self::write), but waits at most `patience` for other writers.
    fn write_within<T>(
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
            transaction.commit()?;
            self.check_file()?;
            Ok(outcome)
        })
    }

    /// Runs a query on one of the pool's connections.
    fn read<T>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        self.check_file()?;
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

fn file(path: &Path) -> std::io::Result<(u64, u64)> {
    let file = fs::metadata(path)?;
    Ok((file.dev(), file.ino()))
}

fn connect(path: &Path) -> Result<Connection, StorageError> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(PATIENCE)?;
    // Without this, SQLite compiles a statement that might use a partial index again for each new
    // value of its parameters, which takes longer than to run it.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.execute_batch(
        "pragma journal_mode = wal; pragma synchronous = full; pragma foreign_keys = on;",
    )?;
    Ok(connection)
}

impl Metadata for Sqlite {
    fn waits(&self) -> &Waits {
        &self.waits
    }

    fn check_file(&self) -> Result<(), StorageError> {
        let is_same = file(&self.path).is_ok_and(|file| file == self.file);
        let root = self.path.parent().and_then(Path::parent);
        match is_same {
            true => Ok(()),
            false => Err(StorageError::Gone(root.unwrap_or(&self.path).to_owned())),
        }
    }

    fn store_id(&self) -> Result<String, StorageError> {
        self.read(|connection| {
            let id = "select value from meta where key = 'store-id'";
            Ok(connection.query_row(id, [], |row| row.get(0))?)
        })
    }

    fn cache(&self, name: &str, store_dir: &str) -> Result<CacheId, StorageError> {
        paths::cache(&*self.writer()?, name, store_dir, self.now())
    }

    fn set_mirrored(&self, cache: CacheId) -> Result<(), StorageError> {
        paths::set_mirrored(&*self.writer()?, cache)
    }

    fn hash_parts(&self) -> Result<Vec<(CacheId, HashPart)>, StorageError> {
        self.read(paths::hash_parts)
    }

    fn path(
        &self,
        cache: CacheId,
        hash_part: HashPart,
    ) -> Result<Option<StoredPath>, StorageError> {
        let found = self.read(|connection| paths::stored_path(connection, cache, hash_part))?;
        let Some((path, true)) = found else {
            return Ok(found.map(|(path, _)| path));
        };
        self.write(|transaction| {
            paths::record_use(transaction, path.id, self.now())?;
            let revived = paths::stored_path(transaction, cache, hash_part)?;
            Ok(revived.map(|(path, _)| path))
        })
    }

    fn paths(
        &self,
        cache: CacheId,
        hash_parts: &[HashPart],
    ) -> Result<Vec<LookupResult>, StorageError> {
        let mut found =
            self.read(|connection| paths::stored_paths(connection, cache, hash_parts))?;
        if found.iter().any(paths::is_condemned) {
            self.write(|transaction| {
                paths::revive_paths(transaction, cache, &mut found, self.now())
            })?;
        }
        let path = |found: Result<Option<(StoredPath, bool)>, _>| Ok(found?.map(|(path, _)| path));
        Ok(found.into_iter().map(path).collect())
    }

    fn has_path(&self, cache: CacheId, hash_part: HashPart) -> Result<bool, StorageError> {
        self.read(|connection| paths::has_path(connection, cache, hash_part))
    }

    fn listing(&self, nar_id: i64) -> Result<Option<Vec<u8>>, StorageError> {
        self.read(|connection| paths::listing(connection, nar_id))
    }

    fn file(
        &self,
        cache: CacheId,
        client: Client,
        file_hash: &[u8; 32],
    ) -> Result<Option<StoredNar>, StorageError> {
        let file = |connection: &Connection| paths::file(connection, cache, client, file_hash);
        let found = self.read(file)?;
        let Some((nar, true)) = found else {
            return Ok(found.map(|(nar, _)| nar));
        };
        self.write(|transaction| {
            paths::revive_nar(transaction, nar.id, self.now())?;
            paths::record_nar_use(transaction, cache, nar.id, self.now())?;
            Ok(file(transaction)?.map(|(nar, _)| nar))
        })
    }

    fn object_key(&self, file_hash: &[u8; 32]) -> Result<Option<(String, bool)>, StorageError> {
        let find = |connection: &Connection| paths::nar_by_file(connection, file_hash);
        let key = match self.read(find)? {
            Some((id, 2, _)) => self.write(|transaction| {
                paths::revive_nar(transaction, id, self.now())?;
                find(transaction)
            })?,
            found => found,
        };
        Ok(key.map(|(_, state, key)| (key, state == 3)))
    }

    fn is_garbage(&self, object_key: &str) -> Result<bool, StorageError> {
        self.read(|connection| collect::is_garbage(connection, object_key))
    }

    fn add_nars(&self, token: i64, new: &[NewNar]) -> Result<bool, StorageError> {
        self.write(|transaction| {
            let mut new = new.iter();
            new.try_fold(false, |were_lost, new| {
                Ok(were_lost | paths::add_nar(transaction, token, new, self.now())?)
            })
        })
    }

    fn add_nars_of_tokens(
        &self,
        new: &[&(i64, NewNar)],
        patience: Duration,
    ) -> Result<Vec<Result<bool, StorageError>>, StorageError> {
        self.write_within(patience, |transaction| {
            let outcomes = new.iter().map(|(token, new)| {
                match paths::add_nar(transaction, *token, new, self.now()) {
                    // Found before the first statement that writes.
                    Err(error @ (StorageError::KeyInUse(_) | StorageError::TokenInvalid)) => {
                        Ok(Err(error))
                    }
                    outcome => outcome.map(Ok),
                }
            });
            outcomes.collect()
        })
    }

    fn users_of_nar(&self, cache: CacheId, nar_id: i64) -> Result<Vec<HashPart>, StorageError> {
        self.read(|connection| paths::users_of_nar(connection, cache, nar_id))
    }

    fn paths_of_deriver(
        &self,
        cache: CacheId,
        deriver: &StorePath,
    ) -> Result<Vec<HashPart>, StorageError> {
        self.read(|connection| paths::paths_of_deriver(connection, cache, deriver))
    }

    fn has_sent(&self, token: i64, nar_id: i64) -> Result<bool, StorageError> {
        self.read(|connection| paths::has_sent(connection, token, nar_id))
    }

    fn used_bytes(&self, cache: CacheId) -> Result<u64, StorageError> {
        self.read(|connection| limits::used_bytes(connection, cache))
    }

    fn loose_bytes(&self, token: i64) -> Result<u64, StorageError> {
        self.read(|connection| paths::loose_bytes(connection, token))
    }

    fn publish(
        &self,
        batch: &[&[NewPath]],
        patience: Duration,
    ) -> Result<Vec<Vec<Published>>, StorageError> {
        self.write_within(patience, |transaction| {
            let now = self.now();
            let outcomes = batch
                .iter()
                .map(|group| paths::publish_group(transaction, group, now));
            outcomes.collect()
        })
    }

    fn add_token(&self, hash: &TokenHash, token: &NewToken) -> Result<i64, StorageError> {
        tokens::add(&*self.writer()?, hash, token, self.now())
    }

    fn tokens(&self) -> Result<Vec<Token>, StorageError> {
        self.read(|connection| tokens::all(connection, SCHEMA))
    }

    fn valid_tokens(&self, count_max: usize) -> Result<Vec<(TokenHash, Token)>, StorageError> {
        self.read(|connection| tokens::valid(connection, self.now(), count_max))
    }

    fn token(&self, hash: &TokenHash) -> Result<Option<Token>, StorageError> {
        self.read(|connection| tokens::find(connection, hash))
    }

    fn is_token_valid(&self, token: i64) -> Result<bool, StorageError> {
        self.read(|connection| tokens::is_valid(connection, token, self.now()))
    }

    fn revoke_tokens(&self, name: &str) -> Result<usize, StorageError> {
        tokens::revoke(&*self.writer()?, name, self.now())
    }
    fn now(&self) -> i64 {
        (self.clock)()
    }

    fn record_uses(&self, uses: &Uses) -> Result<(), StorageError> {
        // If a power cut undoes this, it also undoes later deletions.
        self.write_lazily(|transaction| collect::record_uses(transaction, uses, self.now()))
    }

    fn graph(&self, time: &Times<'_>) -> Result<Graph, StorageError> {
        self.read(|connection| collect::graph(connection, time, self.now()))
    }

    fn store_path(&self, id: i64) -> Result<Option<StorePath>, StorageError> {
        self.read(|connection| collect::store_path(connection, id))
    }

    fn condemn_paths(&self, ids: &[i64], is_condemned: bool) -> Result<(), StorageError> {
        self.write(|transaction| collect::condemn_paths(transaction, ids, is_condemned))
    }

    fn confirm(&self, count_max: u32) -> Result<bool, StorageError> {
        self.write(|transaction| collect::confirm(transaction, count_max, self.now()))
    }

    fn condemned_paths(&self, before: i64) -> Result<Vec<i64>, StorageError> {
        self.read(|connection| collect::condemned_paths(connection, before))
    }

    fn delete_paths(
        &self,
        ids: &[i64],
        before: i64,
        remove_mirror: &mut dyn FnMut(&str) -> Result<(), StorageError>,
    ) -> Result<Vec<(CacheId, HashPart)>, StorageError> {
        self.write(|transaction| collect::delete_paths(transaction, ids, before, remove_mirror))
    }

    fn loose_nars(&self, sent_before: i64, before: Option<i64>) -> Result<Vec<i64>, StorageError> {
        self.read(|connection| collect::loose_nars(connection, sent_before, before))
    }

    fn condemn_nars(&self, ids: &[i64], sent_before: i64) -> Result<usize, StorageError> {
        self.write(|transaction| collect::condemn_nars(transaction, ids, sent_before))
    }

    fn delete_nars(
        &self,
        ids: &[i64],
        sent_before: i64,
        before: i64,
    ) -> Result<Vec<u64>, StorageError> {
        self.write(|transaction| {
            collect::delete_nars(transaction, ids, sent_before, before, self.now())
        })
    }

    fn garbage(&self) -> Result<Vec<String>, StorageError> {
        self.read(collect::garbage)
    }

    fn set_removed(&self, keys: &[String]) -> Result<(), StorageError> {
        self.write(|transaction| collect::set_removed(transaction, keys, self.now()))
    }

    fn free_keys(&self, before: i64) -> Result<(), StorageError> {
        collect::free_keys(&*self.writer()?, before)
    }

    fn set_collected(&self) -> Result<(), StorageError> {
        totals::set_collected(&*self.writer()?, self.now())
    }
}
