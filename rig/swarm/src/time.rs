//! ISO 8601 timestamps in UTC.

use std::io::Write;
use std::time::Duration;

/// Appends a timestamp such as `2017-12-26T13:37:00.042Z`.
pub(crate) fn write(text: &mut Vec<u8>, since_1970: Duration) {
    let seconds = since_1970.as_secs();
    let days = i64::try_from(seconds / 86_400).unwrap_or(i64::MAX);
    let (year, month, day) = date(days);
    let (hour, minute) = (seconds / 3_600 % 24, seconds / 60 % 60);
    let (second, milli) = (seconds % 60, since_1970.subsec_millis());
    write!(
        text,
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z"
    )
    .expect("a vector takes all");
}

/// Converts days since 1970 to year, month and day of the proleptic Gregorian calendar.
///
/// Internally, years begin in March, so that the leap day is the last day of a year.
///
/// # Source
///
/// Howard Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`.
#[must_use]
pub fn date(days_since_1970: i64) -> (i64, i64, i64) {
    let days = days_since_1970.saturating_add(719_468);
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    (400 * era + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(seconds: u64, expected: &str) {
        let mut text = Vec::new();
        write(&mut text, Duration::new(seconds, 7_000_000));
        assert_eq!(String::from_utf8_lossy(&text), expected);
    }

    #[test]
    fn moments_as_date_says_them() {
        // `date -u -d @…`
        check(0, "1970-01-01T00:00:00.007Z");
        check(951_782_400, "2000-02-29T00:00:00.007Z");
        check(1_514_295_420, "2017-12-26T13:37:00.007Z");
        check(4_107_542_399, "2100-02-28T23:59:59.007Z");
        check(4_107_542_400, "2100-03-01T00:00:00.007Z");
    }
}
