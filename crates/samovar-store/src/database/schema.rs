//! Checks that the database has a supported schema.
//!
//! Nix records the schema version in `db/schema` and raises it for every change, whether or not the
//! change matters here. So the version alone does not decide. All tables and columns that are read
//! must exist; for version 10 that is sufficient. For any other version the newest rows must be
//! readable as well, and the operator gets a warning.

use std::fmt;
use std::io::Read;
use std::path::Path;

use rusqlite::{Connection, OptionalExtension};
use samovar_nix::StoreDir;

use super::row;
use crate::error::{StoreError, Unavailable};

/// The supported schema version, used by every Nix since 2.0.
pub(crate) const SCHEMA_KNOWN: u32 = 10;

/// Number of rows read to check an unknown schema version.
const SAMPLE_COUNT: usize = 32;

/// Declares a column: its table, its name, and the error if it is missing.
macro_rules! column {
    ($table:literal, $column:literal) => {
        (
            $table,
            $column,
            concat!("the column ", $table, ".", $column, " is missing"),
        )
    };
}

const COLUMNS: [(&str, &str, &str); 11] = [
    column!("ValidPaths", "id"),
    column!("ValidPaths", "path"),
    column!("ValidPaths", "hash"),
    column!("ValidPaths", "registrationTime"),
    column!("ValidPaths", "deriver"),
    column!("ValidPaths", "narSize"),
    column!("ValidPaths", "ultimate"),
    column!("ValidPaths", "sigs"),
    column!("ValidPaths", "ca"),
    column!("Refs", "referrer"),
    column!("Refs", "reference"),
];

const HAS_COLUMN: &str = "select 1 from pragma_table_info(?1) where name = ?2 collate nocase";

/// Query that returns a row if ids ascend and are never reused. New rows are found by their ids, so
/// this is required.
const IS_COUNTED: &str = "select 1 from sqlite_master where type = 'table' and \
    name = 'ValidPaths' collate nocase and sql like '%autoincrement%'";

/// Query that returns a row if a unique index ensures that each path has at most one row.
const IS_UNIQUE: &str = "select 1 from pragma_index_list('ValidPaths') as list where \
    list.\"unique\" and list.partial = 0 and \
    (select group_concat(name) from pragma_index_info(list.name)) = 'path' collate nocase";

/// The contents of `db/schema`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Schema {
    /// A version number.
    Number(u32),
    /// The file does not exist. Nix writes it after the database, so a new store may lack it for a
    /// moment, and so may copies of the database.
    Absent,
    /// The contents are not a number, or the file cannot be read.
    Unreadable,
}

/// A warning: the database is served although its schema version is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchemaWarning(Schema);

impl fmt::Display for SchemaWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the schema of the Nix database is {}, but {SCHEMA_KNOWN} is supported: all tables and \
             columns in use exist, so it is served; look for a newer Samovar",
            self.0
        )
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Absent => f.write_str("missing"),
            Self::Unreadable => f.write_str("not a number"),
        }
    }
}

impl Schema {
    /// Returns the warning for a database that passed [`check`](Self::check); `None` if its schema
    /// version is known.
    pub(crate) fn warning(self) -> Option<SchemaWarning> {
        (!self.is_known()).then_some(SchemaWarning(self))
    }

    /// Checks that all tables and columns in use exist and mean the same as in schema 10. The
    /// caller holds a transaction, so that no migration changes them during the checks.
    pub(crate) fn check(self, connection: &Connection, dir: &StoreDir) -> Result<(), StoreError> {
        for (table, column, missing) in COLUMNS {
            require(connection, HAS_COLUMN, &[table, column], missing)?;
        }
        let what = "ValidPaths.id is not an autoincrement column";
        require(connection, IS_COUNTED, &[], what)?;
        let what = "ValidPaths.path is not unique";
        require(connection, IS_UNIQUE, &[], what)?;
        if self.is_known() {
            return Ok(());
        }
        match row::sample(connection, dir, SAMPLE_COUNT) {
            Err(StoreError::Corrupt(_)) => form("its newest rows are malformed"),
            other => other,
        }
    }

    fn is_known(self) -> bool {
        matches!(self, Self::Number(SCHEMA_KNOWN) | Self::Absent)
    }
}

fn require(
    connection: &Connection,
    question: &str,
    values: &[&str],
    what: &'static str,
) -> Result<(), StoreError> {
    let found = connection
        .query_row(question, rusqlite::params_from_iter(values), |_row| Ok(()))
        .optional()?;
    found.map_or_else(|| form(what), Ok)
}

fn form(what: &'static str) -> Result<(), StoreError> {
    Err(StoreError::Unavailable(Unavailable::Form(what)))
}

/// Reads `db/schema`.
pub(crate) fn read_schema(path: &Path) -> Result<Schema, StoreError> {
    use std::io::ErrorKind;
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Schema::Absent),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(Schema::Unreadable),
        Err(error) => return Err(StoreError::io("reading the database", &error)),
    };
    let mut text = String::new();
    let read = file.take(64).read_to_string(&mut text);
    Ok(match (read, text.trim().parse()) {
        (Ok(_), Ok(number)) => Schema::Number(number),
        _ => Schema::Unreadable,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(content: &str, expected: Schema) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("schema");
        std::fs::write(&path, content).unwrap();
        assert_eq!(read_schema(&path), Ok(expected));
    }

    #[test]
    fn numbers() {
        check("10", Schema::Number(10));
        check("10\n", Schema::Number(10));
        check("11", Schema::Number(11));
        check("", Schema::Unreadable);
        check("ten", Schema::Unreadable);
        assert_eq!(
            read_schema(Path::new("/nonexistent/schema")),
            Ok(Schema::Absent)
        );
    }
}
