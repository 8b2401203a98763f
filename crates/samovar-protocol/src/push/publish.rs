//! `POST <push id>/publish`: the narinfos of paths, and what they lack.
//!
//! # Grammar
//!
//! ```text
//! request = *("narinfo " length LF narinfo) "end " count LF
//! answer  = "published " count LF "end " count LF
//!         / 1*("missing " hash-part " " hash-part LF / "need " hash-part LF) "end " count LF
//! ```
//!
//! [`Records`](super::Records) reads the request. The second form of the answer has another status.

use std::fmt::Write as _;

use samovar_nix::HashPart;

use super::RecordLine;
use crate::answer::{AnswerError, Lines};
use crate::line::{number, words};

/// Maximum length of the body of `publish`, in bytes.
pub const PUBLISH_LEN_MAX: u64 = 8 << 20;

/// Maximum number of narinfos in the body of `publish`.
pub const PUBLISH_COUNT_MAX: usize = 4096;

/// Maximum length of a narinfo that a client uploads, in bytes.
pub const NARINFO_LEN_MAX: usize = 1 << 20;

/// The line before each narinfo in the body of `publish`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NarinfoLine {
    /// Length of the narinfo after the line, in bytes.
    pub len: u64,
}

impl RecordLine for NarinfoLine {
    const FORM: &'static str = "narinfo <length>";
    const COUNT_MAX: usize = PUBLISH_COUNT_MAX;
    const LEN_MAX: u64 = NARINFO_LEN_MAX as u64;

    fn parse(line: &[u8]) -> Option<Self> {
        let [b"narinfo", len] = words(line)? else {
            return None;
        };
        let len = number(len)?;
        Some(Self { len })
    }

    fn text(&self) -> String {
        format!("narinfo {}", self.len)
    }

    fn record_len(&self) -> u64 {
        self.len
    }
}

/// Returns the answer to a request whose paths are published: `count` of them.
#[must_use]
pub fn published(count: usize) -> String {
    format!("published {count}\nend {count}\n")
}

/// Returns whether an answer says that `count` paths are published.
#[must_use]
pub fn is_published(text: &str, count: usize) -> bool {
    text == published(count)
}

/// A reference or NAR that a path needs and the cache lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// A reference of a path.
    Reference {
        /// Hash part of the reference.
        reference: HashPart,
        /// Hash part of the path that refers to it.
        path: HashPart,
    },
    /// The NAR of the path with this hash part.
    Nar(HashPart),
}

impl Missing {
    /// Returns the answer that lists what is missing.
    #[must_use]
    pub fn text(missing: &[Self]) -> String {
        let mut text = String::new();
        for missing in missing {
            // Writing to a `String` never fails.
            match missing {
                Self::Reference { reference, path } => {
                    writeln!(text, "missing {reference} {path}")
                }
                Self::Nar(path) => writeln!(text, "need {path}"),
            }
            .ok();
        }
        writeln!(text, "end {}", missing.len()).ok();
        text
    }

    /// Parses an answer that lists what is missing.
    ///
    /// # Errors
    ///
    /// Any [`AnswerError`].
    pub fn parse(text: &str) -> Result<Vec<Self>, AnswerError> {
        let lines = Lines::counted(text)?;
        let missing = |line: &&str| Self::parse_line(line).ok_or_else(|| AnswerError::line(line));
        lines.iter().map(missing).collect()
    }

    fn parse_line(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ')?;
        let hash_part = |text: &str| HashPart::parse(text.as_bytes()).ok();
        match word {
            "missing" => {
                let (reference, path) = rest.split_once(' ')?;
                Some(Self::Reference {
                    reference: hash_part(reference)?,
                    path: hash_part(path)?,
                })
            }
            "need" => hash_part(rest).map(Self::Nar),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::{write_end, write_record};
    use super::*;
    use crate::damage::damage;

    const H: &str = "vdszx2k8vwaxcpdpwhbwsgib5c6sf53k";

    #[test]
    fn requests() {
        let mut body = Vec::new();
        write_record(&mut body, &NarinfoLine { len: 4 }, b"a: b");
        write_end(&mut body, 1);
        assert_eq!(body, b"narinfo 4\na: bend 1\n");
    }

    #[test]
    fn answers() {
        assert_eq!(published(12), "published 12\nend 12\n");
        assert!(is_published("published 0\nend 0\n", 0));
        for wrong in ["", "published 1\nend 1\n", "published 0\n"] {
            assert!(!is_published(wrong, 0), "{wrong:?}");
        }
        let path: HashPart = H.parse().unwrap();
        let text = format!("missing {H} {H}\nneed {H}\nend 2\n");
        let reference = path;
        let missing = [Missing::Reference { reference, path }, Missing::Nar(path)];
        assert_eq!(Missing::text(&missing), text);
        assert_eq!(Missing::parse(&text).unwrap(), missing);
        for len in 0..text.len() {
            assert!(Missing::parse(&text[..len]).is_err(), "{len}");
        }
        for bad in ["missing a b\nend 1\n", "need a\nend 1\n", "end 1\n", ""] {
            assert!(Missing::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn answers_are_read_as_they_were_written(
            missing in vec((any::<[u8; 20]>(), prop::option::of(any::<[u8; 20]>())), 0..6),
            damage in damage(),
        ) {
            let missing = missing.into_iter().map(|(path, reference)| {
                let path = HashPart::from_bytes(path);
                match reference.map(HashPart::from_bytes) {
                    Some(reference) => Missing::Reference { reference, path },
                    None => Missing::Nar(path),
                }
            });
            let missing: Vec<_> = missing.collect();
            let text = Missing::text(&missing);
            prop_assert_eq!(Missing::parse(&text), Ok(missing));
            let damaged = damage.of_text(&text);
            if let Ok(read) = Missing::parse(&damaged) {
                prop_assert_eq!(Missing::text(&read), damaged);
            }
        }
    }
}
