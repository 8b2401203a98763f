//! Formats dates and times for log lines, in UTC.
//!
//! Local time would need the rules of the time zone: either a dependency, or a C function that is
//! not safe while other threads change the environment.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;

/// Converts a time to date and time of day, to the second. Times before 1970 and after 9999 become
/// the start of 1970.
pub(super) fn utc(time: SystemTime) -> OffsetDateTime {
    let unix_s = time
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let date = i64::try_from(unix_s)
        .ok()
        .map(OffsetDateTime::from_unix_timestamp);
    date.and_then(Result::ok)
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// Formats a time by RFC 3339, to the second and without a time zone.
pub(crate) fn rfc_3339(time: SystemTime) -> impl fmt::Display {
    let time = utc(time);
    let (year, month, day) = time.to_calendar_date();
    let (hour, minute, second) = time.to_hms();
    fmt::from_fn(move |f| {
        let month = u8::from(month);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"
        )
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[track_caller]
    fn check(unix_s: u64, expected: &str) {
        let time = UNIX_EPOCH + Duration::from_secs(unix_s);
        assert_eq!(rfc_3339(time).to_string(), expected);
    }

    /// Expected values are the output of `date -u -d @N`.
    #[test]
    fn known_moments() {
        check(0, "1970-01-01T00:00:00");
        check(951_782_399, "2000-02-28T23:59:59");
        check(951_782_400, "2000-02-29T00:00:00");
        check(951_868_800, "2000-03-01T00:00:00");
        check(1_709_164_800, "2024-02-29T00:00:00");
        check(1_767_225_599, "2025-12-31T23:59:59");
        check(4_107_542_400, "2100-03-01T00:00:00");
        check(253_402_300_799, "9999-12-31T23:59:59");
    }

    #[test]
    fn times_out_of_range_are_the_start_of_1970() {
        check(253_402_300_800, "1970-01-01T00:00:00");
        let before = UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(rfc_3339(before).to_string(), "1970-01-01T00:00:00");
    }
}
