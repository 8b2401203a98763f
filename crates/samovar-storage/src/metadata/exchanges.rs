//! Tokens that are given for ID tokens of OIDC.

use samovar_nix::Glob;

use super::tokens::{NewToken, rights_column};
use super::{DAY, Database};
use crate::error::StorageError;
use crate::sql::{Change, Connection, params};
use crate::token::{OIDC_PREFIX, TokenHash};

/// Maximum number of valid tokens with the same name, which belong to one CI job. Parallel steps
/// have a token each; more are a program that requests them in a loop.
pub const COUNT_MAX: i64 = 64;

/// Time, in seconds, for which an expired token is kept: a client that still uses it learns why it
/// is refused, and what was uploaded with it can be found in lists.
const KEPT_TIME: i64 = DAY;

/// What was done about a request for a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Issued {
    /// The token was added. It is valid until this time, in seconds since 1970.
    Added(i64),
    /// The token that the client has is valid until this time.
    Extended(i64),
    /// There are [`COUNT_MAX`] valid tokens with this name.
    TooMany,
}

/// Adds a token that is valid for `lifetime` seconds. If the client has a valid token of the same
/// name, rights and patterns, whose hash is `renewed`, extends that token instead.
///
/// `new.expires_at` is not used.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn issue(
    database: &Database,
    hash: &TokenHash,
    new: &NewToken,
    lifetime: i64,
    renewed: Option<&TokenHash>,
) -> Result<Issued, StorageError> {
    database.write(|transaction| {
        let now = database.now();
        let expires_at = now.saturating_add(lifetime);
        let renewed = match renewed {
            Some(renewed) => extensible(transaction, renewed, new, now)?,
            None => None,
        };
        if let Some((id, until)) = renewed {
            let expires_at = expires_at.max(until);
            let update = "update token set expires_at = ?2 where id = ?1";
            transaction.execute(update, params![id, expires_at])?;
            transaction.note(Change::TokensChanged);
            return Ok(Issued::Extended(expires_at));
        }
        let count: i64 = transaction.row(
            "select count(*) from token where name = ?1 and revoked_at is null and expires_at > ?2",
            params![&new.name, now],
            |row| row.get(0),
        )?;
        if count >= COUNT_MAX {
            return Ok(Issued::TooMany);
        }
        let pattern = |glob: &Option<Glob>| glob.as_ref().map(Glob::to_string);
        let (cache, names) = (pattern(&new.cache), pattern(&new.names));
        transaction.execute(
            "insert into token (hash, name, cache, names, rights, created_at, expires_at) \
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            params![
                &hash.0,
                &new.name,
                cache.as_deref(),
                names.as_deref(),
                rights_column(new),
                now,
                expires_at
            ],
        )?;
        transaction.note(Change::TokensChanged);
        Ok(Issued::Added(expires_at))
    })
}

/// Finds the valid token with this hash, if it is like `new`. Returns its row number, and the time
/// until which it is valid.
fn extensible(
    connection: &Connection<'_>,
    hash: &TokenHash,
    new: &NewToken,
    now: i64,
) -> Result<Option<(i64, i64)>, StorageError> {
    let pattern = |glob: &Option<Glob>| glob.as_ref().map(Glob::to_string);
    let wanted = (pattern(&new.cache), pattern(&new.names), rights_column(new));
    let found = connection.optional(
        "select id, expires_at, cache, names, rights from token \
         where hash = ?1 and name = ?2 and revoked_at is null and expires_at > ?3",
        params![&hash.0, &new.name, now],
        |row| {
            let own = (row.get(2)?, row.get(3)?, row.get(4)?);
            Ok((own == wanted).then_some((row.get(0)?, row.get(1)?)))
        },
    )?;
    Ok(found.flatten())
}

/// Deletes the tokens of OIDC that have expired a day ago, unless a path was uploaded with them:
/// lists of paths say by which token. Returns their number.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn remove_expired(database: &Database) -> Result<usize, StorageError> {
    // If a power cut undoes this, the next run does it again.
    database.write_lazily(|transaction| {
        let before = database.now().saturating_sub(KEPT_TIME);
        let prefix_len = i64::try_from(OIDC_PREFIX.len()).unwrap_or_default();
        transaction.execute(
            "delete from token where expires_at < ?1 and substr(name, 1, ?2) = ?3 \
             and not exists (select 1 from path where path.token_id = token.id) \
             and not exists (select 1 from push where push.token_id = token.id)",
            params![before, prefix_len, OIDC_PREFIX],
        )
    })
}
