//! Calendar dates in UTC.
//!
//! Local time would need the rules of the time zone: a dependency, and in C a function that is not
//! safe while other threads change the environment.

use std::time::{SystemTime, UNIX_EPOCH};

/// A date and time, to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Utc {
    pub(super) year: u64,
    /// From 1.
    pub(super) month: usize,
    /// From 1.
    pub(super) day: u64,
    pub(super) hour: u64,
    pub(super) minute: u64,
    pub(super) second: u64,
}

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

impl Utc {
    /// Times before 1970 become its first second.
    pub(super) fn of(time: SystemTime) -> Self {
        let unix_s = time
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let (year, month, day) = civil(unix_s / 86_400);
        let second_of_day = unix_s % 86_400;
        Self {
            year,
            month,
            day,
            hour: second_of_day / 3600,
            minute: second_of_day / 60 % 60,
            second: second_of_day % 60,
        }
    }

    /// Three letters, English.
    pub(super) fn month_name(&self) -> &'static str {
        MONTHS[self.month - 1]
    }
}

/// Year, month and day of a day counted from the first of January 1970.
///
/// # Source
///
/// Howard Hinnant, «chrono-Compatible Low-Level Date Algorithms», `civil_from_days`. Years begin in
/// March there, so that the leap day is the last.
fn civil(unix_day: u64) -> (u64, usize, u64) {
    const DAYS_PER_ERA: u64 = 146_097;
    let day = unix_day + 719_468;
    let (era, day_of_era) = (day / DAYS_PER_ERA, day % DAYS_PER_ERA);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // 0 is March.
    let month_index = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_index + 2) / 5 + 1;
    let (month, next_year) = if month_index < 10 {
        (month_index + 3, 0)
    } else {
        (month_index - 9, 1)
    };
    let month = usize::try_from(month).expect("a month is at most 12");
    (era * 400 + year_of_era + next_year, month, day_of_month)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[track_caller]
    fn check(unix_s: u64, expected: &str) {
        let utc = Utc::of(UNIX_EPOCH + Duration::from_secs(unix_s));
        let Utc {
            year,
            month,
            day,
            hour,
            minute,
            second,
        } = utc;
        let shown = format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}");
        assert_eq!(shown, expected);
    }

    /// Expected values by `date -u -d @N`.
    #[test]
    fn known_moments() {
        check(0, "1970-01-01 00:00:00");
        check(951_782_399, "2000-02-28 23:59:59");
        check(951_782_400, "2000-02-29 00:00:00");
        check(951_868_800, "2000-03-01 00:00:00");
        check(1_709_164_800, "2024-02-29 00:00:00");
        check(1_767_225_599, "2025-12-31 23:59:59");
        check(4_107_542_400, "2100-03-01 00:00:00");
        check(253_402_300_799, "9999-12-31 23:59:59");
    }

    #[test]
    fn every_day_follows_the_day_before() {
        let mut before = civil(0);
        for unix_day in 1..200_000 {
            let (year, month, day) = civil(unix_day);
            let next_day = (year, month, day) == (before.0, before.1, before.2 + 1);
            let next_month = (year, month, day) == (before.0, before.1 + 1, 1);
            let next_year = (year, month, day) == (before.0 + 1, 1, 1) && before.1 == 12;
            assert!(next_day || next_month || next_year, "{unix_day}");
            before = (year, month, day);
        }
    }
}
