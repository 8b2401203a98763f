//! Kettles and their measurements.

use std::fmt;

use crate::time::Time;

/// ID of a kettle: a UUID issued by the server at login.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub [u8; 16]);

/// Positions of the hyphens in a UUID.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];
/// Length of a UUID as text, in bytes.
const TEXT_LEN: usize = 36;

impl DeviceId {
    /// Generates a UUID of version 4 from the kernel's random numbers.
    ///
    /// # Errors
    ///
    /// If the kernel has none.
    pub fn random() -> std::io::Result<Self> {
        let mut bytes = [0; 16];
        let len = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        if len != bytes.len() {
            return Err(std::io::Error::other("too few random bytes"));
        }
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Ok(Self(bytes))
    }

    /// Parses a UUID of any version in its usual form, in either case.
    pub fn parse(text: &[u8]) -> Option<Self> {
        if text.len() != TEXT_LEN {
            return None;
        }
        let mut bytes = [0; 16];
        let mut digit_count = 0;
        for (index, byte) in text.iter().enumerate() {
            if HYPHENS.contains(&index) {
                if *byte != b'-' {
                    return None;
                }
                continue;
            }
            let digit = u8::try_from(char::from(*byte).to_digit(16)?).ok()?;
            let byte = bytes.get_mut(digit_count / 2)?;
            *byte = *byte << 4 | digit;
            digit_count += 1;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = u128::from_be_bytes(self.0);
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            number >> 96,
            number >> 80 & 0xffff,
            number >> 64 & 0xffff,
            number >> 48 & 0xffff,
            number & 0xffff_ffff_ffff
        )
    }
}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A measurement of a kettle. A store keeps at most one measurement per kettle and time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measurement {
    /// Kettle that sent it.
    pub device: DeviceId,
    /// Time according to the kettle's clock.
    pub time: Time,
    /// Charge of the battery, in mWh.
    pub charge_now: i32,
    /// Battery capacity, in mWh.
    pub charge_full: i32,
    /// Power into the battery, in mW; negative while the battery discharges.
    pub charge_rate: f64,
    /// Ambient temperature, in °C.
    pub ambient_temp: f64,
    /// Water temperature, in °C.
    pub water_temp: f64,
    /// Water level, in mL.
    pub water_level: i32,
}

/// Values of a kettle's newest measurement that the totals are computed from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Latest {
    /// Time of the measurement.
    pub time: Time,
    /// Charge of the battery, in mWh.
    pub charge_now: i32,
    /// Water level, in mL.
    pub water_level: i32,
    /// Ambient temperature, in °C.
    pub ambient_temp: f64,
    /// Water temperature, in °C.
    pub water_temp: f64,
}

impl From<&Measurement> for Latest {
    fn from(measurement: &Measurement) -> Self {
        Self {
            time: measurement.time,
            charge_now: measurement.charge_now,
            water_level: measurement.water_level,
            ambient_temp: measurement.ambient_temp,
            water_temp: measurement.water_temp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_parsed_and_formatted() {
        let text = "0f8fad5b-d9cb-469f-a165-70867728950e";
        let device = DeviceId::parse(text.as_bytes()).unwrap();
        assert_eq!(device.to_string(), text);
        assert_eq!(
            DeviceId::parse(text.to_uppercase().as_bytes()),
            Some(device)
        );
    }

    #[test]
    fn invalid_uuids_are_refused() {
        for text in [
            "",
            "kettle",
            "0f8fad5bd9cb469fa16570867728950e",
            "0f8fad5b-d9cb-469f-a165-70867728950",
            "0f8fad5b-d9cb-469f-a165-70867728950e0",
            "0f8fad5b-d9cb-469f-a165-70867728950g",
            "0f8fad5b_d9cb_469f_a165_70867728950e",
            "{0f8fad5b-d9cb-469f-a165-70867728950}",
        ] {
            assert_eq!(DeviceId::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn names_are_random_and_of_version_4() {
        let (one, other) = (DeviceId::random().unwrap(), DeviceId::random().unwrap());
        assert_ne!(one, other);
        let text = one.to_string();
        assert_eq!(text.as_bytes()[14], b'4');
        assert!(b"89ab".contains(&text.as_bytes()[19]), "{text}");
    }
}
