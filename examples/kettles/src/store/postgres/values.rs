//! Conversions between our types and PostgreSQL's.

use std::error::Error;

use bytes::BytesMut;
use postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

use crate::device::DeviceId;
use crate::time::Time;

/// 2000-01-01, the epoch of PostgreSQL's timestamps.
const EPOCH_US: i64 = 946_684_800_000_000;

impl ToSql for Time {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let micros = self.0.checked_sub(EPOCH_US).ok_or("time out of range")?;
        micros.to_sql(&Type::INT8, out)
    }

    accepts!(TIMESTAMPTZ);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for Time {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        let micros = i64::from_sql(&Type::INT8, raw)?;
        Ok(Self(
            micros.checked_add(EPOCH_US).ok_or("time out of range")?,
        ))
    }

    accepts!(TIMESTAMPTZ);
}

impl ToSql for DeviceId {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    accepts!(UUID);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for DeviceId {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(raw.try_into()?))
    }

    accepts!(UUID);
}
