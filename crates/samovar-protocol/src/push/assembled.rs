//! `POST <push id>/assemble`: the NAR that was made from a [recipe](crate::recipe).
//!
//! # Grammar
//!
//! ```text
//! answer = "kept " nar-hash " " nar-size LF "end 1" LF
//! ```

use samovar_nix::NarHash;

use crate::answer::{AnswerError, Lines};
use crate::line::{nar_hash_text, number, words};

/// The answer to a recipe whose NAR is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assembled {
    /// SHA-256 of the NAR.
    pub nar_hash: NarHash,
    /// Length of the NAR, in bytes.
    pub nar_size: u64,
}

impl Assembled {
    /// Returns the answer.
    #[must_use]
    pub fn text(&self) -> String {
        let nar_hash = nar_hash_text(&self.nar_hash);
        format!("kept {nar_hash} {}\nend 1\n", self.nar_size)
    }

    /// Parses the answer.
    ///
    /// # Errors
    ///
    /// Any [`AnswerError`].
    pub fn parse(text: &str) -> Result<Self, AnswerError> {
        let line = Lines::single(text)?;
        Self::parse_line(line).ok_or_else(|| AnswerError::line(line))
    }

    fn parse_line(line: &str) -> Option<Self> {
        let [b"kept", nar_hash, nar_size] = words(line.as_bytes())? else {
            return None;
        };
        Some(Self {
            nar_hash: NarHash::parse_nixbase32(nar_hash).ok()?,
            nar_size: number(nar_size)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::damage::damage;

    #[test]
    fn answers() {
        let text = format!("kept {} 120\nend 1\n", "0".repeat(52));
        let assembled = Assembled {
            nar_hash: NarHash::from_bytes([0; 32]),
            nar_size: 120,
        };
        assert_eq!(assembled.text(), text);
        assert_eq!(Assembled::parse(&text), Ok(assembled));
        for len in 0..text.len() {
            assert!(Assembled::parse(&text[..len]).is_err(), "{len}");
        }
        let twice = format!("kept {0} 1\nkept {0} 1\nend 2\n", "0".repeat(52));
        for wrong in [text.replace("120", "0120"), "end 0\n".to_owned(), twice] {
            assert!(Assembled::parse(&wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn answers_are_read_as_they_were_written(
            (nar_hash, nar_size) in any::<([u8; 32], u64)>(),
            damage in damage(),
        ) {
            let nar_hash = NarHash::from_bytes(nar_hash);
            let assembled = Assembled { nar_hash, nar_size };
            let text = assembled.text();
            prop_assert_eq!(Assembled::parse(&text), Ok(assembled));
            let damaged = damage.of_text(&text);
            if let Ok(read) = Assembled::parse(&damaged) {
                prop_assert_eq!(read.text(), damaged);
            }
        }
    }
}
