//! Parsers and encoders for JSON as the original server reads and writes it.

use serde::{Deserialize, Deserializer};

use crate::command::Command;
use crate::device::{DeviceId, Measurement};
use crate::time::Time;

/// Lowest accepted temperature, in °C: absolute zero.
const TEMP_MIN: f64 = -273.15;
/// Highest accepted temperature, in °C.
const TEMP_MAX: f64 = 1000.0;
/// Maximum time, in seconds, by which a kettle's clock may be ahead. It covers kettles that send
/// the local time of the easternmost time zone as UTC, plus a margin.
const AHEAD_MAX_S: i64 = 24 * 3600;

/// Reason for refusing a body.
#[derive(Debug, thiserror::Error)]
pub enum Wrong {
    /// The body does not have the endpoint's form.
    #[error("{0}")]
    Malformed(String),
    /// The body is well formed, but a value is impossible.
    #[error("{0}")]
    Impossible(&'static str),
    /// One line of several is wrong.
    #[error("line {line}: {wrong}")]
    InLine {
        /// Number of the line, from 1.
        line: usize,
        /// The error in that line.
        wrong: Box<Self>,
    },
}

impl Wrong {
    /// Returns whether the body is malformed.
    pub fn is_malformed(&self) -> bool {
        match self {
            Self::Malformed(_) => true,
            Self::Impossible(_) => false,
            Self::InLine { wrong, .. } => wrong.is_malformed(),
        }
    }
}

impl From<serde_json::Error> for Wrong {
    fn from(error: serde_json::Error) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// Parses a JSON object. Serde alone would also accept an array of the fields in their order, and
/// invalid UTF-8 in fields that it skips.
fn object<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Wrong> {
    let wrong = |error| Wrong::Malformed(format!("not UTF-8: {error}"));
    let text = std::str::from_utf8(body).map_err(wrong)?;
    let start = text.trim_ascii_start().chars().next();
    if start.is_some_and(|start| start != '{') {
        return Err(Wrong::Malformed("not a JSON object".into()));
    }
    Ok(serde_json::from_str(text)?)
}

/// A measurement as sent by clients; unknown fields are ignored.
#[derive(Deserialize)]
struct Wire {
    #[serde(default)]
    id: Option<Id>,
    time: IsoTime,
    charge_now: Whole,
    charge_full: Whole,
    charge_rate: f64,
    ambient_temp: f64,
    water_temp: f64,
    water_level: Whole,
}

struct Id(DeviceId);

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        let device = DeviceId::parse(text.as_bytes());
        let wrong = || serde::de::Error::custom("id: not a UUID");
        device.map(Self).ok_or_else(wrong)
    }
}

struct IsoTime(Time);

impl<'de> Deserialize<'de> for IsoTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        let wrong = || serde::de::Error::custom("not a time in ISO 8601 with its zone");
        Time::parse(&text).map(Self).ok_or_else(wrong)
    }
}

/// An integer in any notation that Aeson accepts: `50`, `50.0` and `5e1` are equal.
struct Whole(i32);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl serde::de::Visitor<'_> for Visitor {
            type Value = Whole;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a whole number of 32 bits")
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Whole, E> {
                let wrong = |_| E::invalid_value(serde::de::Unexpected::Signed(value), &self);
                i32::try_from(value).map(Whole).map_err(wrong)
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Whole, E> {
                let wrong = |_| E::invalid_value(serde::de::Unexpected::Unsigned(value), &self);
                i32::try_from(value).map(Whole).map_err(wrong)
            }

            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Whole, E> {
                let is_whole = value.fract() == 0.0;
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "saturates, and is compared"
                )]
                let whole = value as i32;
                if is_whole && f64::from(whole) == value {
                    Ok(Whole(whole))
                } else {
                    Err(E::invalid_value(serde::de::Unexpected::Float(value), &self))
                }
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

/// The range of times a measurement may have.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// The earliest time.
    pub first: Time,
    /// The latest time.
    pub last: Time,
}

impl Window {
    /// Returns the range at this moment. It starts `retain_days` ago, or in 1970 if `retain_days`
    /// is 0.
    pub fn now(retain_days: u32) -> Self {
        let now = Time::now();
        let first = match retain_days {
            0 => Time(0),
            days => now.plus_seconds(-i64::from(days) * 24 * 3600),
        };
        Self {
            first,
            last: now.plus_seconds(AHEAD_MAX_S),
        }
    }
}

/// Parses a measurement by `device`. Its `id` must be a UUID and is otherwise ignored.
///
/// # Errors
///
/// If the body is malformed, or a value is impossible.
pub fn measurement(body: &[u8], device: DeviceId, window: Window) -> Result<Measurement, Wrong> {
    checked(object(body)?, |_| device, window)
}

/// Parses a gateway's batch of one measurement per line. A measurement belongs to the device in its
/// `id` field; without that field, it belongs to the gateway.
///
/// # Errors
///
/// If a line is malformed, or a value is impossible; the error names the first such line.
pub fn measurements(
    body: &[u8],
    gateway: DeviceId,
    window: Window,
) -> Result<Vec<Measurement>, Wrong> {
    let lines = body.split(|byte| *byte == b'\n').zip(1..);
    let filled = lines.filter(|(text, _)| !text.trim_ascii().is_empty());
    let read = |(text, line): (&[u8], usize)| {
        let device = |id: Option<Id>| id.map_or(gateway, |Id(device)| device);
        object(text)
            .and_then(|wire| checked(wire, device, window))
            .map_err(|wrong| Wrong::InLine {
                line,
                wrong: Box::new(wrong),
            })
    };
    filled.map(read).collect()
}

fn checked(
    wire: Wire,
    device: impl FnOnce(Option<Id>) -> DeviceId,
    window: Window,
) -> Result<Measurement, Wrong> {
    let is_possible = |temp: f64| (TEMP_MIN..=TEMP_MAX).contains(&temp);
    if !is_possible(wire.ambient_temp) || !is_possible(wire.water_temp) {
        return Err(Wrong::Impossible("temperature out of range"));
    }
    if !wire.charge_rate.is_finite() {
        return Err(Wrong::Impossible("charge_rate out of range"));
    }
    let IsoTime(time) = wire.time;
    if time > window.last {
        return Err(Wrong::Impossible("the time is too far in the future"));
    }
    if time < window.first {
        return Err(Wrong::Impossible("the time is too long ago"));
    }
    Ok(Measurement {
        device: device(wire.id),
        time,
        charge_now: wire.charge_now.0,
        charge_full: wire.charge_full.0,
        charge_rate: wire.charge_rate,
        ambient_temp: wire.ambient_temp,
        water_temp: wire.water_temp,
        water_level: wire.water_level.0,
    })
}

/// Parses the body of a login. The name must be present, but its value is ignored, as in the
/// original server.
///
/// # Errors
///
/// If the body is malformed.
pub fn login(body: &[u8]) -> Result<(), Wrong> {
    #[derive(Deserialize)]
    struct Login {
        #[serde(rename = "username")]
        _name: String,
    }
    let _: Login = object(body)?;
    Ok(())
}

/// Parses a command for `device`, due at once unless it has a time.
///
/// # Errors
///
/// If the body is malformed, or a value is impossible.
pub fn command(body: &[u8], device: DeviceId) -> Result<Command, Wrong> {
    #[derive(Deserialize)]
    struct Order {
        #[serde(default)]
        time: Option<IsoTime>,
        #[serde(default)]
        charge: bool,
        #[serde(default)]
        fill: bool,
        #[serde(default)]
        flush: Option<f64>,
    }
    let order: Order = object(body)?;
    if order
        .flush
        .is_some_and(|volume| !volume.is_finite() || volume < 0.0)
    {
        return Err(Wrong::Impossible("volume out of range"));
    }
    Ok(Command {
        device,
        time: order.time.map_or_else(Time::now, |IsoTime(time)| time),
        charge: order.charge,
        fill: order.fill,
        flush: order.flush,
    })
}

/// Formats an error as JSON.
pub fn error(message: &str) -> String {
    serde_json::json!({ "error": message }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = r#"{"time":"2017-12-24T18:30:00Z","charge_now":50,"charge_full":100,
        "charge_rate":-1.5,"ambient_temp":20,"water_temp":95.5,"water_level":700}"#;
    const DEVICE: DeviceId = DeviceId([7; 16]);

    fn window() -> Window {
        Window::now(0)
    }

    #[track_caller]
    fn check_wrong(from: &str, to: &str, is_malformed: bool) {
        let body = BODY.replace(from, to);
        assert_ne!(body, BODY);
        match measurement(body.as_bytes(), DEVICE, window()) {
            Ok(_) => panic!("{body} was taken"),
            Err(wrong) => assert_eq!(wrong.is_malformed(), is_malformed, "{wrong}"),
        }
    }

    #[track_caller]
    fn check_same(from: &str, to: &str) {
        let body = BODY.replace(from, to);
        assert_ne!(body, BODY);
        let read = |body: &str| measurement(body.as_bytes(), DEVICE, window()).unwrap();
        assert_eq!(read(&body), read(BODY));
    }

    #[test]
    fn measurements_are_parsed_as_by_aeson() {
        check_same("50", "50.0");
        check_same("50", "5e1");
        check_same("{", r#"{"colour":"red","#);
        check_same("{", r#"{"id":null,"#);
        check_same("{", r#"{"id":"0f8fad5b-d9cb-469f-a165-70867728950e","#);
        check_same("T18:30:00Z", " 18:30Z");
    }

    #[test]
    fn only_utf8_objects_are_parsed() {
        let array = br#"[null,"2017-12-24T18:30:00Z",50,100,-1.5,20,95.5,700]"#;
        let other = BODY
            .replace('{', r#"{"colour":"r?d","#)
            .replace('?', "\u{e9}");
        let mut latin = other.clone().into_bytes();
        let at = latin.iter().position(|byte| *byte == 0xc3).unwrap();
        latin.remove(at);
        measurement(other.as_bytes(), DEVICE, window()).unwrap();
        for (body, message) in [(&array[..], "not a JSON object"), (&latin, "not UTF-8")] {
            let wrong = measurement(body, DEVICE, window()).unwrap_err();
            assert!(wrong.is_malformed(), "{wrong}");
            assert!(wrong.to_string().starts_with(message), "{wrong}");
        }
        assert!(login(br#"["tea"]"#).is_err());
        assert!(command(b"[]", DEVICE).is_err());
    }

    #[test]
    fn malformed_json_and_impossible_values_are_different_errors() {
        check_wrong("{", r#"{"id":"kettle","#, true);
        check_wrong("50", "50.5", true);
        check_wrong("50", "3000000000", true);
        check_wrong("50", "\"50\"", true);
        check_wrong("50", "null", true);
        check_wrong("95.5", "NaN", true);
        check_wrong("95.5", "1e999", true);
        check_wrong("\"charge_now\":50,", "", true);
        check_wrong("T18:30:00Z", "", true);
        check_wrong("}", "", true);
        check_wrong("{", "[{", true);
        check_wrong("{", "\u{feff}{", true);
        check_wrong("95.5", "-300", false);
        check_wrong("95.5", "1e300", false);
        check_wrong("2017", "1917", false);
        check_wrong("2017", "9017", false);
    }

    #[test]
    fn one_invalid_line_refuses_all_lines_of_a_gateway() {
        let one = BODY.replace('\n', " ");
        let other = one.replace('{', r#"{"id":"0f8fad5b-d9cb-469f-a165-70867728950e","#);
        let text = format!("{one}\n\n{other}\r\n");
        let read = measurements(text.as_bytes(), DEVICE, window()).unwrap();
        assert_eq!(read.len(), 2);
        assert_eq!(read[0].device, DEVICE);
        assert_eq!(
            read[1].device.to_string(),
            "0f8fad5b-d9cb-469f-a165-70867728950e"
        );
        let text = format!("{one}\n{}\n", one.replace("95.5", "hot"));
        let wrong = measurements(text.as_bytes(), DEVICE, window()).unwrap_err();
        assert!(wrong.to_string().starts_with("line 2: "), "{wrong}");
    }
}
