//! `GET <push id>/part/<NAR hash>`: the parts of a NAR file that the server has.
//!
//! # Grammar
//!
//! ```text
//! answer = *("part " number " " length " " sha256 LF) "end " count LF
//! ```
//!
//! `sha256` is in lower-case hexadecimal digits.

use std::fmt::Write as _;

use samovar_nix::Hash;

use crate::answer::{AnswerError, Lines};
use crate::line::{number, parse_sha256, words};

/// A part of a NAR file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartLine {
    /// Number of the part, from 1.
    pub number: u32,
    /// Length of the part, in bytes.
    pub len: u64,
    /// SHA-256 of the part.
    pub sha256: [u8; 32],
}

impl PartLine {
    /// Returns the answer that lists these parts.
    #[must_use]
    pub fn text(parts: &[Self]) -> String {
        let mut text = String::new();
        for part in parts {
            let (number, len) = (part.number, part.len);
            let sha256 = Hash::sha256(&part.sha256).base16();
            // Writing to a `String` never fails.
            writeln!(text, "part {number} {len} {sha256}").ok();
        }
        writeln!(text, "end {}", parts.len()).ok();
        text
    }

    /// Parses a list of parts.
    ///
    /// # Errors
    ///
    /// Any [`AnswerError`].
    pub fn parse(text: &str) -> Result<Vec<Self>, AnswerError> {
        let lines = Lines::counted(text)?;
        let part = |line: &&str| Self::parse_line(line).ok_or_else(|| AnswerError::line(line));
        lines.iter().map(part).collect()
    }

    fn parse_line(line: &str) -> Option<Self> {
        let [b"part", part_number, len, sha256] = words(line.as_bytes())? else {
            return None;
        };
        Some(Self {
            number: u32::try_from(number(part_number)?).ok()?,
            len: number(len)?,
            sha256: parse_sha256(std::str::from_utf8(sha256).ok()?)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::damage::damage;

    #[test]
    fn lists() {
        let part = |number, len| PartLine {
            number,
            len,
            sha256: [0xab; 32],
        };
        let sha256 = "ab".repeat(32);
        let text = format!("part 1 32 {sha256}\npart 3 7 {sha256}\nend 2\n");
        let parts = [part(1, 32), part(3, 7)];
        assert_eq!(PartLine::text(&parts), text);
        assert_eq!(PartLine::parse(&text).unwrap(), parts);
        assert_eq!(PartLine::parse("end 0\n"), Ok(Vec::new()));
        for len in 0..text.len() {
            assert!(PartLine::parse(&text[..len]).is_err(), "{len}");
        }
        for (from, to) in [
            ("end 2", "end 3"),
            ("part 1", "part 01"),
            ("part 1", "part 4294967296"),
            ("ab", "AB"),
            (" 7", ""),
        ] {
            assert!(
                PartLine::parse(&text.replacen(from, to, 1)).is_err(),
                "{to}"
            );
        }
    }

    proptest! {
        #[test]
        fn answers_are_read_as_they_were_written(
            parts in vec(any::<(u32, u64, [u8; 32])>(), 0..6),
            damage in damage(),
        ) {
            let part = |(number, len, sha256)| PartLine { number, len, sha256 };
            let parts: Vec<_> = parts.into_iter().map(part).collect();
            let text = PartLine::text(&parts);
            prop_assert_eq!(PartLine::parse(&text), Ok(parts));
            let damaged = damage.of_text(&text);
            if let Ok(read) = PartLine::parse(&damaged) {
                prop_assert_eq!(PartLine::text(&read), damaged);
            }
        }
    }
}
