//! Inserts the rows of a batch.

use std::collections::{HashMap, HashSet};

use postgres::binary_copy::BinaryCopyInWriter;
use postgres::error::SqlState;
use postgres::types::{ToSql, Type};
use postgres::{GenericClient, Row, Statement, Transaction};

use super::super::{Batch, Result};
use crate::device::{DeviceId, Latest, Measurement};
use crate::stats::Totals;
use crate::time::Time;

/// Minimum number of rows for COPY. COPY costs two thirds of an INSERT, but one more round trip.
const COPY_LEN: usize = 100;

/// Prepared statements of a connection.
#[derive(Default)]
pub(super) struct Statements(HashMap<&'static str, Statement>);

impl Statements {
    pub(super) fn of(
        &mut self,
        client: &mut impl GenericClient,
        sql: &'static str,
    ) -> Result<Statement> {
        if let Some(statement) = self.0.get(sql) {
            return Ok(statement.clone());
        }
        let statement = client.prepare(sql)?;
        self.0.insert(sql, statement.clone());
        Ok(statement)
    }
}

/// A transaction with the prepared statements.
pub(super) struct Prepared<'a> {
    pub(super) transaction: Transaction<'a>,
    pub(super) statements: &'a mut Statements,
}

impl Prepared<'_> {
    pub(super) fn query(
        &mut self,
        sql: &'static str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        let statement = self.statement(sql)?;
        Ok(self.transaction.query(&statement, values)?)
    }

    pub(super) fn execute(
        &mut self,
        sql: &'static str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<u64> {
        let statement = self.statement(sql)?;
        Ok(self.transaction.execute(&statement, values)?)
    }

    fn statement(&mut self, sql: &'static str) -> Result<Statement> {
        self.statements.of(&mut self.transaction, sql)
    }
}

/// Locks all devices of a batch, inserts and counts new ones, and reads their newest measurements.
pub(super) fn lock_devices(
    transaction: &mut Prepared<'_>,
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
        // Devices that another writer inserts meanwhile are read in the next iteration.
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

/// Converts a row of `device`: the ID, and the newest measurement if there is one.
pub(super) fn device(row: &Row) -> (DeviceId, Option<Latest>) {
    let latest = row.get::<_, Option<Time>>(1).map(|time| Latest {
        time,
        charge_now: row.get(2),
        water_level: row.get(3),
        ambient_temp: row.get(4),
        water_temp: row.get(5),
    });
    (row.get(0), latest)
}

/// The rows of a batch that were new, that is, not duplicates.
pub(super) enum Inserted {
    All,
    Some(HashSet<(Time, DeviceId)>),
}

impl Inserted {
    /// Returns whether `measurement` is new; a duplicate within the batch is not.
    pub(super) fn take(&mut self, measurement: &Measurement) -> bool {
        match self {
            Self::All => true,
            Self::Some(keys) => keys.remove(&(measurement.time, measurement.device)),
        }
    }
}

pub(super) fn insert(
    transaction: &mut Prepared<'_>,
    batch: &Batch,
    with_duplicates: bool,
) -> Result<Option<Inserted>> {
    const INSERT: &str = "INSERT INTO measurement SELECT * FROM unnest($1::timestamptz[],
         $2::uuid[], $3::integer[], $4::integer[], $5::double precision[],
         $6::double precision[], $7::double precision[], $8::integer[]) ON CONFLICT DO NOTHING";
    const INSERT_AND_TELL: &str = "INSERT INTO measurement SELECT * FROM unnest($1::timestamptz[],
         $2::uuid[], $3::integer[], $4::integer[], $5::double precision[],
         $6::double precision[], $7::double precision[], $8::integer[]) ON CONFLICT DO NOTHING
         RETURNING time, device_id";
    let rows = &batch.measurements;
    if rows.is_empty() {
        return Ok(Some(Inserted::All));
    }
    if rows.len() >= COPY_LEN && !with_duplicates {
        return copy(transaction, rows);
    }
    let columns = Columns::of(rows);
    if with_duplicates {
        let rows = transaction.query(INSERT_AND_TELL, &columns.values())?;
        let keys = rows.iter().map(|row| (row.get(0), row.get(1)));
        return Ok(Some(Inserted::Some(keys.collect())));
    }
    let is_all = transaction.execute(INSERT, &columns.values())? == rows.len() as u64;
    Ok(is_all.then_some(Inserted::All))
}

/// Inserts all rows. If any is a duplicate, this fails and aborts the transaction.
fn copy(transaction: &mut Prepared<'_>, rows: &[Measurement]) -> Result<Option<Inserted>> {
    const COPY: &str = "COPY measurement FROM STDIN BINARY";
    const TYPES: [Type; 8] = [
        Type::TIMESTAMPTZ,
        Type::UUID,
        Type::INT4,
        Type::INT4,
        Type::FLOAT8,
        Type::FLOAT8,
        Type::FLOAT8,
        Type::INT4,
    ];
    let statement = transaction.statement(COPY)?;
    let mut writer = BinaryCopyInWriter::new(transaction.transaction.copy_in(&statement)?, &TYPES);
    for it in rows {
        writer.write(&[
            &it.time,
            &it.device,
            &it.charge_now,
            &it.charge_full,
            &it.charge_rate,
            &it.ambient_temp,
            &it.water_temp,
            &it.water_level,
        ])?;
    }
    match writer.finish() {
        Ok(_) => Ok(Some(Inserted::All)),
        Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn update_devices(
    transaction: &mut Prepared<'_>,
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
         water_temp = newer.water_temp, room = NULL
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

/// Columns of measurements, as arguments of `unnest` in table order.
pub(super) struct Columns {
    times: Vec<Time>,
    devices: Vec<DeviceId>,
    charge_now: Vec<i32>,
    charge_full: Vec<i32>,
    charge_rate: Vec<f64>,
    ambient_temp: Vec<f64>,
    water_temp: Vec<f64>,
    water_level: Vec<i32>,
}

impl Columns {
    pub(super) fn of(rows: &[Measurement]) -> Self {
        Self {
            times: column(rows, |it| it.time),
            devices: column(rows, |it| it.device),
            charge_now: column(rows, |it| it.charge_now),
            charge_full: column(rows, |it| it.charge_full),
            charge_rate: column(rows, |it| it.charge_rate),
            ambient_temp: column(rows, |it| it.ambient_temp),
            water_temp: column(rows, |it| it.water_temp),
            water_level: column(rows, |it| it.water_level),
        }
    }

    pub(super) fn values(&self) -> [&(dyn ToSql + Sync); 8] {
        [
            &self.times,
            &self.devices,
            &self.charge_now,
            &self.charge_full,
            &self.charge_rate,
            &self.ambient_temp,
            &self.water_temp,
            &self.water_level,
        ]
    }
}

pub(super) fn column<R, T>(rows: &[R], value: impl Fn(&R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}

pub(super) fn write_commands(transaction: &mut Prepared<'_>, batch: &Batch) -> Result<()> {
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
