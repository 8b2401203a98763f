//! Reads a SQLite store at the start.

use std::collections::HashMap;

use rusqlite::{Connection, Row, Transaction};

use super::CHANGE_LEN;
use crate::command::Command;
use crate::device::{DeviceId, Latest, Measurement};
use crate::habit::Habit;
use crate::stats::{History, Totals};
use crate::store::{Result, StoreError};
use crate::time::Time;

pub(super) fn read_totals(transaction: &Transaction<'_>) -> Result<(Totals, History)> {
    let (totals, pruned) =
        transaction.query_row("SELECT totals, pruned FROM totals", [], |row| {
            Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, Vec<u8>>(1)?))
        })?;
    let totals = Totals::from_bytes(&totals).ok_or(StoreError::Malformed("totals"))?;
    let pruned = History::from_bytes(&pruned).ok_or(StoreError::Malformed("pruned totals"))?;
    Ok((totals, pruned))
}

pub(super) fn read_devices(
    transaction: &Transaction<'_>,
) -> Result<HashMap<DeviceId, Option<Latest>>> {
    let mut query = transaction.prepare(
        "SELECT id, time, charge_now, water_level, ambient_temp, water_temp FROM device",
    )?;
    let device = |row: &Row<'_>| -> rusqlite::Result<_> {
        let latest = match row.get(1)? {
            Some(time) => Some(Latest {
                time: Time(time),
                charge_now: row.get(2)?,
                water_level: row.get(3)?,
                ambient_temp: row.get(4)?,
                water_temp: row.get(5)?,
            }),
            None => None,
        };
        Ok((DeviceId(row.get(0)?), latest))
    };
    Ok(query
        .query_map([], device)?
        .collect::<rusqlite::Result<_>>()?)
}

/// Reads the changes that are not yet in `device`; returns the number of the last row.
pub(super) fn read_changes(
    transaction: &Transaction<'_>,
    mut found: impl FnMut(DeviceId, Latest),
) -> Result<i64> {
    let mut query = transaction.prepare("SELECT number, latest FROM change ORDER BY number")?;
    let mut rows = query.query([])?;
    let mut number = 0;
    while let Some(row) = rows.next()? {
        number = row.get(0)?;
        let bytes: Vec<u8> = row.get(1)?;
        for entry in bytes.chunks(CHANGE_LEN) {
            let (device, latest) = read_change(entry).ok_or(StoreError::Malformed("changes"))?;
            found(device, latest);
        }
    }
    Ok(number)
}

pub(super) fn write_change(bytes: &mut Vec<u8>, device: DeviceId, latest: &Latest) {
    bytes.extend_from_slice(&device.0);
    bytes.extend_from_slice(&latest.time.0.to_le_bytes());
    bytes.extend_from_slice(&latest.charge_now.to_le_bytes());
    bytes.extend_from_slice(&latest.water_level.to_le_bytes());
    bytes.extend_from_slice(&latest.ambient_temp.to_le_bytes());
    bytes.extend_from_slice(&latest.water_temp.to_le_bytes());
}

fn read_change(bytes: &[u8]) -> Option<(DeviceId, Latest)> {
    let (device, bytes) = bytes.split_first_chunk()?;
    let (time, bytes) = bytes.split_first_chunk()?;
    let (charge_now, bytes) = bytes.split_first_chunk()?;
    let (water_level, bytes) = bytes.split_first_chunk()?;
    let (ambient_temp, bytes) = bytes.split_first_chunk()?;
    let latest = Latest {
        time: Time(i64::from_le_bytes(*time)),
        charge_now: i32::from_le_bytes(*charge_now),
        water_level: i32::from_le_bytes(*water_level),
        ambient_temp: f64::from_le_bytes(*ambient_temp),
        water_temp: f64::from_le_bytes(bytes.try_into().ok()?),
    };
    Some((DeviceId(*device), latest))
}

pub(super) fn read_commands(transaction: &Transaction<'_>) -> Result<Vec<Command>> {
    let mut query = transaction
        .prepare("SELECT device, time, charge, fill, flush FROM command WHERE status IS NULL")?;
    let command = |row: &Row<'_>| -> rusqlite::Result<_> {
        Ok(Command {
            device: DeviceId(row.get(0)?),
            time: Time(row.get(1)?),
            charge: row.get(2)?,
            fill: row.get(3)?,
            flush: row.get(4)?,
        })
    };
    Ok(query
        .query_map([], command)?
        .collect::<rusqlite::Result<_>>()?)
}

pub(super) fn read_habits(connection: &Connection) -> Result<Vec<(DeviceId, Habit)>> {
    let mut query = connection.prepare("SELECT device, seen, boiled FROM habit")?;
    let habit = |row: &Row<'_>| -> rusqlite::Result<_> {
        let (seen, boiled) = (row.get(1)?, row.get(2)?);
        Ok((DeviceId(row.get(0)?), Habit { seen, boiled }))
    };
    Ok(query
        .query_map([], habit)?
        .collect::<rusqlite::Result<_>>()?)
}

/// Converts a row with all columns in table order.
pub(super) fn measurement(row: &Row<'_>) -> rusqlite::Result<Measurement> {
    Ok(Measurement {
        time: Time(row.get(0)?),
        device: DeviceId(row.get(1)?),
        charge_now: row.get(2)?,
        charge_full: row.get(3)?,
        charge_rate: row.get(4)?,
        ambient_temp: row.get(5)?,
        water_temp: row.get(6)?,
        water_level: row.get(7)?,
    })
}
