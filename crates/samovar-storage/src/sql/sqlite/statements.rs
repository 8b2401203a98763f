//! Runs statements on a connection, and reads the columns of rows.

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, ToSql, params_from_iter};

use crate::error::StorageError;
use crate::sql::connection::Visit;
use crate::sql::row::Row;
use crate::sql::value::Value;

pub(in crate::sql) fn execute(
    connection: &Connection,
    sql: &str,
    params: &[Value<'_>],
) -> Result<usize, StorageError> {
    let mut statement = connection.prepare_cached(sql)?;
    Ok(statement.execute(params_from_iter(params))?)
}

pub(in crate::sql) fn each(
    connection: &Connection,
    sql: &str,
    params: &[Value<'_>],
    visit: &mut Visit<'_>,
) -> Result<(), StorageError> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params_from_iter(params))?;
    while let Some(row) = rows.next()? {
        if visit(&Row::Sqlite(row))?.is_break() {
            break;
        }
    }
    Ok(())
}

/// Returns the value of a column.
pub(in crate::sql) fn value<'r>(
    row: &'r rusqlite::Row<'_>,
    index: usize,
) -> Result<Value<'r>, StorageError> {
    let damaged = |what| StorageError::Damaged(format!("column {index} of a row has {what}"));
    Ok(match row.get_ref(index)? {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Integer(number),
        ValueRef::Real(_) => return Err(damaged("a number that is not an integer")),
        ValueRef::Text(text) => {
            let text = str::from_utf8(text);
            Value::Text(text.map_err(|_invalid| damaged("a text that is not UTF-8"))?)
        }
        ValueRef::Blob(bytes) => Value::Bytes(bytes),
    })
}

impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match *self {
            Self::Null => ValueRef::Null,
            Self::Integer(number) => ValueRef::Integer(number),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Bytes(bytes) => ValueRef::Blob(bytes),
            Self::List(_) => return Err(rusqlite::Error::ToSqlConversionFailure("a list".into())),
        }))
    }
}

impl From<rusqlite::Error> for StorageError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy) => Self::Busy,
            Some(ErrorCode::DiskFull) => {
                let full = std::io::ErrorKind::StorageFull.into();
                Self::file("cannot write", "the database", full)
            }
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
                Self::Damaged(error.to_string())
            }
            _ => Self::Database(error.to_string()),
        }
    }
}
