//! `GET pin/<name>`: the generations of a pin.
//!
//! # Grammar
//!
//! ```text
//! answer = *("generation " number " " base-name " " created " " expires " " token " " host " "
//!            message LF)
//!          *("sig " key-name ":" signature LF) "end " count LF
//! ```
//!
//! `expires`, `token`, `host` and `message` are `-` if there is none. The last three are
//! percent-encoded; the text `-` is `%2D`. `count` is the number of generations.

use samovar_nix::{Signature, StoreDir, StorePath};

use super::time;
use crate::answer::{AnswerError, Lines};
use crate::line::{end_line, number, words};
use crate::percent::{decode, encode};

/// The word for an absent value.
const ABSENT: &str = "-";

/// A generation of a pin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generation {
    /// Number of the generation, from 1.
    pub number: u64,
    /// The pinned path.
    pub path: StorePath,
    /// Time at which the generation was added, in seconds since 1970.
    pub created_at: i64,
    /// Time of expiry, in seconds since 1970. `None`: it never expires.
    pub expires_at: Option<i64>,
    /// Name of the token with which the generation was added.
    pub token: Option<String>,
    /// The client's host, as the client stated it.
    pub host: Option<String>,
    /// The client's message.
    pub message: Option<String>,
}

impl Generation {
    /// Returns the line of the generation, with its LF.
    #[must_use]
    pub fn line(&self) -> String {
        let expires = self.expires_at.map(|at| at.to_string());
        format!(
            "generation {} {} {} {} {} {} {}\n",
            self.number,
            self.path.base_name(),
            self.created_at,
            expires.as_deref().unwrap_or(ABSENT),
            stated(self.token.as_deref()),
            stated(self.host.as_deref()),
            stated(self.message.as_deref()),
        )
    }

    fn parse_line(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let mut word = || words.next();
        let (b"generation", generation) = (word()?.as_bytes(), word()?) else {
            return None;
        };
        let parsed = Self {
            number: number(generation.as_bytes())?,
            path: StorePath::from_base_name(word()?).ok()?,
            created_at: time(word()?)?,
            expires_at: match word()? {
                ABSENT => None,
                expires => Some(time(expires)?),
            },
            token: text(word()?)?,
            host: text(word()?)?,
            message: text(word()?)?,
        };
        word().is_none().then_some(parsed)
    }
}

fn stated(text: Option<&str>) -> String {
    match text {
        // To differ from an absent text.
        Some(ABSENT) => "%2D".to_owned(),
        Some(text) => encode(text),
        None => ABSENT.to_owned(),
    }
}

/// Parses a text. The outer `None`: the word is malformed.
fn text(word: &str) -> Option<Option<String>> {
    match word {
        ABSENT => Some(None),
        word => decode(word).map(Some),
    }
}

/// Returns the line of a signature of the newest generation, with its LF.
#[must_use]
pub fn signature_line(signature: &Signature) -> String {
    format!("sig {signature}\n")
}

/// Returns the text that is signed for a generation of the pin with this name.
#[must_use]
pub fn fingerprint(dir: &StoreDir, name: &str, generation: &Generation) -> String {
    format!(
        "samovar-ref;1;{dir};{};{};{};{}",
        encode(name),
        generation.number,
        generation.path.base_name(),
        generation.created_at
    )
}

/// The answer: the generations, newest first, and the signatures of the newest one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Generations {
    /// The generations, newest first.
    pub generations: Vec<Generation>,
    /// Signatures of the newest generation.
    pub signatures: Vec<Signature>,
}

impl Generations {
    /// Returns the answer. A server may send its lines in pieces instead.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text: String = self.generations.iter().map(Generation::line).collect();
        text.extend(self.signatures.iter().map(signature_line));
        text + &end_line(self.generations.len())
    }

    /// Parses the answer.
    ///
    /// # Errors
    ///
    /// Any [`AnswerError`].
    pub fn parse(text: &str) -> Result<Self, AnswerError> {
        let lines = Lines::of(text)?;
        let mut parsed = Self::default();
        for line in &lines.lines {
            let malformed = || AnswerError::line(line);
            if let Some([b"sig", signature]) = words(line.as_bytes()) {
                let signature = std::str::from_utf8(signature).ok();
                let signature = signature.and_then(|text| Signature::parse(text).ok());
                parsed.signatures.push(signature.ok_or_else(malformed)?);
                continue;
            }
            // Signatures come last.
            let generation = Generation::parse_line(line).filter(|_| parsed.signatures.is_empty());
            parsed.generations.push(generation.ok_or_else(malformed)?);
        }
        lines.check_end(&[parsed.generations.len()])?;
        Ok(parsed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::damage::damage;

    const PATH: &str = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5-app";

    fn generation() -> Generation {
        Generation {
            number: 3,
            path: StorePath::from_base_name(PATH).unwrap(),
            created_at: 7,
            expires_at: None,
            token: None,
            host: None,
            message: None,
        }
    }

    #[test]
    fn lines_and_fingerprints() {
        let plain = generation();
        assert_eq!(plain.line(), format!("generation 3 {PATH} 7 - - - -\n"));
        let stated = Generation {
            expires_at: Some(9),
            token: Some("ci 1".to_owned()),
            host: Some("-".to_owned()),
            message: Some("a\n\u{e4}".to_owned()),
            ..plain
        };
        let expected = format!("generation 3 {PATH} 7 9 ci%201 %2D a%0A%C3%A4\n");
        assert_eq!(stated.line(), expected);
        assert_eq!(
            fingerprint(&StoreDir::default(), "mr/app 1;", &stated),
            format!("samovar-ref;1;/nix/store;mr%2Fapp%201%3B;3;{PATH};7")
        );
    }

    #[test]
    fn answers() {
        let text = format!(
            "generation 3 {PATH} 1700000000 - ci laptop fix%20all\n\
             generation 1 {PATH} 1600000000 1800000000 - - -\n\
             sig key-1:{}==\nend 2\n",
            "A".repeat(86)
        );
        let parsed = Generations::parse(&text).unwrap();
        assert_eq!(parsed.text(), text);
        assert_eq!(parsed.signatures.len(), 1);
        let [newest, oldest] = &parsed.generations[..] else {
            panic!("{parsed:?}");
        };
        assert_eq!(newest.message.as_deref(), Some("fix all"));
        assert_eq!((oldest.number, oldest.expires_at), (1, Some(1_800_000_000)));
        assert_eq!(oldest.token, None);
        for len in 0..text.len() {
            assert!(Generations::parse(&text[..len]).is_err(), "{len}");
        }
        for (from, to) in [
            ("end 2", "end 1"),
            ("- ci", "ci"),
            (PATH, "x"),
            ("end 2\n", "end 2\nx\n"),
            ("generation 3", "generation 03"),
            ("1700000000", "+1700000000"),
            ("fix%20all", "fix%2"),
        ] {
            assert!(
                Generations::parse(&text.replacen(from, to, 1)).is_err(),
                "{to}"
            );
        }
    }

    proptest! {
        #[test]
        fn answers_are_read_as_they_were_written(
            lines in vec(
                (
                    any::<(u64, i64, Option<i64>)>(),
                    vec(prop::option::of("(?s)(-|.{0,12})"), 3),
                ),
                0..5,
            ),
            is_signed: bool,
            damage in damage(),
        ) {
            let generations = lines.into_iter().map(|(numbers, texts)| Generation {
                number: numbers.0,
                created_at: numbers.1,
                expires_at: numbers.2,
                token: texts[0].clone(),
                host: texts[1].clone(),
                message: texts[2].clone(),
                ..generation()
            });
            let signature = format!("key-1:{}==", "A".repeat(86));
            let signatures = is_signed.then(|| Signature::parse(&signature).unwrap());
            let answer = Generations {
                generations: generations.collect(),
                signatures: signatures.into_iter().collect(),
            };
            let text = answer.text();
            prop_assert_eq!(Generations::parse(&text), Ok(answer));
            if let Ok(read) = Generations::parse(&damage.of_text(&text)) {
                let again = read.text();
                prop_assert_eq!(Generations::parse(&again), Ok(read));
            }
        }
    }
}
