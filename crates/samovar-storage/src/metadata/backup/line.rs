//! [`Line`]: a line of a backup.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::error::StorageError;

/// A line of a backup: an object of JSON. Hashes are hexadecimal, times are in seconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(super) enum Line {
    Token {
        hash: String,
        name: String,
        cache: Option<String>,
        names: Option<String>,
        rights: i64,
        created_at: i64,
        expires_at: Option<i64>,
        revoked_at: Option<i64>,
    },
    Pin {
        cache: String,
        name: String,
        generation: i64,
        path: String,
        created_at: i64,
        expires_at: Option<i64>,
        token: Option<String>,
        host: Option<String>,
        message: Option<String>,
        /// Older versions have not written it.
        lineage: Option<String>,
    },
    RemovedPin {
        cache: String,
        name: String,
        generation: i64,
        removed_at: i64,
    },
    /// The last use of a path.
    Use {
        cache: String,
        path: String,
        at: Option<i64>,
        /// What older versions have written instead of the time: the day, since 1970.
        #[serde(default, skip_serializing)]
        day: Option<i64>,
    },
    MirroredCache {
        name: String,
    },
    /// The narinfo of a path in a cache that is not mirrored.
    Narinfo {
        cache: String,
        text: String,
    },
    /// A kind of a newer version.
    #[serde(other)]
    Unknown,
}

impl Line {
    pub(super) fn parse(text: &str) -> Result<Self, StorageError> {
        serde_json::from_str(text)
            .map_err(|error| StorageError::Database(format!("not a line of a backup: {error}")))
    }

    pub(super) fn text(&self) -> Result<String, StorageError> {
        serde_json::to_string(self).map_err(|error| StorageError::Database(error.to_string()))
    }
}

/// Writes bytes in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        write!(text, "{byte:02X}").ok();
        text
    })
}

/// Parses hexadecimal bytes. `None`: the text is something else.
pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |[high, low]: &[u8; 2]| u8::try_from(digit(*high)? * 16 + digit(*low)?).ok();
    rest.is_empty().then(|| pairs.iter().map(byte).collect())?
}

/// Returns the date at a time, in the form `2026-11-23`.
pub(super) fn date(unix_seconds: i64) -> String {
    // Counts in years from March 1, so that a leap day is the last day of its year, and in eras of
    // 400 years, which all have the same number of days.
    const ERA_DAYS: i64 = 146_097;
    let days = unix_seconds.div_euclid(86_400) + 719_468;
    let (era, day) = (days.div_euclid(ERA_DAYS), days.rem_euclid(ERA_DAYS));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (time, expected) in [
            (0, "1970-01-01"),
            (-1, "1969-12-31"),
            (951_782_400, "2000-02-29"),
            (1_709_251_199, "2024-02-29"),
            (1_709_251_200, "2024-03-01"),
            (1_795_996_800, "2026-11-30"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(date(time), expected, "{time}");
        }
    }

    #[test]
    fn bytes_in_hexadecimal() {
        assert_eq!(hex(&[0, 0xab, 7]), "00AB07");
        assert_eq!(unhex("00abAB"), Some(vec![0, 0xab, 0xab]));
        assert_eq!((unhex("0"), unhex("0g"), unhex("é")), (None, None, None));
    }

    #[test]
    fn lines_of_other_versions_are_read() {
        let parse = |text| Line::parse(text).unwrap();
        assert_eq!(
            parse(r#"{"kind":"of-a-newer-version","x":1}"#),
            Line::Unknown
        );
        let day = parse(r#"{"kind":"use","cache":"a","path":"00","day":20000}"#);
        assert!(matches!(
            day,
            Line::Use {
                at: None,
                day: Some(20_000),
                ..
            }
        ));
        let pin = r#"{"kind":"pin","cache":"a","name":"b","generation":1,"path":"00","created_at":2,
                      "expires_at":null}"#;
        assert!(matches!(parse(pin), Line::Pin { lineage: None, .. }));
        assert!(Line::parse("{").is_err());
    }
}
