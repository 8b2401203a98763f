//! `PUT <push id>/pack`: many NARs, and the outcome for each.
//!
//! # Grammar
//!
//! ```text
//! request = *("nar " nar-hash " " compression " " length LF bytes) "end " count LF
//! answer  = *("kept " nar-hash LF / "refused " nar-hash " " reason LF)
//!           "end " kept " " refused LF
//! ```
//!
//! `compression` is a name that narinfos use. [`Records`](super::Records) reads the request.

use std::fmt::Write as _;

use samovar_nix::NarHash;
use samovar_nix::narinfo::Compression;

use super::{BODY_LEN_MAX, RecordLine};
use crate::answer::{AnswerError, Lines};
use crate::line::{in_one_line, nar_hash_text, number, words};

/// Maximum number of NARs in a pack.
pub const PACK_COUNT_MAX: usize = 16_384;

/// The line before each NAR in a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackLine {
    /// SHA-256 of the NAR.
    pub nar_hash: NarHash,
    /// Compression of the record's bytes.
    pub compression: Compression,
    /// Length of the compressed NAR after the line, in bytes.
    pub len: u64,
}

impl RecordLine for PackLine {
    const FORM: &'static str = "nar <NAR hash> <compression> <length>";
    const COUNT_MAX: usize = PACK_COUNT_MAX;
    const LEN_MAX: u64 = BODY_LEN_MAX;

    fn parse(line: &[u8]) -> Option<Self> {
        let [b"nar", nar_hash, compression, len] = words(line)? else {
            return None;
        };
        Some(Self {
            nar_hash: NarHash::parse_nixbase32(nar_hash).ok()?,
            compression: Compression::from_name(std::str::from_utf8(compression).ok()?)?,
            len: number(len)?,
        })
    }

    fn text(&self) -> String {
        let nar_hash = nar_hash_text(&self.nar_hash);
        format!("nar {nar_hash} {} {}", self.compression.name(), self.len)
    }

    fn record_len(&self) -> u64 {
        self.len
    }
}

/// The outcome for one record of a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackOutcome {
    /// The NAR hash that the record states.
    pub nar_hash: NarHash,
    /// The reason why the NAR is refused, as one sentence. `None`: the NAR is stored.
    pub refusal: Option<String>,
}

impl PackOutcome {
    /// Creates the outcome for a NAR. Replaces the line ends of `refusal`.
    #[must_use]
    pub fn new(nar_hash: NarHash, refusal: Option<&str>) -> Self {
        Self {
            nar_hash,
            refusal: refusal.map(in_one_line),
        }
    }

    /// Returns the answer with these outcomes, in the order of the records.
    #[must_use]
    pub fn text(outcomes: &[Self]) -> String {
        let mut text = String::new();
        for outcome in outcomes {
            let nar_hash = nar_hash_text(&outcome.nar_hash);
            // Writing to a `String` never fails.
            match &outcome.refusal {
                None => writeln!(text, "kept {nar_hash}"),
                Some(reason) => writeln!(text, "refused {nar_hash} {}", in_one_line(reason)),
            }
            .ok();
        }
        let [kept, refused] = counts(outcomes);
        writeln!(text, "end {kept} {refused}").ok();
        text
    }

    /// Parses the answer to a pack of these NARs.
    ///
    /// # Errors
    ///
    /// Any [`AnswerError`].
    pub fn parse(text: &str, asked: &[NarHash]) -> Result<Vec<Self>, AnswerError> {
        let lines = Lines::of(text)?;
        if lines.lines.len() != asked.len() {
            return Err(AnswerError::Count {
                found: lines.lines.len(),
                asked: asked.len(),
                of: "NARs",
            });
        }
        let mut outcomes = Vec::with_capacity(asked.len());
        for (line, asked) in lines.lines.iter().zip(asked) {
            let outcome = Self::parse_line(line).ok_or_else(|| AnswerError::line(line))?;
            if outcome.nar_hash != *asked {
                return Err(AnswerError::other(line));
            }
            outcomes.push(outcome);
        }
        lines.check_end(&counts(&outcomes))?;
        Ok(outcomes)
    }

    fn parse_line(line: &str) -> Option<Self> {
        let mut words = line.splitn(3, ' ');
        let (word, nar_hash, reason) = (words.next()?, words.next()?, words.next());
        if !matches!((word, reason), ("kept", None) | ("refused", Some(_))) {
            return None;
        }
        let nar_hash = NarHash::parse_nixbase32(nar_hash.as_bytes()).ok()?;
        Some(Self::new(nar_hash, reason))
    }
}

/// Returns the numbers of the last line: how many NARs are kept, and how many are refused.
fn counts(outcomes: &[PackOutcome]) -> [usize; 2] {
    let is_kept = |outcome: &&PackOutcome| outcome.refusal.is_none();
    let kept = outcomes.iter().filter(is_kept).count();
    [kept, outcomes.len().saturating_sub(kept)]
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::{LINE_LEN_MAX, write_end, write_record};
    use super::*;
    use crate::damage::damage;

    const N: &str = "0000000000000000000000000000000000000000000000000000";

    #[test]
    fn a_pack_has_lines_and_bytes() {
        let line = |len| PackLine {
            nar_hash: NarHash::from_bytes([0; 32]),
            compression: Compression::Zstd,
            len,
        };
        let mut pack = Vec::new();
        write_record(&mut pack, &line(4), b"abc\n");
        write_record(&mut pack, &line(0), b"");
        write_end(&mut pack, 2);
        let expected = format!("nar {N} zstd 4\nabc\nnar {N} zstd 0\nend 2\n");
        assert_eq!(pack, expected.as_bytes());
        let longest = PackLine {
            compression: Compression::Bzip2,
            ..line(u64::MAX)
        };
        assert!(longest.text().len() <= LINE_LEN_MAX);
    }

    #[test]
    fn answers() {
        let hash = NarHash::from_bytes([0; 32]);
        let asked = [hash; 2];
        let text = format!("kept {N}\nrefused {N} wrong hash, send it again\nend 1 1\n");
        let refusal = Some("wrong hash,\nsend it again");
        let outcomes = [None, refusal].map(|refusal| PackOutcome::new(hash, refusal));
        assert_eq!(PackOutcome::text(&outcomes), text);
        assert_eq!(PackOutcome::parse(&text, &asked).unwrap(), outcomes);
        for len in 0..text.len() {
            assert!(PackOutcome::parse(&text[..len], &asked).is_err(), "{len}");
        }
        for (from, to) in [
            ("end 1 1", "end 2 0"),
            ("end 1 1", "end 1 1 0"),
            ("0000", "0001"),
            ("kept", "Kept"),
        ] {
            let wrong = text.replacen(from, to, 1);
            assert!(PackOutcome::parse(&wrong, &asked).is_err(), "{to}");
        }
        assert_eq!(PackOutcome::parse("end 0 0\n", &[]), Ok(Vec::new()));
    }

    proptest! {
        #[test]
        fn answers_are_read_as_they_were_written(
            outcomes in vec((any::<[u8; 32]>(), prop::option::of("[a-z\u{e4} :;]{0,20}")), 0..6),
            damage in damage(),
        ) {
            let outcomes: Vec<_> = outcomes
                .into_iter()
                .map(|(nar_hash, refusal)| PackOutcome {
                    nar_hash: NarHash::from_bytes(nar_hash),
                    refusal,
                })
                .collect();
            let asked: Vec<_> = outcomes.iter().map(|outcome| outcome.nar_hash).collect();
            let text = PackOutcome::text(&outcomes);
            prop_assert_eq!(PackOutcome::parse(&text, &asked), Ok(outcomes));
            if let Ok(read) = PackOutcome::parse(&damage.of_text(&text), &asked) {
                let again = PackOutcome::text(&read);
                prop_assert_eq!(PackOutcome::parse(&again, &asked), Ok(read));
            }
        }

        #[test]
        fn lines_are_read_as_they_were_written(
            (nar_hash, len) in any::<([u8; 32], u64)>(),
            compression in prop::sample::select(&["none", "zstd", "xz", "bzip2", "br", "lz4"][..]),
            damage in damage(),
        ) {
            let line = PackLine {
                nar_hash: NarHash::from_bytes(nar_hash),
                compression: Compression::from_name(compression).unwrap(),
                len,
            };
            let text = line.text();
            prop_assert_eq!(PackLine::parse(text.as_bytes()), Some(line));
            let damaged = damage.of(text.as_bytes());
            if let Some(read) = PackLine::parse(&damaged) {
                prop_assert_eq!(read.text().into_bytes(), damaged);
            }
        }
    }
}
