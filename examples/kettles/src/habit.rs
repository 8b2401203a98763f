//! Commands that the server computes from the history of a kettle.
//!
//! # The rule
//!
//! The stored measurements of a kettle show in which hours of the day (UTC) it has boiled water, on
//! any day. Once there are measurements of all 24 hours, its newest measurement and the hour of the
//! request decide:
//!
//! * Fill: less than [`LEVEL_MIN`] of water is left, and the kettle has boiled in this hour or the
//!   next one. So it does not boil dry, and fresh water does not stand for hours.
//! * Charge: the battery is below [`CHARGE_IDLE`] in an hour in which the kettle has never boiled.
//!   In the other hours the mains supply is for the heater, so it charges only below
//!   [`CHARGE_BUSY`].
//!
//! The command ends when a measurement shows that there is water or charge. An operator's command
//! takes precedence.
//!
//! # Theory of operation
//!
//! Of its history, only two sets of hours are kept for a kettle, as bits. They change at most 48
//! times, so the store gets the changed ones once a minute, not with each measurement. If the
//! server is killed, the changes of the last minute are lost, and learned again on another day. The
//! newest measurement is kept in memory only: after a restart, the rule applies to a kettle from
//! its next measurement on.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use crate::command::Command;
use crate::device::{DeviceId, Measurement};
use crate::time::Time;

/// Below this level the rule fills the kettle, in mL.
pub const LEVEL_MIN: i32 = 300;
/// Below this share of its capacity the battery is charged in an hour without boiling, in percent.
pub const CHARGE_IDLE: i64 = 90;
/// Below this share of its capacity the battery is charged in any hour, in percent.
pub const CHARGE_BUSY: i64 = 20;
/// From this temperature on a kettle counts as boiling, in °C.
pub const BOILING: f64 = 80.0;
/// One bit for each hour.
const ALL_HOURS: u32 = (1 << 24) - 1;
/// Number of maps, so that requests rarely wait for the writer.
const SHARD_COUNT: usize = 16;

/// Hours of the day (UTC) in the history of a kettle: bit 0 is the hour from midnight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Habit {
    /// Hours with measurements.
    pub seen: u32,
    /// Hours in which it has boiled.
    pub boiled: u32,
}

impl Habit {
    /// Adds the hours of `other`.
    pub fn merge(&mut self, other: Self) {
        self.seen |= other.seen;
        self.boiled |= other.boiled;
    }

    fn of(measurement: &Measurement) -> Self {
        let seen = 1 << measurement.time.hour();
        Self {
            seen,
            boiled: if measurement.water_temp >= BOILING {
                seen
            } else {
                0
            },
        }
    }

    fn has_boiled_at(self, hour: usize) -> bool {
        self.boiled >> (hour % 24) & 1 == 1
    }
}

/// What is known of one kettle.
#[derive(Debug, Clone, Copy, Default)]
struct Kettle {
    habit: Habit,
    newest: Option<Newest>,
}

/// What the rule needs of the newest measurement.
#[derive(Debug, Clone, Copy)]
struct Newest {
    time: Time,
    charge_now: i32,
    charge_full: i32,
    water_level: i32,
}

impl Kettle {
    fn command(&self, device: DeviceId, now: Time) -> Option<Command> {
        let newest = self.newest?;
        if self.habit.seen != ALL_HOURS {
            return None;
        }
        let hour = now.hour();
        let boils_now = self.habit.has_boiled_at(hour);
        let boils_soon = boils_now || self.habit.has_boiled_at(hour + 1);
        let percent = if boils_now { CHARGE_BUSY } else { CHARGE_IDLE };
        let charge = i64::from(newest.charge_now) * 100;
        let charge = charge < i64::from(newest.charge_full) * percent;
        let fill = newest.water_level < LEVEL_MIN && boils_soon;
        (charge || fill).then_some(Command {
            device,
            time: now,
            charge,
            fill,
            flush: None,
        })
    }
}

/// The habits of all kettles.
#[derive(Debug, Default)]
pub struct Habits {
    shards: [RwLock<HashMap<DeviceId, Kettle>>; SHARD_COUNT],
    /// Kettles whose habits the store does not have yet.
    unsaved: Mutex<HashSet<DeviceId>>,
}

impl Habits {
    fn shard(&self, device: DeviceId) -> &RwLock<HashMap<DeviceId, Kettle>> {
        // The last byte of a UUID is random in all versions that kettles have.
        &self.shards[usize::from(device.0[15]) % SHARD_COUNT]
    }

    fn unsaved(&self) -> MutexGuard<'_, HashSet<DeviceId>> {
        self.unsaved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the habits of a store.
    pub fn load(&self, stored: Vec<(DeviceId, Habit)>) {
        for (device, habit) in stored {
            let shard = self.shard(device).write();
            let mut shard = shard.unwrap_or_else(PoisonError::into_inner);
            shard.entry(device).or_default().habit.merge(habit);
        }
    }

    /// Learns from stored measurements.
    pub fn learn(&self, measurements: &[Measurement]) {
        for measurement in measurements {
            let shard = self.shard(measurement.device).write();
            let mut shard = shard.unwrap_or_else(PoisonError::into_inner);
            let kettle = shard.entry(measurement.device).or_default();
            if kettle
                .newest
                .is_none_or(|newest| newest.time <= measurement.time)
            {
                kettle.newest = Some(Newest {
                    time: measurement.time,
                    charge_now: measurement.charge_now,
                    charge_full: measurement.charge_full,
                    water_level: measurement.water_level,
                });
            }
            let before = kettle.habit;
            kettle.habit.merge(Habit::of(measurement));
            if kettle.habit != before {
                self.unsaved().insert(measurement.device);
            }
        }
    }

    /// Returns the command that the rule gives to a kettle.
    pub fn command(&self, device: DeviceId, now: Time) -> Option<Command> {
        let shard = self.shard(device).read();
        let shard = shard.unwrap_or_else(PoisonError::into_inner);
        shard.get(&device)?.command(device, now)
    }

    /// Removes up to `max` kettles from those whose habits the store lacks, and returns their
    /// habits, sorted by device.
    pub fn take_unsaved(&self, max: usize) -> Vec<(DeviceId, Habit)> {
        let devices: Vec<_> = {
            let mut unsaved = self.unsaved();
            let some: Vec<_> = unsaved.iter().take(max).copied().collect();
            for device in &some {
                unsaved.remove(device);
            }
            some
        };
        let habit = |device: DeviceId| {
            let shard = self.shard(device).read();
            let shard = shard.unwrap_or_else(PoisonError::into_inner);
            Some((device, shard.get(&device)?.habit))
        };
        let mut habits: Vec<_> = devices.into_iter().filter_map(habit).collect();
        habits.sort_unstable_by_key(|(device, _)| *device);
        habits
    }

    /// Marks habits as unsaved again, after the store has failed.
    pub fn put_back(&self, habits: &[(DeviceId, Habit)]) {
        let devices = habits.iter().map(|(device, _)| *device);
        self.unsaved().extend(devices);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceId = DeviceId([7; 16]);

    fn measurement(hour: i64, water_temp: f64, level: i32, charge: i32) -> Measurement {
        Measurement {
            device: DEVICE,
            time: Time::from_seconds(hour * 3600),
            charge_now: charge,
            charge_full: 100,
            charge_rate: 0.0,
            ambient_temp: 20.0,
            water_temp,
            water_level: level,
        }
    }

    /// A kettle that boils in the hours from 7 to 9.
    fn habits(level: i32, charge: i32) -> Habits {
        let habits = Habits::default();
        let temp = |hour| if (7..10).contains(&hour) { 95.0 } else { 21.0 };
        let day = (0..24).map(|hour| measurement(hour, temp(hour), level, charge));
        habits.learn(&day.collect::<Vec<_>>());
        habits
    }

    fn command(habits: &Habits, hour: i64) -> Option<(bool, bool)> {
        let command = habits.command(DEVICE, Time::from_seconds(hour * 3600 + 100))?;
        assert_eq!((command.device, command.flush), (DEVICE, None));
        Some((command.charge, command.fill))
    }

    #[test]
    fn a_kettle_is_charged_while_idle_and_filled_before_it_boils() {
        let (charge, fill) = (Some((true, false)), Some((false, true)));
        let (both, nothing) = (Some((true, true)), None);
        // Each row: water level, charge in percent, and the commands in the hours 3, 6, 7, 9, 10.
        for (level, percent, expected) in [
            (700, 95, [nothing, nothing, nothing, nothing, nothing]),
            (700, 89, [charge, charge, nothing, nothing, charge]),
            (700, 19, [charge, charge, charge, charge, charge]),
            (299, 90, [nothing, fill, fill, fill, nothing]),
            (299, 19, [charge, both, both, both, charge]),
        ] {
            let habits = habits(level, percent);
            let commands = [3, 6, 7, 9, 10].map(|hour| command(&habits, hour));
            assert_eq!(commands, expected, "{level} mL, {percent} %");
        }
    }

    #[test]
    fn the_rule_needs_measurements_of_all_hours_and_uses_the_newest() {
        let habits = Habits::default();
        for hour in 0..24 {
            assert_eq!(command(&habits, 7), None);
            habits.learn(&[measurement(hour, 95.0, 100, 95)]);
        }
        assert_eq!(command(&habits, 7), Some((false, true)));
        habits.learn(&[measurement(30, 21.0, 700, 95)]);
        assert_eq!(command(&habits, 7), None);
        // A late measurement is not the newest.
        habits.learn(&[measurement(29, 21.0, 100, 95)]);
        assert_eq!(command(&habits, 7), None);
        assert_eq!(habits.command(DeviceId([8; 16]), Time(0)), None);
    }

    #[test]
    fn each_change_is_saved_once() {
        let habits = habits(700, 95);
        let saved = habits.take_unsaved(10);
        let boiled = 1 << 7 | 1 << 8 | 1 << 9;
        let habit = Habit {
            seen: ALL_HOURS,
            boiled,
        };
        assert_eq!(saved, [(DEVICE, habit)]);
        assert_eq!(habits.take_unsaved(10), []);
        habits.learn(&[measurement(31, 99.0, 700, 95)]);
        assert_eq!(habits.take_unsaved(10), []);
        habits.put_back(&saved);
        assert_eq!(habits.take_unsaved(10), saved);
        // After a restart.
        let other = Habits::default();
        other.load(saved);
        assert_eq!(command(&other, 3), None);
        other.learn(&[measurement(31, 21.0, 700, 50)]);
        assert_eq!(command(&other, 3), Some((true, false)));
        assert_eq!(command(&other, 7), None);
    }
}
