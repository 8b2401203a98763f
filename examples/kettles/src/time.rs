//! Points in time in ISO 8601, as Haskell's Aeson reads a `UTCTime`.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use ::time::{Date, Month, OffsetDateTime};

const MICROS_PER_SECOND: i64 = 1_000_000;
const SECONDS_PER_HOUR: i64 = 3600;
const SECONDS_PER_DAY: i64 = 86_400;

/// Microseconds since 1970 UTC, the resolution of PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub i64);

impl Time {
    /// Returns the current time.
    pub fn now() -> Self {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }

    /// Converts seconds since 1970.
    pub fn from_seconds(seconds: i64) -> Self {
        Self(seconds.saturating_mul(MICROS_PER_SECOND))
    }

    /// Returns this time plus `seconds`, which may be negative.
    #[must_use]
    pub fn plus_seconds(self, seconds: i64) -> Self {
        Self(
            self.0
                .saturating_add(seconds.saturating_mul(MICROS_PER_SECOND)),
        )
    }

    /// Returns the hour of the day in UTC, 0 to 23.
    pub fn hour(self) -> usize {
        let hours = self.0.div_euclid(MICROS_PER_SECOND * SECONDS_PER_HOUR);
        usize::try_from(hours.rem_euclid(24)).unwrap_or(0)
    }

    /// Parses `2017-12-24T18:30:00Z`. A space may replace the `T`, seconds and fraction are
    /// optional, and the zone may be an offset such as `+01:00`, `+0100` or `+01`. Digits below a
    /// microsecond are dropped.
    pub fn parse(text: &str) -> Option<Self> {
        let mut rest = text.as_bytes();
        let year = number(&mut rest, 4)?;
        skip(&mut rest, b"-")?;
        let month = number(&mut rest, 2)?;
        skip(&mut rest, b"-")?;
        let day = number(&mut rest, 2)?;
        skip(&mut rest, b"T ")?;
        let hour = number(&mut rest, 2)?;
        skip(&mut rest, b":")?;
        let minute = number(&mut rest, 2)?;
        let (mut second, mut micros) = (0, 0);
        if skip(&mut rest, b":").is_some() {
            second = number(&mut rest, 2)?;
            if skip(&mut rest, b".").is_some() {
                micros = fraction(&mut rest)?;
            }
        }
        if rest.first() == Some(&b' ') {
            skip(&mut rest, b" ")?;
        }
        let offset = zone(&mut rest)?;
        // POSIX time has no leap seconds, so a leap second becomes the last microsecond before it.
        let is_leap = second == 60;
        if !rest.is_empty() || hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        let days = days_since_epoch(year, month, day)?;
        let seconds = days * SECONDS_PER_DAY + hour * SECONDS_PER_HOUR + minute * 60 + second;
        let micros = if is_leap { 0 } else { micros };
        Some(Self((seconds - offset) * MICROS_PER_SECOND + micros))
    }
}

/// Consumes one character, which must be one of `bytes`.
fn skip(rest: &mut &[u8], bytes: &[u8]) -> Option<u8> {
    let (first, behind) = rest.split_first()?;
    bytes.contains(first).then(|| {
        *rest = behind;
        *first
    })
}

/// Consumes a number of exactly `digit_count` digits.
fn number(rest: &mut &[u8], digit_count: usize) -> Option<i64> {
    let (digits, behind) = rest.split_at_checked(digit_count)?;
    let mut value = 0;
    for digit in digits {
        value = value * 10 + i64::from(char::from(*digit).to_digit(10)?);
    }
    *rest = behind;
    Some(value)
}

/// Consumes the digits of a fraction; returns microseconds.
fn fraction(rest: &mut &[u8]) -> Option<i64> {
    let digits = rest
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .take(12)
        .count();
    let (mut value, mut weight) = (0, MICROS_PER_SECOND / 10);
    for _ in 0..digits {
        value += number(rest, 1)? * weight;
        weight /= 10;
    }
    (digits > 0).then_some(value)
}

/// Consumes a time zone; returns seconds ahead of UTC.
fn zone(rest: &mut &[u8]) -> Option<i64> {
    let sign = match skip(rest, b"Z+-")? {
        b'Z' => return Some(0),
        b'+' => 1,
        _ => -1,
    };
    let hours = number(rest, 2)?;
    skip(rest, b":");
    let minutes = if rest.is_empty() { 0 } else { number(rest, 2)? };
    (hours < 24 && minutes < 60).then_some(sign * (hours * SECONDS_PER_HOUR + minutes * 60))
}

/// Returns the days from 1970 to a Gregorian date; `None` if the date is invalid.
fn days_since_epoch(year: i64, month: i64, day: i64) -> Option<i64> {
    let month = Month::try_from(u8::try_from(month).ok()?).ok()?;
    let (year, day) = (i32::try_from(year).ok()?, u8::try_from(day).ok()?);
    let date = Date::from_calendar_date(year, month, day).ok()?;
    Some(i64::from(date.to_julian_day()) - 2_440_588)
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.div_euclid(MICROS_PER_SECOND);
        let micros = self.0.rem_euclid(MICROS_PER_SECOND);
        // All times are at most some days outside of the years with four digits.
        let time = OffsetDateTime::from_unix_timestamp(seconds);
        let time = time.unwrap_or(OffsetDateTime::UNIX_EPOCH);
        let (hour, minute, second) = time.to_hms();
        write!(f, "{}T{hour:02}:{minute:02}:{second:02}", time.date())?;
        if micros != 0 {
            write!(f, ".{micros:06}")?;
        }
        f.write_str("Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<i64>) {
        assert_eq!(Time::parse(text).map(|time| time.0), expected, "{text}");
    }

    #[test]
    fn times_are_read() {
        let christmas = 1_514_140_200_000_000;
        check("1970-01-01T00:00:00Z", Some(0));
        check("2017-12-24T18:30:00Z", Some(christmas));
        check("2017-12-24 18:30Z", Some(christmas));
        check("2017-12-24 18:30:00 Z", Some(christmas));
        check("2017-12-24T18:30:00.000001Z", Some(christmas + 1));
        check(
            "2017-12-24T18:30:00.123456789012Z",
            Some(christmas + 123_456),
        );
        check("2017-12-24T19:30:00+01:00", Some(christmas));
        check("2017-12-24T14:00:00-0430", Some(christmas));
        check("2017-12-24T19:30:00+01", Some(christmas));
        check("2024-02-29T00:00:00Z", Some(1_709_164_800_000_000));
        check("1969-12-31T23:59:59.5Z", Some(-500_000));
        check("2016-12-31T23:59:60Z", Some(1_483_228_800_000_000));
    }

    #[test]
    fn invalid_times_are_refused() {
        for text in [
            "",
            "now",
            "2017-12-24",
            "2017-12-24T18:30:00",
            "2017-02-29T00:00:00Z",
            "2017-13-01T00:00:00Z",
            "2017-00-01T00:00:00Z",
            "2017-01-00T00:00:00Z",
            "2017-01-01T24:00:00Z",
            "2017-01-01T00:60:00Z",
            "2017-01-01T00:00:61Z",
            "2017-01-01T00:00:00.Z",
            "2017-01-01T00:00:00Zulu",
            "2017-01-01T00:00:00+1",
            "17-01-01T00:00:00Z",
        ] {
            check(text, None);
        }
    }

    #[test]
    fn times_are_formatted_as_they_were_parsed() {
        for text in [
            "2017-12-24T18:30:00Z",
            "2024-02-29T23:59:59.000001Z",
            "1969-12-31T23:59:59.500000Z",
            "2000-03-01T00:00:00Z",
            "0001-01-01T00:00:00Z",
        ] {
            assert_eq!(Time::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn the_hour_of_a_time_is_that_of_utc() {
        let hour = |text| Time::parse(text).unwrap().hour();
        assert_eq!(hour("2017-12-24T18:59:59.999999Z"), 18);
        assert_eq!(hour("2017-12-24T19:00:00+01:00"), 18);
        assert_eq!(hour("1969-12-31T23:00:00Z"), 23);
    }
}
