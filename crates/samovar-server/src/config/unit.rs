//! Parses sizes and times with units. `off` is 0.

use std::time::Duration;

use super::Value;

/// Parses a number of bytes: a whole number, with or without a unit, as in `"64 MiB"`. Returns
/// `None` for any other text.
pub fn size(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let factor: u64 = match unit {
        "" | "B" => 1,
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        "TiB" | "T" => 1 << 40,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return None,
    };
    number.checked_mul(factor)
}

/// Parses a number of seconds, or a whole number with a unit, as in `"10 min"`. A time above a
/// hundred years becomes a hundred years.
pub fn time(text: &str) -> Option<Duration> {
    let (number, unit) = split(text)?;
    let seconds: u64 = match unit {
        "ms" => return Some(Duration::from_millis(number)),
        "" | "s" => 1,
        "min" | "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        "w" => 7 * 24 * 60 * 60,
        _ => return None,
    };
    // A hundred years can be added to a clock without overflow.
    const MAX: u64 = 100 * 365 * 24 * 60 * 60;
    Some(Duration::from_secs(number.saturating_mul(seconds).min(MAX)))
}

/// Converts a number of seconds, or a text such as `10 min`, to a time; `None` for any other value.
pub(super) fn time_of(value: &Value) -> Option<Duration> {
    match value {
        Value::Count(count) => time(&count.to_string()),
        Value::Text(text) => time(text),
        _ => None,
    }
}

fn split(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    if text == "off" {
        return Some((0, ""));
    }
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at_checked(end)?;
    Some((digits.parse().ok()?, unit.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, expected) in [
            ("0", Some(0)),
            ("off", Some(0)),
            ("64 MiB", Some(64 << 20)),
            ("64MiB", Some(64 << 20)),
            ("2G", Some(2 << 30)),
            ("1 GB", Some(1_000_000_000)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("18446744073709551615 KiB", None),
            ("", None),
            ("MiB", None),
            ("-1", None),
            ("1.5 GiB", None),
            ("1 gibi", None),
        ] {
            assert_eq!(size(text), expected, "{text}");
        }
    }

    #[test]
    fn times() {
        for (text, expected) in [
            ("10", Some(Duration::from_secs(10))),
            ("off", Some(Duration::ZERO)),
            ("10 min", Some(Duration::from_secs(600))),
            ("250ms", Some(Duration::from_millis(250))),
            ("2 h", Some(Duration::from_secs(7200))),
            ("1d", Some(Duration::from_secs(86_400))),
            ("52w", Some(Duration::from_secs(31_449_600))),
            (
                "99999999999999999 d",
                Some(Duration::from_secs(3_153_600_000)),
            ),
            ("soon", None),
            ("5 fortnights", None),
        ] {
            assert_eq!(time(text), expected, "{text}");
        }
    }
}
