//! The writer's cache of newest measurements, and the optimistic transactions that rely on it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use postgres::Client;
use postgres::error::SqlState;
use postgres::types::ToSql;

use super::batch::{Columns, Statements, column};
use crate::device::{DeviceId, Latest, Measurement};
use crate::stats::Totals;
use crate::store::{Batch, Result};
use crate::time::Time;

#[cfg(test)]
mod tests;

/// Maximum number of cached devices: 68 MB of memory, because the hash table is then seven eighths
/// full.
const DEVICE_COUNT_MAX: usize = 917_504;
/// Maximum number of batches to commit with locks after repeated wrong guesses.
const DISTRUST_MAX: u32 = 64;

/// Newest measurements of devices, as this writer last knew them.
#[derive(Default)]
pub(super) struct Memory {
    devices: HashMap<DeviceId, Known>,
    /// Number of further batches to commit with locks.
    rest: u32,
    /// Value of `rest` after the last wrong guess; each right guess halves it.
    distrust: u32,
}

struct Known {
    latest: Option<Latest>,
    /// Index of the device among the changes of the current batch, if it has one.
    place: u32,
}

/// Changes that a batch makes if no other writer has interfered.
pub(super) struct Guess<'a> {
    rows: &'a [Measurement],
    newer: Vec<Newer>,
    made: Vec<DeviceId>,
    /// Totals of this writer after the batch.
    pub(super) totals: Totals,
}

struct Newer {
    device: DeviceId,
    before: Option<Time>,
    latest: Latest,
}

/// The result of a right guess: the batch is durable.
pub(super) struct Stored {
    /// Totals of the other writers, serialised.
    pub(super) others: Vec<Vec<u8>>,
    pub(super) sync_time: Duration,
}

impl Memory {
    /// Computes the changes of `batch`; `None` if a device is not cached.
    ///
    /// The cache is updated to the state after the batch. If the batch does not commit, all its
    /// devices must be read again.
    pub(super) fn guess<'a>(&mut self, batch: &'a Batch, totals: &Totals) -> Option<Guess<'a>> {
        if self.rest > 0 {
            self.rest -= 1;
            return None;
        }
        if !batch.commands.is_empty() || !batch.confirmed.is_empty() {
            return None;
        }
        let mut guess = Guess {
            rows: &batch.measurements,
            newer: Vec::with_capacity(batch.measurements.len()),
            made: Vec::new(),
            totals: totals.clone(),
        };
        for device in &batch.devices {
            // A device that has just logged in has no measurements.
            if !self.devices.contains_key(device) {
                self.learn(*device, None);
                guess.made.push(*device);
                guess.totals.device_count += 1;
            }
        }
        for row in &batch.measurements {
            let known = self.devices.get_mut(&row.device)?;
            let before = known.latest.map(|latest| latest.time);
            if before == Some(row.time) {
                return None; // a duplicate
            }
            guess.totals.take(&mut known.latest, row);
            let Some(latest) = known.latest.filter(|latest| before != Some(latest.time)) else {
                continue;
            };
            match guess.newer.get_mut(known.place as usize) {
                Some(newer) if newer.device == row.device => newer.latest = latest,
                _ => {
                    known.place = u32::try_from(guess.newer.len()).ok()?;
                    guess.newer.push(Newer {
                        device: row.device,
                        before,
                        latest,
                    });
                }
            }
        }
        // All writers use the same order, so they cannot deadlock.
        guess.newer.sort_unstable_by_key(|newer| newer.device);
        Some(guess)
    }

    /// Records whether a guess was right.
    pub(super) fn judge(&mut self, is_right: bool) {
        self.distrust = match is_right {
            true => self.distrust / 2,
            false => (self.distrust * 2).clamp(1, DISTRUST_MAX),
        };
        self.rest = if is_right { 0 } else { self.distrust };
    }

    pub(super) fn learn(&mut self, device: DeviceId, latest: Option<Latest>) {
        if self.devices.len() >= DEVICE_COUNT_MAX {
            self.devices.clear();
        }
        self.devices.insert(device, Known { latest, place: 0 });
    }
}

impl Guess<'_> {
    /// Commits the changes with one statement if the guess is right; otherwise changes nothing and
    /// returns `None`.
    pub(super) fn store(
        &self,
        client: &mut Client,
        statements: &mut Statements,
        writer: i32,
    ) -> Result<Option<Stored>> {
        // To abort the statement, it must fail: casting this text to a number fails, and PostgreSQL
        // logs that. The counts come first, so that they are executed first.
        const STORE: &str = "WITH newer AS (
             UPDATE device SET time = newer.time, charge_now = newer.charge_now,
             water_level = newer.water_level, ambient_temp = newer.ambient_temp,
             water_temp = newer.water_temp, room = NULL
             FROM (SELECT unnest($1::uuid[]) AS id, unnest($2::timestamptz[]) AS before,
                 unnest($3::timestamptz[]) AS time, unnest($4::integer[]) AS charge_now,
                 unnest($5::integer[]) AS water_level, unnest($6::float8[]) AS ambient_temp,
                 unnest($7::float8[]) AS water_temp) AS newer
             WHERE device.id = newer.id AND device.time IS NOT DISTINCT FROM newer.before
             RETURNING 1
         ), made AS (
             INSERT INTO device (id) SELECT unnest($8::uuid[]) ON CONFLICT DO NOTHING RETURNING 1
         ), stored AS (
             INSERT INTO measurement SELECT unnest($9::timestamptz[]), unnest($10::uuid[]),
             unnest($11::integer[]), unnest($12::integer[]), unnest($13::float8[]),
             unnest($14::float8[]), unnest($15::float8[]), unnest($16::integer[]) RETURNING 1
         ), own AS (
             UPDATE totals SET totals = $18 WHERE writer = $17
         )
         SELECT CASE WHEN (SELECT count(*) FROM newer) = cardinality($1)
             AND (SELECT count(*) FROM made) = cardinality($8) THEN 0
             ELSE concat('another writer was there, ', (SELECT count(*) FROM newer))::integer END,
         (SELECT count(*) FROM stored),
         (SELECT array_agg(totals) FROM totals WHERE writer <> $17),
         extract(epoch FROM clock_timestamp() - statement_timestamp())::float8";
        let statement = statements.of(client, STORE)?;
        let newer = &self.newer;
        let rows = Columns::of(self.rows);
        let devices: [&(dyn ToSql + Sync); 8] = [
            &column(newer, |it| it.device),
            &column(newer, |it| it.before),
            &column(newer, |it| it.latest.time),
            &column(newer, |it| it.latest.charge_now),
            &column(newer, |it| it.latest.water_level),
            &column(newer, |it| it.latest.ambient_temp),
            &column(newer, |it| it.latest.water_temp),
            &self.made,
        ];
        let totals = self.totals.to_bytes();
        let own: [&(dyn ToSql + Sync); 2] = [&writer, &totals];
        let values = [&devices[..], &rows.values(), &own].concat();
        let sent = Instant::now();
        let row = match client.query_one(&statement, &values) {
            Ok(row) => row,
            Err(error) if is_wrong(&error) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // The duration is negative if the clock was set back meanwhile.
        let work_time = Duration::try_from_secs_f64(row.get(3)).unwrap_or_default();
        Ok(Some(Stored {
            others: row.get::<_, Option<Vec<Vec<u8>>>>(2).unwrap_or_default(),
            sync_time: sent.elapsed().saturating_sub(work_time),
        }))
    }
}

/// Returns whether the database reports that the guess was wrong.
fn is_wrong(error: &postgres::Error) -> bool {
    let codes = [
        SqlState::INVALID_TEXT_REPRESENTATION,
        SqlState::UNIQUE_VIOLATION,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::T_R_SERIALIZATION_FAILURE,
    ];
    error.code().is_some_and(|code| codes.contains(code))
}
