//! [`Value`]: the value of a parameter or of a column.

use super::change::CacheId;

/// The value of a parameter of a statement, or of a column of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value<'v> {
    Null,
    /// An integer. As a parameter also a condition: 0 is false, and 1 is true.
    Integer(i64),
    Text(&'v str),
    Bytes(&'v [u8]),
    /// Values of one type, as a parameter for PostgreSQL.
    List(&'v [Self]),
}

/// Makes the parameters of a statement: `params![id, name]` is the slice of these [`Value`]s.
macro_rules! params {
    ($($value:expr),* $(,)?) => {
        &[$($crate::sql::Value::from($value)),*]
    };
}
pub(crate) use params;

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl From<u32> for Value<'_> {
    fn from(number: u32) -> Self {
        Self::Integer(number.into())
    }
}

impl From<bool> for Value<'_> {
    fn from(condition: bool) -> Self {
        Self::Integer(condition.into())
    }
}

impl From<CacheId> for Value<'_> {
    fn from(cache: CacheId) -> Self {
        Self::Integer(cache.0)
    }
}

impl<'v> From<&'v str> for Value<'v> {
    fn from(text: &'v str) -> Self {
        Self::Text(text)
    }
}

impl<'v> From<&'v String> for Value<'v> {
    fn from(text: &'v String) -> Self {
        Self::Text(text)
    }
}

impl<'v> From<&'v [u8]> for Value<'v> {
    fn from(bytes: &'v [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'v, const LEN: usize> From<&'v [u8; LEN]> for Value<'v> {
    fn from(bytes: &'v [u8; LEN]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'v> From<&'v Vec<u8>> for Value<'v> {
    fn from(bytes: &'v Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'v, T> From<Option<T>> for Value<'v>
where
    Self: From<T>,
{
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Self::from)
    }
}
