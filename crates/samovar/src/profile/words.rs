//! Formats numbers, durations and paths for people.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use samovar_workspace::profile::Bin;

use crate::size::grouped;

/// Formats a number of things.
pub(super) fn counted(number: u64, one: &str, many: &str) -> String {
    format!(
        "{} {}",
        grouped(number),
        if number == 1 { one } else { many }
    )
}

/// Formats the inclusive upper bound of a bin, or of the last bin `lower`, the bound below it.
pub(super) fn label(bin: &Bin, lower: u64) -> String {
    match bin.upper {
        Some(0) => "empty".to_owned(),
        Some(upper) => format!("up to {}", grouped(upper)),
        None => format!("above {}", grouped(lower)),
    }
}

/// Formats a duration with about two significant digits.
pub(super) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 0.000_099_5 => format!("{:.0} µs", s * 1e6),
        s if s < 0.0995 => format!("{} ms", short(s * 1e3)),
        s if s < 119.5 => format!("{} s", short(s)),
        s if s < 7199.5 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// Formats a small number with at most two digits after the point.
pub(super) fn short(number: f64) -> String {
    let text = match number {
        n if n < 1.0 => format!("{n:.2}"),
        n if n < 99.95 => format!("{n:.1}"),
        n => format!("{n:.0}"),
    };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Returns a share in percent; 0 of nothing.
pub(super) fn percent(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        _ => 100.0 * part as f64 / whole as f64,
    }
}

/// Formats a path for a terminal: control characters and bytes that are not UTF-8 are escaped.
pub(super) fn shown(path: &[u8]) -> String {
    let quoted = format!("{:?}", OsStr::from_bytes(path));
    quoted
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
        .unwrap_or(&quoted)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_groups_and_few_digits() {
        for (number, text) in [(0, "0"), (999, "999"), (42_246, "42,246")] {
            assert_eq!(grouped(number), text);
        }
        assert_eq!(grouped(1_000_000), "1,000,000");
        assert_eq!(counted(1, "file", "files"), "1 file");
        for (seconds, text) in [
            (0.00028, "0.28 ms"),
            (0.0106, "10.6 ms"),
            (4.04, "4 s"),
            (25.35, "25.4 s"),
            (1752.0, "29 min"),
            (9000.0, "2.5 h"),
            (0.000_02, "20 µs"),
            (0.0, "0 µs"),
        ] {
            assert_eq!(duration(seconds), text);
        }
        assert_eq!(short(940.0), "940");
        assert_eq!(percent(1, 0).to_string(), "0");
    }

    #[test]
    fn paths_cannot_control_a_terminal() {
        assert_eq!(shown(b"a\x1b[2J\n\xffb"), "a\\u{1b}[2J\\n\\xFFb");
        assert_eq!(shown("caf\u{e9}/x".as_bytes()), "caf\u{e9}/x");
    }
}
