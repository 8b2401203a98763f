//! Texts for people: messages, logs and pages of server and client.
//!
//! [`counted`] formats a number of things, [`human`] a number of bytes, [`shown_path`] a path.
//! [`without_logins`] removes the logins of URLs.
//!
//! # Out of scope
//!
//! Formats that programs read. Input and output.

#![forbid(unsafe_code)]

mod logins;

use std::ffi::OsStr;
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

pub use logins::{may_end_in_login, without_logins};

/// Formats a number of things. `noun`: the singular.
///
/// # Examples
///
/// ```
/// use samovar_text::counted;
///
/// assert_eq!(counted(1, "path"), "1 path");
/// assert_eq!(counted(2, "path"), "2 paths");
/// ```
#[must_use]
pub fn counted(count: impl Display, noun: &str) -> String {
    let count = count.to_string();
    let ending = match (&*count, noun.ends_with('s')) {
        ("1", _) => "",
        (_, false) => "s",
        (_, true) => "es",
    };
    format!("{count} {noun}{ending}")
}

/// Formats a path in one line, without control characters.
///
/// # Examples
///
/// ```
/// use samovar_text::shown_path;
///
/// assert_eq!(shown_path("a/ä b".as_bytes()), "a/ä b");
/// assert_eq!(shown_path(b"a\nb"), r#""a\nb""#);
/// assert_eq!(shown_path(b"a\xff"), r#""a\xFF""#);
/// ```
#[must_use]
pub fn shown_path(path: &[u8]) -> String {
    match std::str::from_utf8(path) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => format!("{:?}", Path::new(OsStr::from_bytes(path))),
    }
}

/// Formats a number of bytes with a binary unit.
///
/// # Examples
///
/// ```
/// assert_eq!(samovar_text::human(1536), "1.5 KiB");
/// ```
#[must_use]
pub fn human(len: u64) -> String {
    let mut whole = len;
    let mut rest = 0;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if whole < 1024 {
            break;
        }
        (rest, whole) = (whole % 1024 * 10 / 1024, whole / 1024);
        unit = next;
    }
    match unit {
        "B" => format!("{whole} B"),
        _ => format!("{whole}.{rest} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nouns_with_their_numbers() {
        for (count, text) in [
            (0, "0 paths"),
            (1, "1 path"),
            (2, "2 paths"),
            (11, "11 paths"),
        ] {
            assert_eq!(counted(count, "path"), text);
        }
        assert_eq!(counted(1, "miss"), "1 miss");
        assert_eq!(counted(0, "miss"), "0 misses");
    }

    #[test]
    fn sizes_with_units() {
        for (len, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (10 << 20, "10.0 MiB"),
            (u64::MAX, "16777215.9 TiB"),
        ] {
            assert_eq!(human(len), text);
        }
    }
}
