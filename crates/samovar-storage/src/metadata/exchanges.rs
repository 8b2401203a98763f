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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use tempfile::TempDir;

    use super::super::tokens;
    use super::*;

    /// The clock of the databases of one test.
    macro_rules! database_with_clock {
        ($dir:ident, $database:ident, $clock:ident) => {
            static $clock: AtomicI64 = AtomicI64::new(1000);
            let $dir = TempDir::new().unwrap();
            let path = $dir.path().join("db.sqlite");
            let $database = Database::with_clock(&path, || $clock.load(Ordering::Relaxed)).unwrap();
        };
    }

    fn new(name: &str) -> NewToken {
        NewToken {
            name: name.to_owned(),
            cache: Some(Glob::new("team-*")),
            names: None,
            rights: "read,push".parse().unwrap(),
            expires_at: None,
        }
    }

    fn hash(number: u8) -> TokenHash {
        TokenHash([number; 32])
    }

    #[test]
    fn a_valid_token_of_the_same_job_is_extended() {
        database_with_clock!(_dir, database, CLOCK);
        let job = new("oidc:github:example/app:1");
        let issue = |number, new: &NewToken, renewed: Option<u8>| {
            let renewed = renewed.map(hash);
            issue(&database, &hash(number), new, 100, renewed.as_ref()).unwrap()
        };
        assert_eq!(issue(1, &job, None), Issued::Added(1100));
        CLOCK.store(1050, Ordering::Relaxed);
        assert_eq!(issue(2, &job, Some(1)), Issued::Extended(1150));
        assert_eq!(tokens::all(&database).unwrap().len(), 1);
        let found = tokens::find(&database, &hash(1)).unwrap().unwrap();
        assert_eq!(found.expires_at, Some(1150));
        // Another job, other rights, other patterns, an unknown token.
        let other_rights = NewToken {
            rights: "read".parse().unwrap(),
            ..job.clone()
        };
        let other_names = NewToken {
            names: Some(Glob::new("a")),
            ..job.clone()
        };
        for (number, other) in [
            (3, &new("oidc:github:example/app:2")),
            (4, &other_rights),
            (5, &other_names),
        ] {
            assert_eq!(issue(number, other, Some(1)), Issued::Added(1150));
        }
        assert_eq!(issue(6, &job, Some(99)), Issued::Added(1150));
        // An expired one, and a revoked one.
        CLOCK.store(1150, Ordering::Relaxed);
        assert_eq!(issue(7, &job, Some(1)), Issued::Added(1250));
        tokens::revoke(&database, &job.name).unwrap();
        assert_eq!(issue(8, &job, Some(7)), Issued::Added(1250));
    }

    #[test]
    fn a_job_has_a_limited_number_of_valid_tokens() {
        database_with_clock!(_dir, database, CLOCK);
        let job = new("oidc:github:example/app:1");
        let issue = |number: i64, new: &NewToken| {
            let hash = hash(u8::try_from(number).unwrap());
            issue(&database, &hash, new, 100, None).unwrap()
        };
        for number in 0..COUNT_MAX {
            assert_eq!(issue(number, &job), Issued::Added(1100));
        }
        assert_eq!(issue(COUNT_MAX, &job), Issued::TooMany);
        let other = new("oidc:github:example/app:2");
        assert_eq!(issue(COUNT_MAX + 1, &other), Issued::Added(1100));
        CLOCK.store(1100, Ordering::Relaxed);
        assert_eq!(issue(COUNT_MAX + 2, &job), Issued::Added(1200));
    }

    #[test]
    fn expired_tokens_of_oidc_are_deleted_unless_paths_name_them() {
        database_with_clock!(_dir, database, CLOCK);
        for (number, name) in [
            (1, "oidc:a:1"),
            (2, "oidc:a:2"),
            (3, "oidc:a:3"),
            (4, "oidcx"),
            (5, "ci"),
        ] {
            issue(&database, &hash(number), &new(name), 100, None).unwrap();
        }
        let written = database.write(|transaction| {
            for statement in [
                "insert into cache (id, name, store_dir, created_at) values (1, 'a', '/s', 0)",
                "insert into nar (id, nar_hash, nar_size, file_hash, file_size, compression, \
                     object_key, created_at) values (1, x'01', 1, x'01', 1, 'none', 'nar/1', 0)",
                "insert into path (cache_id, hash_part, name, nar_id, self_reference, sigs, \
                     registered_at, token_id) values (1, x'01', 'x', 1, 0, '', 0, 2)",
                "insert into push values ('p', 1, 3, 0)",
            ] {
                transaction.execute(statement, &[])?;
            }
            Ok(())
        });
        written.unwrap();
        assert_eq!(remove_expired(&database).unwrap(), 0);
        CLOCK.store(1100 + KEPT_TIME, Ordering::Relaxed);
        assert_eq!(remove_expired(&database).unwrap(), 0);
        CLOCK.store(1101 + KEPT_TIME, Ordering::Relaxed);
        assert_eq!(remove_expired(&database).unwrap(), 1);
        let names = tokens::all(&database).unwrap();
        let names: Vec<&str> = names.iter().map(|token| &*token.name).collect();
        assert_eq!(names, ["ci", "oidcx", "oidc:a:3", "oidc:a:2"]);
    }
}
