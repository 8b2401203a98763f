//! The statistics of `GET /statistics`, updated row by row.
//!
//! Sums are exact and rounded only when shown, so recomputing them from all rows gives the same
//! [`Totals`] to the bit, in any order and with any batches.

use crate::device::{Latest, Measurement};
use crate::exact::{ExactSum, Moments};

#[cfg(test)]
mod tests;

/// Energy to heat 1 g (1 mL) of water by 1 °C, in millijoules.
const HEAT_CAPACITY_MJ: u32 = 4186;

/// Statistics over all measurements ever stored, including deleted ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// Number of measurements.
    pub measurement_count: u64,
    /// Water temperature by hour of the day, UTC.
    pub water_temps: [Moments; 24],
}

impl History {
    /// Adds a measurement.
    ///
    /// # Panics
    ///
    /// If its temperature is not finite.
    pub fn add(&mut self, measurement: &Measurement) {
        self.measurement_count += 1;
        self.water_temps[measurement.time.hour()].add(measurement.water_temp);
    }

    /// Adds all measurements of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.measurement_count += other.measurement_count;
        for (own, other) in self.water_temps.iter_mut().zip(&other.water_temps) {
            own.merge(other);
        }
    }

    /// Removes the measurements of `other`; `None` if they are not all included.
    pub fn without(&self, other: &Self) -> Option<Self> {
        let mut rest = self.clone();
        rest.measurement_count = self
            .measurement_count
            .checked_sub(other.measurement_count)?;
        let mut hours = rest.water_temps.iter_mut().zip(&other.water_temps);
        hours
            .all(|(own, other)| own.separate(other))
            .then_some(rest)
    }

    /// Serialises the history for [`Self::from_bytes`]. Equal histories have equal bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.measurement_count.to_le_bytes().to_vec();
        for moments in &self.water_temps {
            bytes.extend(moments.count.to_le_bytes());
            write_sum(&mut bytes, &moments.sum);
            write_sum(&mut bytes, &moments.squares);
        }
        bytes
    }

    /// Reads the output of [`Self::to_bytes`]; `None` if it is malformed.
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let history = Self::read(&mut bytes)?;
        bytes.is_empty().then_some(history)
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        let mut history = Self {
            measurement_count: u64::from_le_bytes(read_array(bytes)?),
            ..Self::default()
        };
        for moments in &mut history.water_temps {
            moments.count = u64::from_le_bytes(read_array(bytes)?);
            moments.sum = read_sum(bytes)?;
            moments.squares = read_sum(bytes)?;
        }
        Some(history)
    }
}

/// Everything that `GET /statistics` shows: the history, and sums over the newest measurement of
/// each device.
///
/// A difference of totals is a `Totals` too: each writer keeps its own part, and [`Self::merge`]
/// adds the parts up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    /// All measurements ever stored.
    pub history: History,
    /// Registered devices, with or without measurements.
    pub device_count: u64,
    /// Sum of battery charges, in mWh.
    pub charge: i128,
    /// Sum of water levels, in mL.
    pub volume: i128,
    /// Sum of (water − ambient temperature) · level, in °C · mL.
    pub heat: ExactSum,
}

impl Totals {
    /// Adds a measurement of a device whose newest is `latest`, and updates `latest` if it is
    /// newer.
    ///
    /// A late measurement is added to the history only. A second measurement of the same time is a
    /// duplicate; the caller must filter duplicates out.
    ///
    /// # Panics
    ///
    /// If a temperature is not finite.
    pub fn take(&mut self, latest: &mut Option<Latest>, measurement: &Measurement) {
        self.history.add(measurement);
        if latest.is_none_or(|latest| latest.time < measurement.time) {
            let newer = Latest::from(measurement);
            self.replace(latest.as_ref(), &newer);
            *latest = Some(newer);
        }
    }

    /// Replaces `older` by `newer` in the sums over newest measurements.
    ///
    /// # Panics
    ///
    /// If a temperature is not finite.
    pub fn replace(&mut self, older: Option<&Latest>, newer: &Latest) {
        for (latest, factor) in older.map(|it| (it, -1)).into_iter().chain([(newer, 1)]) {
            let level = factor * i64::from(latest.water_level);
            self.charge += i128::from(factor * i64::from(latest.charge_now));
            self.volume += i128::from(level);
            self.heat.add_product(latest.water_temp, level);
            self.heat.add_product(latest.ambient_temp, -level);
        }
    }

    /// Adds `other`.
    pub fn merge(&mut self, other: &Self) {
        self.history.merge(&other.history);
        self.device_count += other.device_count;
        self.charge += other.charge;
        self.volume += other.volume;
        self.heat.merge(&other.heat);
    }

    /// Returns hour, mean and deviation of the water temperature, for each hour of the day with
    /// measurements.
    pub fn temperatures(&self) -> impl Iterator<Item = (usize, f64, f64)> {
        let hours = self.history.water_temps.iter().enumerate();
        hours.filter_map(|(hour, temps)| Some((hour, temps.mean()?, temps.deviation()?)))
    }

    /// Returns the heat stored in the water above ambient temperature, in joules.
    pub fn energy(&self) -> f64 {
        self.heat.ratio(HEAT_CAPACITY_MJ, 1000)
    }

    /// Returns the JSON of `GET /statistics`.
    ///
    /// JSON has no infinity, so larger values are written as the largest double.
    pub fn to_json(&self) -> String {
        let mut temperatures = String::new();
        for (hour, mean, deviation) in self.temperatures() {
            let comma = if temperatures.is_empty() { "" } else { "," };
            let (mean, deviation) = (json_number(mean), json_number(deviation));
            temperatures.push_str(&format!("{comma}[{hour},[{mean},{deviation}]]"));
        }
        format!(
            "{{\"statsMeasurementCount\":{},\"statsNumDevices\":{},\"statsTotalBatteryCharge\":{},\
             \"statsTotalWaterVolume\":{},\"statsMeanTemperature\":[{temperatures}],\
             \"statsTotalWaterEnergy\":{}}}",
            self.history.measurement_count,
            self.device_count,
            self.charge,
            self.volume,
            json_number(self.energy()),
        )
    }

    /// Serialises the totals for [`Self::from_bytes`]. Equal totals have equal bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.history.to_bytes();
        bytes.extend(self.device_count.to_le_bytes());
        bytes.extend(self.charge.to_le_bytes());
        bytes.extend(self.volume.to_le_bytes());
        write_sum(&mut bytes, &self.heat);
        bytes
    }

    /// Reads the output of [`Self::to_bytes`]; `None` if it is malformed.
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let bytes = &mut bytes;
        let totals = Self {
            history: History::read(bytes)?,
            device_count: u64::from_le_bytes(read_array(bytes)?),
            charge: i128::from_le_bytes(read_array(bytes)?),
            volume: i128::from_le_bytes(read_array(bytes)?),
            heat: read_sum(bytes)?,
        };
        bytes.is_empty().then_some(totals)
    }
}

/// Returns the shortest decimal that parses to `value`.
fn json_number(value: f64) -> String {
    format!("{:?}", value.clamp(f64::MIN, f64::MAX))
}

/// Appends the length of the serialised sum, as two bytes, and then the sum.
fn write_sum(bytes: &mut Vec<u8>, sum: &ExactSum) {
    let sum = sum.to_bytes();
    let len = u16::try_from(sum.len()).expect("the longest sum has some 600 bytes");
    bytes.extend(len.to_le_bytes());
    bytes.extend(sum);
}

fn read_sum(bytes: &mut &[u8]) -> Option<ExactSum> {
    let len = u16::from_le_bytes(read_array(bytes)?);
    let (sum, rest) = bytes.split_at_checked(usize::from(len))?;
    *bytes = rest;
    ExactSum::from_bytes(sum)
}

fn read_array<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (array, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*array)
}
