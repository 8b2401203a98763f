//! [`Sqlite`]: stores the metadata in one database file.
//!
//! # Concurrency
//!
//! One connection writes, under a lock; readers take connections from a pool. Other processes may
//! open the database at the same time: `samovar token`, and the new process during a zero-downtime
//! upgrade. The journal mode is WAL and `synchronous` is `full`, so a commit survives a power cut
//! once it has returned.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{
    Connection, ErrorCode, OptionalExtension as _, Row, Transaction, TransactionBehavior, params,
};
use samovar_nix::narinfo::Compression;
use samovar_nix::{ContentAddress, HashPart, NarHash, Signature, StorePath};

use super::{CacheId, Metadata, NewNar, NewPath, NewToken, Published, StoredNar, StoredPath};
use crate::error::StorageError;
use crate::publish::SIGNATURE_COUNT_MAX;
use crate::token::{Rights, Token, TokenHash, now};

/// The schema version that this program reads and writes.
const SCHEMA: i64 = 1;

/// Maximum time to wait for the lock of another process, which holds it for one commit.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of idle connections in the pool for reading.
const IDLE_COUNT_MAX: usize = 8;

/// Columns of the table `nar`, in the order in which [`nar_of`] reads them.
macro_rules! nar_columns {
    () => {
        "nar.id, nar.nar_hash, nar.nar_size, nar.file_hash, nar.file_size, nar.compression, \
         nar.object_key"
    };
}

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
        let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let found: i64 = transaction.query_row("pragma user_version", [], |row| row.get(0))?;
        match found {
            0 => {
                transaction.execute_batch(include_str!("schema.sql"))?;
                transaction.execute(
                    "insert into meta values ('store-id', lower(hex(randomblob(16))))",
                    [],
                )?;
                transaction.pragma_update(None, "user_version", SCHEMA)?;
            }
            SCHEMA => {}
            _ => {
                return Err(StorageError::SchemaTooNew {
                    found,
                    supported: SCHEMA,
                });
            }
        }
        transaction.commit()?;
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
        let writer = self.writer();
        writer.execute(
            "insert or ignore into cache (name, store_dir, created_at) values (?1, ?2, ?3)",
            params![name, store_dir, now()],
        )?;
        let (id, stored): (i64, String) = writer.query_row(
            "select id, store_dir from cache where name = ?1",
            [name],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
        if stored != store_dir {
            return Err(StorageError::StoreDir {
                stored,
                served: store_dir.to_owned(),
            });
        }
        Ok(CacheId(id))
    }

    fn hash_parts(&self) -> Result<Vec<(CacheId, HashPart)>, StorageError> {
        self.read(|connection| {
            let mut statement =
                connection.prepare_cached("select cache_id, hash_part from path")?;
            let rows = statement.query_map([], |row| {
                Ok((CacheId(row.get(0)?), HashPart::from_bytes(row.get(1)?)))
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    fn path(
        &self,
        cache: CacheId,
        hash_part: HashPart,
    ) -> Result<Option<StoredPath>, StorageError> {
        self.read(|connection| stored_path(connection, cache, hash_part))
    }

    fn listing(&self, nar_id: i64) -> Result<Option<Vec<u8>>, StorageError> {
        self.read(|connection| {
            let mut statement =
                connection.prepare_cached("select listing from nar where id = ?1")?;
            let listing = statement.query_row([nar_id], |row| row.get(0)).optional()?;
            Ok(listing.flatten())
        })
    }

    fn file(
        &self,
        cache: CacheId,
        token: Option<i64>,
        file_hash: &[u8; 32],
    ) -> Result<Option<StoredNar>, StorageError> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(concat!(
                "select ",
                nar_columns!(),
                " from nar where file_hash = ?1 and ( \
                     exists (select 1 from path where nar_id = nar.id and cache_id = ?2) or \
                     exists (select 1 from sent where nar_id = nar.id and token_id = ?3))"
            ))?;
            let mut rows = statement.query(params![file_hash, cache.0, token])?;
            rows.next()?.map(nar_of).transpose()
        })
    }

    fn add_nar(&self, token: i64, new: &NewNar) -> Result<(), StorageError> {
        let mut writer = self.writer();
        let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let nar = &new.nar;
        let now = now();
        transaction.execute(
            "insert into nar (nar_hash, nar_size, file_hash, file_size, compression, object_key, \
             frames, listing, created_at) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) \
             on conflict (file_hash) do update set object_key = excluded.object_key",
            params![
                nar.nar_hash.as_bytes(),
                signed(nar.nar_size)?,
                nar.file_hash,
                signed(nar.file_size)?,
                nar.compression.name(),
                nar.object_key,
                new.frames,
                new.listing,
                now
            ],
        )?;
        transaction.execute(
            "insert or replace into sent select ?1, id, ?2 from nar where file_hash = ?3",
            params![token, now, nar.file_hash],
        )?;
        transaction.commit()?;
        Ok(())
    }

    fn publish(&self, batch: &[NewPath]) -> Result<Vec<Published>, StorageError> {
        let mut writer = self.writer();
        let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let now = now();
        let outcomes = batch
            .iter()
            .map(|new| publish_one(&transaction, new, now))
            .collect::<Result<_, _>>()?;
        transaction.commit()?;
        Ok(outcomes)
    }

    fn add_token(&self, hash: &TokenHash, token: &NewToken) -> Result<i64, StorageError> {
        let writer = self.writer();
        writer.execute(
            "insert into token (hash, name, cache, rights, created_at, expires_at) \
             values (?1, ?2, ?3, ?4, ?5, ?6)",
            params![
                hash.0,
                token.name,
                token.cache,
                token.rights.bits(),
                now(),
                token.expires_at
            ],
        )?;
        Ok(writer.last_insert_rowid())
    }

    fn tokens(&self) -> Result<Vec<Token>, StorageError> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "select id, name, cache, rights, created_at, expires_at, revoked_at from token \
                 order by id desc",
            )?;
            let rows = statement.query_map([], token_of)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    fn token(&self, hash: &TokenHash) -> Result<Option<Token>, StorageError> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "select id, name, cache, rights, created_at, expires_at, revoked_at from token \
                 where hash = ?1",
            )?;
            Ok(statement.query_row([hash.0], token_of).optional()?)
        })
    }

    fn is_token_valid(&self, token: i64) -> Result<bool, StorageError> {
        self.read(|connection| is_token_valid(connection, token, now()))
    }

    fn revoke_tokens(&self, name: &str) -> Result<usize, StorageError> {
        let count = self.writer().execute(
            "update token set revoked_at = ?2 where name = ?1 and revoked_at is null",
            params![name, now()],
        )?;
        Ok(count)
    }
}

fn publish_one(
    transaction: &Transaction<'_>,
    new: &NewPath,
    now: i64,
) -> Result<Published, StorageError> {
    // Checked in the transaction that inserts the path, so that a revocation that has returned
    // takes effect.
    if !is_token_valid(transaction, new.token, now)? {
        return Ok(Published::TokenInvalid);
    }
    let hash_part = new.path.hash_part();
    let known: Option<(i64, i64, String)> = transaction
        .prepare_cached("select id, nar_id, sigs from path where cache_id = ?1 and hash_part = ?2")?
        .query_row(params![new.cache.0, hash_part.as_bytes()], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .optional()?;
    if let Some((id, nar_id, sigs)) = known {
        if nar_id != new.nar_id {
            return Ok(Published::Conflict);
        }
        let added = joined(&sigs, &new.signatures);
        if added != sigs {
            transaction
                .prepare_cached("update path set sigs = ?2 where id = ?1")?
                .execute(params![id, added])?;
        }
        return Ok(Published::Known);
    }
    insert_path(transaction, new, now)
}

fn is_token_valid(connection: &Connection, token: i64, now: i64) -> Result<bool, StorageError> {
    let is_valid: Option<bool> = connection
        .prepare_cached(
            "select revoked_at is null and (expires_at is null or expires_at > ?2) from token \
             where id = ?1",
        )?
        .query_row(params![token, now], |row| row.get(0))
        .optional()?;
    Ok(is_valid == Some(true))
}

/// Inserts a path that does not exist yet, and its references.
fn insert_path(
    transaction: &Transaction<'_>,
    new: &NewPath,
    now: i64,
) -> Result<Published, StorageError> {
    let (mut references, mut outer) = (Vec::new(), Vec::new());
    for reference in &new.references {
        match path_row(transaction, new.cache, &reference.path)? {
            Some(id) => references.push(id),
            None if reference.is_elsewhere => outer.push(reference.path.base_name()),
            None => return Ok(Published::MissingReference(reference.path.clone())),
        }
    }
    transaction
        .prepare_cached(
            "insert into path (cache_id, hash_part, name, nar_id, self_reference, deriver, ca, \
             sigs, registered_at, token_id) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        )?
        .execute(params![
            new.cache.0,
            new.path.hash_part().as_bytes(),
            new.path.name(),
            new.nar_id,
            new.has_self_reference,
            new.deriver.as_ref().map(StorePath::base_name),
            new.content_address.map(|address| address.to_string()),
            joined("", &new.signatures),
            now,
            new.token
        ])?;
    let id = transaction.last_insert_rowid();
    for reference in references {
        transaction
            .prepare_cached("insert into reference values (?1, ?2)")?
            .execute([id, reference])?;
    }
    for base_name in outer {
        transaction
            .prepare_cached("insert into outer_reference values (?1, ?2)")?
            .execute(params![id, base_name])?;
    }
    Ok(Published::New)
}

/// Returns the row number of the path with this hash part and name.
fn path_row(
    transaction: &Transaction<'_>,
    cache: CacheId,
    path: &StorePath,
) -> Result<Option<i64>, StorageError> {
    let mut statement = transaction.prepare_cached(
        "select id from path where cache_id = ?1 and hash_part = ?2 and name = ?3",
    )?;
    let hash_part = path.hash_part();
    let parameters = params![cache.0, hash_part.as_bytes(), path.name()];
    Ok(statement
        .query_row(parameters, |row| row.get(0))
        .optional()?)
}

/// Adds signatures to a column, without duplicates, up to the limit.
fn joined(sigs: &str, more: &[Signature]) -> String {
    let mut texts: Vec<String> = sigs.split(' ').map(str::to_owned).collect();
    texts.retain(|text| !text.is_empty());
    for signature in more {
        let text = signature.to_string();
        if texts.len() < SIGNATURE_COUNT_MAX && !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts.join(" ")
}

fn stored_path(
    connection: &Connection,
    cache: CacheId,
    hash_part: HashPart,
) -> Result<Option<StoredPath>, StorageError> {
    let mut statement = connection.prepare_cached(concat!(
        "select ",
        nar_columns!(),
        ", path.id, path.name, path.self_reference, path.deriver, path.ca, path.sigs, \
         path.registered_at from path join nar on nar.id = path.nar_id \
         where path.cache_id = ?1 and path.hash_part = ?2"
    ))?;
    let mut rows = statement.query(params![cache.0, hash_part.as_bytes()])?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    let id: i64 = row.get(7)?;
    let path = path_of(hash_part, &row.get::<_, String>(8)?)?;
    let mut references = Vec::new();
    if row.get(9)? {
        references.push(path.clone());
    }
    let mut inner = connection.prepare_cached(
        "select path.hash_part, path.name from reference join path on path.id = reference \
         where referrer = ?1",
    )?;
    let mut inner = inner.query([id])?;
    while let Some(row) = inner.next()? {
        references.push(path_of(
            HashPart::from_bytes(row.get(0)?),
            &row.get::<_, String>(1)?,
        )?);
    }
    let mut outer =
        connection.prepare_cached("select base_name from outer_reference where referrer = ?1")?;
    let mut outer = outer.query([id])?;
    while let Some(row) = outer.next()? {
        references.push(base_name(&row.get::<_, String>(0)?)?);
    }
    references.sort();
    let deriver: Option<String> = row.get(10)?;
    let ca: Option<String> = row.get(11)?;
    let sigs: String = row.get(12)?;
    let signatures = sigs.split(' ').filter(|text| !text.is_empty());
    Ok(Some(StoredPath {
        nar: nar_of(row)?,
        references,
        deriver: deriver.map(|deriver| base_name(&deriver)).transpose()?,
        signatures: signatures
            .map(|text| Signature::parse(text).map_err(|error| damaged(&error.to_string())))
            .collect::<Result<_, _>>()?,
        content_address: ca
            .map(|ca| ContentAddress::parse(&ca).map_err(|error| damaged(&error.to_string())))
            .transpose()?,
        registered_at: row.get(13)?,
        path,
    }))
}

/// Parses the NAR in the first columns of a row.
fn nar_of(row: &Row<'_>) -> Result<StoredNar, StorageError> {
    Ok(StoredNar {
        id: row.get(0)?,
        nar_hash: NarHash::from_bytes(row.get(1)?),
        nar_size: unsigned(row.get(2)?)?,
        file_hash: row.get(3)?,
        file_size: unsigned(row.get(4)?)?,
        compression: compression(&row.get::<_, String>(5)?)?,
        object_key: row.get(6)?,
    })
}

fn compression(name: &str) -> Result<Compression, StorageError> {
    let known = Compression::from_name(name);
    known.ok_or_else(|| damaged(&format!("unknown compression {name:?}")))
}

fn token_of(row: &Row<'_>) -> rusqlite::Result<Token> {
    Ok(Token {
        id: row.get(0)?,
        name: row.get(1)?,
        cache: row.get(2)?,
        rights: Rights::from_bits(row.get(3)?),
        created_at: row.get(4)?,
        expires_at: row.get(5)?,
        revoked_at: row.get(6)?,
    })
}

fn path_of(hash_part: HashPart, name: &str) -> Result<StorePath, StorageError> {
    base_name(&format!("{hash_part}-{name}"))
}

fn base_name(text: &str) -> Result<StorePath, StorageError> {
    StorePath::from_base_name(text).map_err(|error| damaged(&format!("{text:?}: {error}")))
}

fn damaged(reason: &str) -> StorageError {
    StorageError::Damaged(reason.to_owned())
}

fn unsigned(number: i64) -> Result<u64, StorageError> {
    u64::try_from(number).map_err(|_negative| damaged(&format!("{number} is negative")))
}

fn signed(number: u64) -> Result<i64, StorageError> {
    i64::try_from(number)
        .map_err(|_too_large| StorageError::Database(format!("{number} is too large")))
}

impl From<rusqlite::Error> for StorageError {
    fn from(error: rusqlite::Error) -> Self {
        if error.sqlite_error_code() == Some(ErrorCode::DiskFull) {
            let full = std::io::ErrorKind::StorageFull.into();
            return Self::file("cannot write", "the database", full);
        }
        Self::Database(error.to_string())
    }
}
