//! Tokens, and what they permit.

use samovar_nix::Glob;

use super::Database;
use crate::error::StorageError;
use crate::sql::{Change, Connection, Row, SCHEMA, params};
use crate::token::{Rights, Token, TokenHash};

/// Bit in the column `rights` of a token with a pattern in the column `names`: the right to push
/// these names. Servers of schema 5 and older read neither, so they refuse uploads with the token.
const PUSH_NAMES: i64 = 8;

/// Schema version in which the column `names` was added.
const NAMES_SCHEMA: i64 = 6;

/// Adds a token. Returns its row number.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn add(database: &Database, hash: &TokenHash, token: &NewToken) -> Result<i64, StorageError> {
    let cache = token.cache.as_ref().map(Glob::to_string);
    let names = token.names.as_ref().map(Glob::to_string);
    database.write(|transaction| {
        let id = transaction.row(
            "insert into token (hash, name, cache, names, rights, created_at, expires_at) \
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7) returning id",
            params![
                &hash.0,
                &token.name,
                cache.as_ref(),
                names.as_ref(),
                rights_column(token),
                database.now(),
                token.expires_at
            ],
            |row| row.get(0),
        )?;
        transaction.note(Change::TokensChanged);
        Ok(id)
    })
}

/// Returns the column `rights` of a token.
pub(super) fn rights_column(token: &NewToken) -> i64 {
    match token.rights {
        rights @ Rights { push: true, .. } if token.names.is_some() => {
            let others = Rights {
                push: false,
                ..rights
            };
            others.bits() | PUSH_NAMES
        }
        rights => rights.bits(),
    }
}

/// Returns all tokens, newest first.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn all(database: &Database) -> Result<Vec<Token>, StorageError> {
    database.read(|connection| all_in(connection, SCHEMA))
}

/// Returns at most `count_max` tokens that are valid now, newest first, each with the hash of
/// its text.
pub(crate) fn valid(
    database: &Database,
    count_max: usize,
) -> Result<Vec<(TokenHash, Token)>, StorageError> {
    database.read(|connection| {
        let now = database.now();
        let query = format!(
            "{} where revoked_at is null and (expires_at is null or expires_at > ?1) \
             order by id desc limit ?2",
            select(SCHEMA)
        );
        let count_max = i64::try_from(count_max).unwrap_or(i64::MAX);
        connection.rows(&query, params![now, count_max], |row| {
            Ok((TokenHash(row.get(8)?), token_of(row)?))
        })
    })
}

/// Returns the token whose text has this hash, or `None` if no token has it.
pub(crate) fn find(database: &Database, hash: &TokenHash) -> Result<Option<Token>, StorageError> {
    database.read(|connection| {
        let query = format!("{} where hash = ?1", select(SCHEMA));
        connection.optional(&query, params![&hash.0], token_of)
    })
}

/// Returns whether a token is valid: neither revoked nor expired.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn is_valid(database: &Database, token: i64) -> Result<bool, StorageError> {
    database.read(|connection| is_valid_in(connection, token, database.now()))
}

/// Revokes all valid tokens with this name. Returns their number. After that, no upload with
/// one of them is published.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn revoke(database: &Database, name: &str) -> Result<usize, StorageError> {
    database.write(|transaction| {
        let count = transaction.execute(
            "update token set revoked_at = ?2 where name = ?1 and revoked_at is null",
            params![name, database.now()],
        )?;
        transaction.note(Change::TokensChanged);
        Ok(count)
    })
}

/// The properties of a token to add.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// Name for operators: see [`Token::name`].
    pub name: String,
    /// Pattern for the names of caches: see [`Token::cache`].
    pub cache: Option<Glob>,
    /// Pattern for the names of store paths: see [`Token::names`].
    pub names: Option<Glob>,
    /// Rights that the token gives: see [`Token::rights`].
    pub rights: Rights,
    /// Time of expiry in seconds since 1970: see [`Token::expires_at`].
    pub expires_at: Option<i64>,
}

/// The decision whether a token permits a change.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Permit {
    Granted,
    /// The token was revoked or has expired.
    Invalid,
    /// The token permits only names that match this pattern.
    OtherName(Glob),
}

/// Returns all tokens of a database with this schema version.
pub(crate) fn all_in(connection: &Connection<'_>, schema: i64) -> Result<Vec<Token>, StorageError> {
    let query = format!("{} order by id desc", select(schema));
    connection.rows(&query, &[], token_of)
}

fn is_valid_in(connection: &Connection<'_>, token: i64, now: i64) -> Result<bool, StorageError> {
    Ok(permit(connection, token, now, |_names| true)? == Permit::Granted)
}

/// Checks that a token is valid now.
///
/// # Errors
///
/// [`StorageError::TokenInvalid`]. Other errors.
pub(super) fn check(connection: &Connection<'_>, token: i64, now: i64) -> Result<(), StorageError> {
    match is_valid_in(connection, token, now)? {
        true => Ok(()),
        false => Err(StorageError::TokenInvalid),
    }
}

/// Decides whether a token permits a change now. `matches` returns whether the names of the change
/// match the token's pattern; it is not called if the token has none.
pub(super) fn permit(
    connection: &Connection<'_>,
    token: i64,
    now: i64,
    matches: impl FnOnce(&Glob) -> bool,
) -> Result<Permit, StorageError> {
    let Some(names) = permitted_names(connection, token, now)? else {
        return Ok(Permit::Invalid);
    };
    Ok(match names {
        Some(names) if !matches(&names) => Permit::OtherName(names),
        _ => Permit::Granted,
    })
}

/// Returns the pattern of the names that a token permits; within it `None`: all names. Returns
/// `None` if the token is not valid now.
pub(super) fn permitted_names(
    connection: &Connection<'_>,
    token: i64,
    now: i64,
) -> Result<Option<Option<Glob>>, StorageError> {
    let query = "select names from token where id = ?1 \
                 and revoked_at is null and (expires_at is null or expires_at > ?2)";
    connection.optional(query, params![token, now], |row| {
        Ok(row.get::<Option<&str>>(0)?.map(Glob::new))
    })
}

/// Returns a query for the columns that [`token_of`] reads, from a database with this schema
/// version.
fn select(schema: i64) -> String {
    let names = match schema < NAMES_SCHEMA {
        true => "null",
        false => "names",
    };
    format!(
        "select id, name, cache, {names}, rights, created_at, expires_at, revoked_at, hash \
         from token"
    )
}

fn token_of(row: &Row<'_>) -> Result<Token, StorageError> {
    let pattern = |text: Option<String>| text.map(|text| Glob::new(&text));
    let bits: i64 = row.get(4)?;
    let rights = Rights::from_bits(bits);
    Ok(Token {
        id: row.get(0)?,
        name: row.get(1)?,
        cache: pattern(row.get(2)?),
        names: pattern(row.get(3)?),
        rights: Rights {
            push: rights.push || bits & PUSH_NAMES != 0,
            ..rights
        },
        created_at: row.get(5)?,
        expires_at: row.get(6)?,
        revoked_at: row.get(7)?,
    })
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::super::backup;
    use super::*;

    fn new(rights: &str, names: Option<&str>) -> NewToken {
        NewToken {
            name: "ci".to_owned(),
            cache: Some(Glob::new("team-*")),
            names: names.map(Glob::new),
            rights: rights.parse().unwrap(),
            expires_at: Some(10),
        }
    }

    /// Returns a database whose clock always returns 1.
    fn database() -> (TempDir, Database) {
        let dir = tempfile::tempdir().unwrap();
        let database = Database::with_clock(&dir.path().join("db.sqlite"), || 1).unwrap();
        (dir, database)
    }

    #[test]
    fn tokens_are_read_as_they_were_added() {
        let (_dir, database) = database();
        for (number, (rights, names)) in [
            ("read,push", None),
            ("push", Some("mr-*")),
            ("read", Some("mr-*")),
        ]
        .into_iter()
        .enumerate()
        {
            let hash = TokenHash([u8::try_from(number).unwrap(); 32]);
            let new = new(rights, names);
            let id = add(&database, &hash, &new).unwrap();
            let found = find(&database, &hash).unwrap().unwrap();
            assert_eq!(all(&database).unwrap()[0], found);
            assert_eq!((found.id, found.rights), (id, new.rights));
            assert_eq!((found.cache, found.names), (new.cache, new.names));
        }
    }

    #[test]
    fn a_restored_token_has_its_patterns() {
        let (_dir, database) = database();
        let hash = TokenHash([7; 32]);
        add(&database, &hash, &new("push", Some("mr-*"))).unwrap();
        let mut lines = Vec::new();
        let mut write = |line: &str| {
            lines.push(line.to_owned());
            Ok(())
        };
        backup::dump(&database, &mut write).unwrap();
        let (_other_dir, other) = self::database();
        backup::restore(&other, &lines).unwrap();
        assert_eq!(
            find(&other, &hash).unwrap(),
            find(&database, &hash).unwrap()
        );
    }

    #[test]
    fn a_server_of_schema_5_refuses_a_token_for_some_names() {
        let (_dir, database) = database();
        add(
            &database,
            &TokenHash([0; 32]),
            &new("read,push", Some("mr-*")),
        )
        .unwrap();
        let bits = database
            .read(|connection| connection.row("select rights from token", &[], |row| row.get(0)));
        let bits = bits.unwrap();
        assert_eq!(Rights::from_bits(bits).to_string(), "read");
        let old = database.read(|connection| all_in(connection, NAMES_SCHEMA - 1));
        let old = old.unwrap();
        assert_eq!(old[0].names, None);
    }

    #[test]
    fn permits() {
        let (_dir, database) = database();
        let id = add(&database, &TokenHash([0; 32]), &new("push", Some("mr-*"))).unwrap();
        let permit = |id, now, name: &str| {
            let matches = |names: &Glob| names.matches(name);
            let permit = database.read(|connection| permit(connection, id, now, matches));
            permit.unwrap()
        };
        assert_eq!(permit(id, 9, "mr-1"), Permit::Granted);
        assert_eq!(permit(id, 9, "main"), Permit::OtherName(Glob::new("mr-*")));
        assert_eq!(permit(id, 10, "mr-1"), Permit::Invalid);
        assert_eq!(permit(id + 1, 9, "mr-1"), Permit::Invalid);
        let all = add(&database, &TokenHash([1; 32]), &new("push", None)).unwrap();
        assert_eq!(permit(all, 9, "main"), Permit::Granted);
        revoke(&database, "ci").unwrap();
        assert_eq!(permit(id, 9, "mr-1"), Permit::Invalid);
    }
}
