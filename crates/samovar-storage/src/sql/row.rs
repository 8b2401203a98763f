//! [`Row`]: a row of a result.

use super::change::CacheId;
use super::value::Value;
use crate::error::StorageError;

/// A row of the result of a query.
#[derive(Debug)]
pub(crate) enum Row<'r> {
    Sqlite(&'r rusqlite::Row<'r>),
    Postgres(&'r tokio_postgres::Row),
}

impl Row<'_> {
    /// Returns the value of a column, which are counted from 0.
    ///
    /// # Errors
    ///
    /// [`StorageError::Damaged`] if the value has another type.
    pub(crate) fn get<'s, T: Column<'s>>(&'s self, index: usize) -> Result<T, StorageError> {
        let value = self.value(index)?;
        T::of(value).ok_or_else(|| {
            let kind = match value {
                Value::Null => "null",
                Value::Integer(_) => "an integer",
                Value::Text(_) => "a text",
                Value::Bytes(_) => "a blob",
                Value::List(_) => "a list",
            };
            StorageError::Damaged(format!(
                "column {index} of a row has the wrong type: {kind}"
            ))
        })
    }

    fn value(&self, index: usize) -> Result<Value<'_>, StorageError> {
        match self {
            Self::Sqlite(row) => super::sqlite::value(row, index),
            Self::Postgres(row) => super::postgres::value(row, index),
        }
    }
}

/// A type of the values of columns.
pub(crate) trait Column<'r>: Sized {
    /// Returns the value, or `None` if it has another type.
    fn of(value: Value<'r>) -> Option<Self>;
}

impl Column<'_> for i64 {
    fn of(value: Value<'_>) -> Option<Self> {
        match value {
            Value::Integer(number) => Some(number),
            _ => None,
        }
    }
}

impl Column<'_> for bool {
    fn of(value: Value<'_>) -> Option<Self> {
        i64::of(value).map(|number| number != 0)
    }
}

impl Column<'_> for CacheId {
    fn of(value: Value<'_>) -> Option<Self> {
        i64::of(value).map(Self)
    }
}

impl<'r> Column<'r> for &'r str {
    fn of(value: Value<'r>) -> Option<Self> {
        match value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl Column<'_> for String {
    fn of(value: Value<'_>) -> Option<Self> {
        <&str>::of(value).map(str::to_owned)
    }
}

impl<'r> Column<'r> for &'r [u8] {
    fn of(value: Value<'r>) -> Option<Self> {
        match value {
            Value::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

impl Column<'_> for Vec<u8> {
    fn of(value: Value<'_>) -> Option<Self> {
        <&[u8]>::of(value).map(<[u8]>::to_vec)
    }
}

impl<const LEN: usize> Column<'_> for [u8; LEN] {
    fn of(value: Value<'_>) -> Option<Self> {
        <&[u8]>::of(value)?.try_into().ok()
    }
}

impl<'r, T: Column<'r>> Column<'r> for Option<T> {
    fn of(value: Value<'r>) -> Option<Self> {
        match value {
            Value::Null => Some(None),
            value => T::of(value).map(Some),
        }
    }
}
