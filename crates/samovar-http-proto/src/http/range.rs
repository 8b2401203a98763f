//! The `Range` request header, for a single byte range.

/// Kind of response to a `Range` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeOutcome {
    /// Respond 200 with the whole body: the header is absent or malformed, has another unit or
    /// several ranges. A server may ignore any `Range`, and must ignore a malformed one (RFC 9110,
    /// 14.2).
    Whole,
    /// Respond 206 with these bytes; `end` is exclusive and `start < end <= total`.
    Part {
        /// Index of the first byte, from 0.
        start: u64,
        /// Index after the last byte.
        end: u64,
    },
    /// Respond 416: the range lies outside the body.
    Unsatisfiable,
}

/// Resolves a `Range` value for a body of `total` bytes.
///
/// # Source
///
/// RFC 9110, sections 14.1.1, 14.1.2 and 14.2.
///
/// # Examples
///
/// ```
/// use samovar_http_proto::http::range::{RangeOutcome, resolve};
/// assert_eq!(resolve(b"bytes=5-", 10), RangeOutcome::Part { start: 5, end: 10 });
/// assert_eq!(resolve(b"bytes=10-", 10), RangeOutcome::Unsatisfiable);
/// ```
pub fn resolve(value: &[u8], total: u64) -> RangeOutcome {
    parse(value, total).unwrap_or(RangeOutcome::Whole)
}

fn parse(value: &[u8], total: u64) -> Option<RangeOutcome> {
    let text = std::str::from_utf8(value).ok()?;
    let (unit, set) = text.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") || set.contains(',') {
        return None;
    }
    let (first, last) = set.trim().split_once('-')?;
    if first.is_empty() {
        let suffix_len = number(last)?;
        if suffix_len == 0 || total == 0 {
            return Some(RangeOutcome::Unsatisfiable);
        }
        return Some(RangeOutcome::Part {
            start: total.saturating_sub(suffix_len),
            end: total,
        });
    }
    let start = number(first)?;
    let end = if last.is_empty() {
        total
    } else {
        let last = number(last)?;
        if last < start {
            return None;
        }
        last.saturating_add(1).min(total)
    };
    if start >= total {
        return Some(RangeOutcome::Unsatisfiable);
    }
    Some(RangeOutcome::Part { start, end })
}

/// Parses a decimal number; returns `None` for any other text. Saturates on overflow: any number
/// that large lies beyond the body.
fn number(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::RangeOutcome::{self, Part, Unsatisfiable, Whole};
    use super::resolve;

    #[track_caller]
    fn check(value: &str, total: u64, expected: RangeOutcome) {
        assert_eq!(
            resolve(value.as_bytes(), total),
            expected,
            "{value:?} of {total}"
        );
    }

    #[test]
    fn single_ranges() {
        check("bytes=0-0", 10, Part { start: 0, end: 1 });
        check("bytes=0-9", 10, Part { start: 0, end: 10 });
        check("bytes=0-99", 10, Part { start: 0, end: 10 });
        check("bytes=9-", 10, Part { start: 9, end: 10 });
        check("Bytes = 1-2", 10, Part { start: 1, end: 3 });
        check("bytes=-3", 10, Part { start: 7, end: 10 });
        check("bytes=-30", 10, Part { start: 0, end: 10 });
        check(
            "bytes=0-18446744073709551615",
            10,
            Part { start: 0, end: 10 },
        );
        check(
            "bytes=0-99999999999999999999999",
            10,
            Part { start: 0, end: 10 },
        );
    }

    #[test]
    fn ranges_beyond_the_end_are_unsatisfiable() {
        check("bytes=10-", 10, Unsatisfiable);
        check("bytes=10-12", 10, Unsatisfiable);
        check("bytes=-0", 10, Unsatisfiable);
        check("bytes=0-", 0, Unsatisfiable);
        check("bytes=-1", 0, Unsatisfiable);
        check("bytes=99999999999999999999999-", 10, Unsatisfiable);
    }

    #[test]
    fn malformed_ranges_are_ignored() {
        for value in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=a-",
            "bytes=1-a",
            "bytes=3-2",
            "lines=0-1",
            "bytes=+1-2",
            "bytes=0-1,3-4",
            "bytes=0x1-2",
            "bytes= 1 - 2",
        ] {
            check(value, 10, Whole);
        }
    }
}
