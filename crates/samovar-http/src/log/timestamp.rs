//! Times of log lines, in UTC.
//!
//! Local time would need the rules of the time zone: either a dependency, or a C function that is
//! not safe while other threads change the environment.

use std::time::SystemTime;

/// A date and a time of day, to the second.
pub(super) struct Moment {
    /// The date in the format of HTTP, which has the same parts: `Sun, 06 Nov 1994 08:49:37 GMT`.
    text: String,
}

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

impl Moment {
    /// A time before 1970 or after 9999, which only a wrong clock has, becomes the start of 1970.
    pub(super) fn of(time: SystemTime) -> Self {
        let end = 253_402_300_800; // the start of the year 10000, in seconds
        let since_1970 = time.duration_since(SystemTime::UNIX_EPOCH);
        let is_sane = since_1970.is_ok_and(|since_1970| since_1970.as_secs() < end);
        let time = if is_sane {
            time
        } else {
            SystemTime::UNIX_EPOCH
        };
        Self {
            text: httpdate::fmt_http_date(time),
        }
    }

    fn part(&self, start: usize, end: usize) -> &str {
        self.text.get(start..end).unwrap_or_default()
    }

    /// Formats as in the common log format: `06/Nov/1994:08:49:37 +0000`.
    pub(super) fn common(&self) -> String {
        let (day, month, year) = (self.part(5, 7), self.part(8, 11), self.part(12, 16));
        let time = self.part(17, 25);
        format!("{day}/{month}/{year}:{time} +0000")
    }

    /// Formats by RFC 3339: `1994-11-06T08:49:37Z`.
    pub(super) fn rfc_3339(&self) -> String {
        let (day, month, year) = (self.part(5, 7), self.part(8, 11), self.part(12, 16));
        let number = MONTHS.iter().position(|name| *name == month);
        let month = number.unwrap_or_default() + 1;
        let time = self.part(17, 25);
        format!("{year}-{month:02}-{day}T{time}Z")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[track_caller]
    fn check(unix_s: u64, common: &str, rfc_3339: &str) {
        let moment = Moment::of(SystemTime::UNIX_EPOCH + Duration::from_secs(unix_s));
        assert_eq!(moment.common(), common);
        assert_eq!(moment.rfc_3339(), rfc_3339);
    }

    /// Expected values are the output of `date -u -d @N`.
    #[test]
    fn known_moments() {
        check(0, "01/Jan/1970:00:00:00 +0000", "1970-01-01T00:00:00Z");
        check(
            951_782_400,
            "29/Feb/2000:00:00:00 +0000",
            "2000-02-29T00:00:00Z",
        );
        check(
            1_767_225_599,
            "31/Dec/2025:23:59:59 +0000",
            "2025-12-31T23:59:59Z",
        );
        check(
            253_402_300_799,
            "31/Dec/9999:23:59:59 +0000",
            "9999-12-31T23:59:59Z",
        );
    }

    #[test]
    fn times_out_of_range_are_the_start_of_1970() {
        check(
            253_402_300_800,
            "01/Jan/1970:00:00:00 +0000",
            "1970-01-01T00:00:00Z",
        );
        let before = Moment::of(SystemTime::UNIX_EPOCH - Duration::from_secs(1));
        assert_eq!(before.rfc_3339(), "1970-01-01T00:00:00Z");
    }
}
