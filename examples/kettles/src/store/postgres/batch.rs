//! What a transaction does with the rows of its batch.

use std::collections::{HashMap, HashSet};

use postgres::Transaction;
use postgres::types::ToSql;

use super::super::{Batch, Result};
use super::device;
use crate::device::{DeviceId, Latest, Measurement};
use crate::stats::Totals;
use crate::time::Time;

/// Locks all devices of a batch, makes and counts those that are new, and reads their newest
/// measurements.
pub(super) fn lock_devices(
    transaction: &mut Transaction<'_>,
    batch: &Batch,
    totals: &mut Totals,
) -> Result<HashMap<DeviceId, Option<Latest>>> {
    const LOCK_AND_READ: &str = "SELECT id, time, charge_now, water_level, ambient_temp, water_temp
         FROM device WHERE id = ANY($1) ORDER BY id FOR UPDATE";
    let measured = batch.measurements.iter().map(|it| it.device);
    let commanded = batch.commands.iter().map(|it| it.device);
    let named = batch.devices.iter().copied();
    let mut ids: Vec<_> = measured.chain(commanded).chain(named).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut devices = HashMap::with_capacity(ids.len());
    while !ids.is_empty() {
        for row in transaction.query(LOCK_AND_READ, &[&ids])? {
            let (id, latest) = device(&row);
            devices.insert(id, latest);
        }
        // Those that another writer makes at the same time are read in the next round.
        ids.retain(|id| !devices.contains_key(id));
        if !ids.is_empty() {
            let made = transaction.query(
                "INSERT INTO device (id) SELECT unnest($1::uuid[])
                 ON CONFLICT DO NOTHING RETURNING id",
                &[&ids],
            )?;
            totals.device_count += made.len() as u64;
            devices.extend(made.iter().map(|row| (row.get(0), None)));
            ids.retain(|id| !devices.contains_key(id));
        }
    }
    Ok(devices)
}

/// Which rows of a batch were not there before.
pub(super) enum Inserted {
    All,
    Some(HashSet<(Time, DeviceId)>),
}

impl Inserted {
    /// Whether `measurement` is new, which a second one of the same time is not.
    pub(super) fn take(&mut self, measurement: &Measurement) -> bool {
        match self {
            Self::All => true,
            Self::Some(keys) => keys.remove(&(measurement.time, measurement.device)),
        }
    }
}

pub(super) fn insert(
    transaction: &mut Transaction<'_>,
    batch: &Batch,
    with_duplicates: bool,
) -> Result<Option<Inserted>> {
    const INSERT: &str = "INSERT INTO measurement SELECT * FROM unnest($1::timestamptz[],
         $2::uuid[], $3::integer[], $4::integer[], $5::double precision[],
         $6::double precision[], $7::double precision[], $8::integer[]) ON CONFLICT DO NOTHING";
    let rows = &batch.measurements;
    if rows.is_empty() {
        return Ok(Some(Inserted::All));
    }
    let times = column(rows, |it| it.time);
    let devices = column(rows, |it| it.device);
    let charge_now = column(rows, |it| it.charge_now);
    let charge_full = column(rows, |it| it.charge_full);
    let charge_rate = column(rows, |it| it.charge_rate);
    let ambient_temp = column(rows, |it| it.ambient_temp);
    let water_temp = column(rows, |it| it.water_temp);
    let water_level = column(rows, |it| it.water_level);
    let columns: [&(dyn ToSql + Sync); 8] = [
        &times,
        &devices,
        &charge_now,
        &charge_full,
        &charge_rate,
        &ambient_temp,
        &water_temp,
        &water_level,
    ];
    if with_duplicates {
        let sql = format!("{INSERT} RETURNING time, device_id");
        let rows = transaction.query(&sql, &columns)?;
        let keys = rows.iter().map(|row| (row.get(0), row.get(1)));
        return Ok(Some(Inserted::Some(keys.collect())));
    }
    let is_all = transaction.execute(INSERT, &columns)? == rows.len() as u64;
    Ok(is_all.then_some(Inserted::All))
}

pub(super) fn update_devices(
    transaction: &mut Transaction<'_>,
    changed: &HashSet<DeviceId>,
    devices: &HashMap<DeviceId, Option<Latest>>,
) -> Result<()> {
    let latest = |id: &DeviceId| Some((*id, devices.get(id).copied().flatten()?));
    let rows: Vec<_> = changed.iter().filter_map(latest).collect();
    if rows.is_empty() {
        return Ok(());
    }
    transaction.execute(
        "UPDATE device SET time = newer.time, charge_now = newer.charge_now,
         water_level = newer.water_level, ambient_temp = newer.ambient_temp,
         water_temp = newer.water_temp
         FROM unnest($1::uuid[], $2::timestamptz[], $3::integer[], $4::integer[],
         $5::double precision[], $6::double precision[])
         AS newer (id, time, charge_now, water_level, ambient_temp, water_temp)
         WHERE device.id = newer.id",
        &[
            &column(&rows, |(id, _)| *id),
            &column(&rows, |(_, latest)| latest.time),
            &column(&rows, |(_, latest)| latest.charge_now),
            &column(&rows, |(_, latest)| latest.water_level),
            &column(&rows, |(_, latest)| latest.ambient_temp),
            &column(&rows, |(_, latest)| latest.water_temp),
        ],
    )?;
    Ok(())
}

fn column<R, T>(rows: &[R], value: impl Fn(&R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}

pub(super) fn write_commands(transaction: &mut Transaction<'_>, batch: &Batch) -> Result<()> {
    for it in &batch.commands {
        transaction.execute(
            "INSERT INTO command VALUES ($1, $2, $3, $4, $5) ON CONFLICT (device_id, time)
             DO UPDATE SET charge = excluded.charge, fill = excluded.fill,
             flush = excluded.flush, status = NULL",
            &[&it.device, &it.time, &it.charge, &it.fill, &it.flush],
        )?;
    }
    for (device, time) in &batch.confirmed {
        transaction.execute(
            "UPDATE command SET status = (time = $2)
             WHERE device_id = $1 AND time <= $2 AND status IS NULL",
            &[device, time],
        )?;
    }
    Ok(())
}
