//! Parameters and columns in the binary format of PostgreSQL.

use bytes::BytesMut;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use super::failure::storage_error;
use crate::error::StorageError;
use crate::sql::Value;

type Failure = Box<dyn std::error::Error + Sync + Send>;

/// Encodes a parameter as the type that the server has inferred for it.
impl ToSql for Value<'_> {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Failure> {
        match *self {
            Value::Null => return Ok(IsNull::Yes),
            Value::Integer(number) => integer(number, kind, out)?,
            Value::Text(text) => out.extend_from_slice(text.as_bytes()),
            Value::Bytes(bytes) => out.extend_from_slice(bytes),
            Value::List(values) => return values.to_sql(kind, out),
        }
        Ok(IsNull::No)
    }

    fn accepts(_kind: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

fn integer(number: i64, kind: &Type, out: &mut BytesMut) -> Result<(), Failure> {
    match *kind {
        Type::BOOL => out.extend_from_slice(&[u8::from(number != 0)]),
        Type::INT2 => out.extend_from_slice(&i16::try_from(number)?.to_be_bytes()),
        Type::INT4 => out.extend_from_slice(&i32::try_from(number)?.to_be_bytes()),
        Type::INT8 => out.extend_from_slice(&number.to_be_bytes()),
        Type::TEXT | Type::VARCHAR => out.extend_from_slice(number.to_string().as_bytes()),
        _ => return Err(format!("an integer is no {kind}: cast the parameter").into()),
    }
    Ok(())
}

/// Returns the value of a column of a row.
///
/// # Errors
///
/// [`StorageError::Database`] if there is no such column, or if it has a type without a [`Value`].
pub(crate) fn value(row: &Row, index: usize) -> Result<Value<'_>, StorageError> {
    let decoded = row.try_get::<_, Decoded<'_>>(index);
    Ok(decoded.map_err(|error| storage_error(&error))?.0)
}

struct Decoded<'a>(Value<'a>);

impl<'a> FromSql<'a> for Decoded<'a> {
    fn from_sql(kind: &Type, bytes: &'a [u8]) -> Result<Self, Failure> {
        Ok(Self(match *kind {
            Type::TEXT | Type::VARCHAR | Type::NAME | Type::UNKNOWN => {
                Value::Text(std::str::from_utf8(bytes)?)
            }
            Type::BYTEA => Value::Bytes(bytes),
            _ => {
                let number = number(kind, bytes);
                Value::Integer(number.ok_or_else(|| format!("a column is {kind}: cast it"))?)
            }
        }))
    }

    fn from_sql_null(_kind: &Type) -> Result<Self, Failure> {
        Ok(Self(Value::Null))
    }

    fn accepts(_kind: &Type) -> bool {
        true
    }
}

/// Decodes an integer of any width, a truth value, or a sum of integers, which is a `numeric`.
fn number(kind: &Type, bytes: &[u8]) -> Option<i64> {
    Some(match *kind {
        Type::BOOL => i64::from(*bytes.first()? != 0),
        Type::INT2 => i16::from_be_bytes(bytes.try_into().ok()?).into(),
        Type::INT4 => i32::from_be_bytes(bytes.try_into().ok()?).into(),
        Type::INT8 => i64::from_be_bytes(bytes.try_into().ok()?),
        Type::NUMERIC => numeric(bytes)?,
        _ => return None,
    })
}

/// Decodes a `numeric` without a fraction.
///
/// # Source
///
/// PostgreSQL 15, `src/backend/utils/adt/numeric.c`, `numeric_send`: number of digits, weight of
/// the first digit, sign, scale, and digits to the base 10,000, each as 16 bits.
fn numeric(bytes: &[u8]) -> Option<i64> {
    const NEGATIVE: u16 = 0x4000;
    let words: Vec<u16> = bytes
        .chunks_exact(2)
        .map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
        .collect();
    let [_count, weight, sign, _scale, digits @ ..] = &words[..] else {
        return None;
    };
    if !matches!(*sign, 0 | NEGATIVE) {
        return None;
    }
    let mut total: i64 = 0;
    // Trailing zero digits are not sent.
    let place_count = usize::from(*weight)
        .checked_add(1)
        .filter(|count| *count <= 5);
    let place_count = if digits.is_empty() { 0 } else { place_count? };
    for place in 0..place_count {
        let digit = digits.get(place).copied().unwrap_or(0);
        let digit = match *sign {
            NEGATIVE => -i64::from(digit),
            _ => i64::from(digit),
        };
        total = total.checked_mul(10_000)?.checked_add(digit)?;
    }
    (digits.len() <= place_count).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_numeric(words: &[u16], expected: Option<i64>) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        assert_eq!(numeric(&bytes), expected, "{words:?}");
    }

    #[test]
    fn sums_are_decoded() {
        check_numeric(&[0, 0, 0, 0], Some(0));
        check_numeric(&[1, 0, 0, 0, 42], Some(42));
        check_numeric(&[1, 1, 0, 0, 3], Some(30_000));
        check_numeric(&[2, 1, 0x4000, 0, 1, 2], Some(-10_002));
        check_numeric(&[5, 4, 0, 0, 922, 3372, 368, 5477, 5807], Some(i64::MAX));
        check_numeric(&[5, 4, 0, 0, 922, 3372, 368, 5477, 5808], None);
        check_numeric(
            &[5, 4, 0x4000, 0, 922, 3372, 368, 5477, 5808],
            Some(i64::MIN),
        );
        // A fraction, not a number, and a truncated value.
        check_numeric(&[1, 0xffff, 0, 1, 5000], None);
        check_numeric(&[2, 0, 0, 1, 1, 5000], None);
        check_numeric(&[0, 0, 0xc000, 0], None);
        check_numeric(&[1, 0], None);
    }
}
