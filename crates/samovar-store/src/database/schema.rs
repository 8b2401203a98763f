//! Whether this is a database whose rows are understood.
//!
//! Nix says in `db/schema` which schema it is, and raises that number for any change: for one that
//! takes away what is read here, and for one that adds a table nobody asks for. So the number
//! alone decides nothing: what is read is looked for. With the number 10 that is enough. With
//! another one the newest rows must make sense as well, and the operator is told.

use std::fmt;
use std::io::Read;
use std::path::Path;

use rusqlite::{Connection, OptionalExtension};
use samovar_nix::StoreDir;

use super::connection::store_error;
use super::row;
use crate::error::{Operation, StoreError, Unavailable};

/// The schema this program was made for: that of every Nix since 2.0.
const SCHEMA_KNOWN: u32 = 10;

/// Rows that are read to see whether rows are what they were.
const SAMPLE_COUNT: usize = 32;

/// A table, its column, and what is said when it is missing.
macro_rules! column {
    ($table:literal, $column:literal) => {
        (
            $table,
            $column,
            concat!("there is no column ", $table, ".", $column),
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

/// New rows are found by their numbers, which must rise and never be used twice.
const IS_COUNTED: &str = "select 1 from sqlite_master where type = 'table' and \
    name = 'ValidPaths' collate nocase and sql like '%autoincrement%'";

/// One path has one row.
const IS_UNIQUE: &str = "select 1 from pragma_index_list('ValidPaths') as list where \
    list.\"unique\" and list.partial = 0 and \
    (select group_concat(name) from pragma_index_info(list.name)) = 'path' collate nocase";

/// What `db/schema` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Schema {
    /// A number.
    Number(u32),
    /// There is no such file. Nix writes it after the database, so a new store may lack it for a
    /// moment, and so do copies of the database alone.
    Absent,
    /// Something that is no number, or cannot be read.
    Unreadable,
}

/// A database is served though its schema is not the one that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchemaRemark(Schema);

impl fmt::Display for SchemaRemark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the schema of the Nix database is {}, and {SCHEMA_KNOWN} is the one that is known: \
             all that is read of it was found, so it is served; look for a newer Samovar",
            self.0
        )
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Absent => f.write_str("not named"),
            Self::Unreadable => f.write_str("no number"),
        }
    }
}

impl Schema {
    /// What to tell the operator of a database that [`check`](Self::check) found to be good.
    pub(crate) fn remark(self) -> Option<SchemaRemark> {
        (!self.is_known()).then_some(SchemaRemark(self))
    }

    /// Whether all that is read is there, and means what it means in schema 10.
    /// The caller is in a transaction: a migration may come in between.
    pub(crate) fn check(self, connection: &Connection, dir: &StoreDir) -> Result<(), StoreError> {
        for (table, column, missing) in COLUMNS {
            require(connection, HAS_COLUMN, &[table, column], missing)?;
        }
        let what = "ValidPaths.id is not counted by SQLite";
        require(connection, IS_COUNTED, &[], what)?;
        let what = "ValidPaths.path is not unique";
        require(connection, IS_UNIQUE, &[], what)?;
        if self.is_known() {
            return Ok(());
        }
        match row::sample(connection, dir, SAMPLE_COUNT) {
            Err(StoreError::Corrupt(_)) => form("its newest rows make no sense"),
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
        .optional()
        .map_err(|error| store_error(&error))?;
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
        Err(error) => return Err(StoreError::io(Operation::ReadDatabase, &error)),
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
