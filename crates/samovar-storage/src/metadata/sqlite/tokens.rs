//! Statements about tokens.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use crate::error::StorageError;
use crate::metadata::NewToken;
use crate::token::{Rights, Token, TokenHash};

pub(super) fn add(
    connection: &Connection,
    hash: &TokenHash,
    token: &NewToken,
    now: i64,
) -> Result<i64, StorageError> {
    connection.execute(
        "insert into token (hash, name, cache, rights, created_at, expires_at) \
         values (?1, ?2, ?3, ?4, ?5, ?6)",
        params![
            hash.0,
            token.name,
            token.cache,
            token.rights.bits(),
            now,
            token.expires_at
        ],
    )?;
    Ok(connection.last_insert_rowid())
}

pub(crate) fn all(connection: &Connection) -> Result<Vec<Token>, StorageError> {
    let mut statement = connection.prepare_cached(
        "select id, name, cache, rights, created_at, expires_at, revoked_at from token \
         order by id desc",
    )?;
    let rows = statement.query_map([], token_of)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn find(
    connection: &Connection,
    hash: &TokenHash,
) -> Result<Option<Token>, StorageError> {
    let mut statement = connection.prepare_cached(
        "select id, name, cache, rights, created_at, expires_at, revoked_at from token \
         where hash = ?1",
    )?;
    Ok(statement.query_row([hash.0], token_of).optional()?)
}

pub(super) fn is_valid(
    connection: &Connection,
    token: i64,
    now: i64,
) -> Result<bool, StorageError> {
    let is_valid: Option<bool> = connection
        .prepare_cached(
            "select revoked_at is null and (expires_at is null or expires_at > ?2) from token \
             where id = ?1",
        )?
        .query_row(params![token, now], |row| row.get(0))
        .optional()?;
    Ok(is_valid == Some(true))
}

pub(super) fn revoke(connection: &Connection, name: &str, now: i64) -> Result<usize, StorageError> {
    let count = connection.execute(
        "update token set revoked_at = ?2 where name = ?1 and revoked_at is null",
        params![name, now],
    )?;
    Ok(count)
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
