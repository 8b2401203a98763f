//! Generated histories of kettles. The same seed gives the same numbers on any machine.
//!
//! # The model
//!
//! A kettle stands in a room that is warmest in the afternoon and in July. Its water cools towards
//! room temperature and is boiled mostly in the morning, at noon and in the evening; each boil
//! takes energy from the battery and some cups of water from the reservoir. If the battery is below
//! 30 %, or too low to boil the water, it is charged to 95 %. If the reservoir is below 300 mL, it
//! is refilled with cold water. Values have the resolution of real sensors (0.1 °C, 1 mL, 1 mWh),
//! so the generated data compresses like real data. The hourly means of the water temperature vary
//! over the day.
//!
//! The generator uses only the four basic operations, because they give equal results on all
//! machines. It approximates sines by parabolas.

use crate::device::{DeviceId, Measurement};
use crate::time::Time;

#[cfg(test)]
mod tests;

const SECONDS_PER_DAY: i64 = 86_400;
const SECONDS_PER_YEAR: i64 = 31_556_952;
/// Time constant of cooling, in seconds.
const COOLING_SECONDS: f64 = 5400.0;
const CAPACITY_MWH: f64 = 250_000.0;
const CHARGER_MW: f64 = 90_000.0;
const IDLE_MW: f64 = 150.0;
const RESERVOIR_ML: f64 = 1700.0;
const CUP_ML: f64 = 250.0;
/// Energy to heat 1 mL by 1 °C, in mWh.
const HEAT_MWH: f64 = 4.186 / 3.6;

/// A history to generate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Number of kettles.
    pub device_count: u32,
    /// Start of the history.
    pub from: Time,
    /// End of the history, exclusive.
    pub to: Time,
    /// Seconds between a kettle's measurements; above 0.
    pub every_seconds: i64,
    /// Seed of the random numbers: another seed gives another history.
    pub seed: u64,
}

impl Plan {
    /// Returns the number of measurements per kettle.
    pub fn step_count(&self) -> u64 {
        let micros = self.to.0.saturating_sub(self.from.0);
        let every = self.every_seconds.max(1).saturating_mul(1_000_000);
        u64::try_from(micros / every).unwrap_or(0)
    }

    /// Returns the number of measurements of all kettles.
    pub fn row_count(&self) -> u64 {
        self.step_count() * u64::from(self.device_count)
    }

    /// Generates all measurements, in the order of time and device.
    pub fn measurements(self) -> impl Iterator<Item = Measurement> {
        let mut kettles: Vec<_> = (0..self.device_count)
            .map(|index| Kettle::new(&self, index))
            .collect();
        kettles.sort_by_key(|kettle| (kettle.offset_seconds, kettle.device));
        let steps = 0..i64::try_from(self.step_count()).unwrap_or(0);
        let rows = steps
            .flat_map(move |step| (0..self.device_count as usize).map(move |index| (step, index)));
        rows.map(move |(step, index)| {
            let start = self.from.plus_seconds(step * self.every_seconds);
            kettles[index].next(start, self.every_seconds)
        })
    }

    /// Generates the kettles.
    pub fn devices(&self) -> impl Iterator<Item = DeviceId> {
        let seed = self.seed;
        (0..self.device_count).map(move |index| device_id(seed, index))
    }
}

/// A kettle, and the room in which it stands.
#[derive(Debug)]
struct Kettle {
    device: DeviceId,
    random: Random,
    /// Offset of its measurements in seconds, so that kettles do not all measure at the same time.
    offset_seconds: i64,
    /// Mean room temperature over the year, in °C.
    room_temp: f64,
    charge: f64,
    is_charging: bool,
    water_temp: f64,
    water_level: f64,
}

impl Kettle {
    fn new(plan: &Plan, index: u32) -> Self {
        let mut random = Random(plan.seed ^ u64::from(index) << 32);
        Self {
            device: device_id(plan.seed, index),
            offset_seconds: random.below(plan.every_seconds),
            room_temp: 18.0 + 6.0 * random.fraction(),
            charge: CAPACITY_MWH * (0.3 + 0.7 * random.fraction()),
            is_charging: false,
            water_temp: 20.0,
            water_level: RESERVOIR_ML * random.fraction(),
            random,
        }
    }

    /// Advances by `seconds` and measures.
    fn next(&mut self, start: Time, seconds: i64) -> Measurement {
        let time = start.plus_seconds(self.offset_seconds);
        let second = time.0.div_euclid(1_000_000);
        let ambient_temp = self.ambient_temp(second);
        // A step is short enough that a double holds its seconds exactly.
        let duration = seconds as f64;
        let hours = duration / 3600.0;

        // The implicit Euler step is stable for any step length.
        let kept = COOLING_SECONDS / (COOLING_SECONDS + duration);
        self.water_temp = ambient_temp + (self.water_temp - ambient_temp) * kept;
        if self.water_level < 300.0 {
            self.fill();
        }
        let boils = self.random.fraction() < boils_per_hour(second) * hours;
        if boils {
            self.boil();
        }
        let charge_rate = self.charge_for(hours);
        Measurement {
            device: self.device,
            time,
            charge_now: whole(self.charge),
            charge_full: whole(CAPACITY_MWH),
            charge_rate,
            ambient_temp: tenths(ambient_temp),
            water_temp: tenths(self.water_temp),
            water_level: whole(self.water_level),
        }
    }

    fn ambient_temp(&mut self, second: i64) -> f64 {
        // Warmest at 15:00, and in mid-July, half a year after mid-January.
        let daily = 2.5 * wave(second - 9 * 3600, SECONDS_PER_DAY);
        let yearly = 3.5 * wave(second - 105 * SECONDS_PER_DAY, SECONDS_PER_YEAR);
        self.room_temp + daily + yearly + 0.4 * (self.random.fraction() - 0.5)
    }

    fn fill(&mut self) {
        let added = RESERVOIR_ML - self.water_level;
        let heat = self.water_level * self.water_temp + added * 12.0;
        self.water_temp = heat / RESERVOIR_ML;
        self.water_level = RESERVOIR_ML;
    }

    fn boil(&mut self) {
        let energy = (100.0 - self.water_temp) * self.water_level * HEAT_MWH;
        if energy > self.charge {
            self.is_charging = true;
            return;
        }
        self.charge -= energy;
        self.water_temp = 100.0;
        let cups = 1.0 + 2.0 * self.random.fraction();
        self.water_level = (self.water_level - cups * CUP_ML).max(0.0);
    }

    /// Charges or drains the battery; returns the power in mW.
    fn charge_for(&mut self, hours: f64) -> f64 {
        if self.charge < 0.3 * CAPACITY_MWH {
            self.is_charging = true;
        } else if self.charge > 0.95 * CAPACITY_MWH {
            self.is_charging = false;
        }
        let rate = if self.is_charging {
            CHARGER_MW
        } else {
            -IDLE_MW
        };
        self.charge = (self.charge + rate * hours).clamp(0.0, CAPACITY_MWH);
        rate
    }
}

/// Returns how often water is boiled at a time of the day, per hour.
fn boils_per_hour(second: i64) -> f64 {
    match second.rem_euclid(SECONDS_PER_DAY) / 3600 {
        6..=8 => 0.6,
        12..=13 => 0.4,
        16..=20 => 0.3,
        9..=22 => 0.12,
        _ => 0.01,
    }
}

/// Approximates a sine of `period` by two parabolas: 0 at 0, 1 after a quarter.
fn wave(second: i64, period: i64) -> f64 {
    let phase = second.rem_euclid(period) as f64 / period as f64;
    let (half, sign) = if phase < 0.5 {
        (phase, 1.0)
    } else {
        (phase - 0.5, -1.0)
    };
    sign * 16.0 * half * (0.5 - half)
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn whole(value: f64) -> i32 {
    // All values are within the battery and the reservoir.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "saturates, and is far from it"
    )]
    let whole = value.round() as i32;
    whole
}

/// Generates a UUID of version 4.
fn device_id(seed: u64, index: u32) -> DeviceId {
    let mut random = Random(!seed ^ u64::from(index) << 32);
    let bits = u128::from(random.next()) << 64 | u128::from(random.next());
    let fixed = bits & !(0xf << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    DeviceId(fixed.to_be_bytes())
}

/// The `SplitMix64` generator: small, and with the same output on every machine.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns the next number in 0..1.
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, bound: i64) -> i64 {
        let bound = u64::try_from(bound).unwrap_or(0).max(1);
        i64::try_from(self.next() % bound).unwrap_or(0)
    }
}
