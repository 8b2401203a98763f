//! `GET pin/`: the newest generation of each pin.
//!
//! # Grammar
//!
//! ```text
//! answer = *("pin " name " " generation " " base-name " " created LF) "end " count LF
//! ```
//!
//! `name` is percent-encoded.

use samovar_nix::StorePath;

use super::time;
use crate::answer::{AnswerError, Lines};
use crate::line::{end_line, number, words};
use crate::percent::{decode, encode};

/// The newest generation of a pin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Newest {
    /// Name of the pin.
    pub name: String,
    /// Number of the generation, from 1.
    pub number: u64,
    /// The pinned path.
    pub path: StorePath,
    /// Time at which the generation was added, in seconds since 1970.
    pub created_at: i64,
}

impl Newest {
    /// Returns the answer that lists these pins.
    #[must_use]
    pub fn text(list: &[Self]) -> String {
        let mut text: String = list.iter().map(Self::line).collect();
        text.push_str(&end_line(list.len()));
        text
    }

    fn line(&self) -> String {
        let (name, path) = (encode(&self.name), self.path.base_name());
        format!("pin {name} {} {path} {}\n", self.number, self.created_at)
    }

    /// Parses a list of pins.
    ///
    /// # Errors
    ///
    /// Any [`AnswerError`].
    pub fn parse(text: &str) -> Result<Vec<Self>, AnswerError> {
        let lines = Lines::counted(text)?;
        let pin = |line: &&str| Self::parse_line(line).ok_or_else(|| AnswerError::line(line));
        lines.iter().map(pin).collect()
    }

    fn parse_line(line: &str) -> Option<Self> {
        let [b"pin", name, generation, path, created_at] = words(line.as_bytes())? else {
            return None;
        };
        let text = |word| std::str::from_utf8(word).ok();
        Some(Self {
            name: decode(text(name)?)?,
            number: number(generation)?,
            path: StorePath::from_base_name(text(path)?).ok()?,
            created_at: time(text(created_at)?)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::damage::damage;

    const PATH: &str = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5-app";

    #[test]
    fn lists() {
        let text = format!("pin mr%2Fapp 3 {PATH} 1700000000\nend 1\n");
        let list = Newest::parse(&text).unwrap();
        assert_eq!((&*list[0].name, list[0].number), ("mr/app", 3));
        assert_eq!(Newest::text(&list), text);
        assert_eq!(Newest::parse("end 0\n"), Ok(Vec::new()));
        for len in 0..text.len() {
            assert!(Newest::parse(&text[..len]).is_err(), "{len}");
        }
        assert!(Newest::parse("end 1\n").is_err());
    }

    proptest! {
        #[test]
        fn lists_are_read_as_they_were_written(
            list in vec(("(?s).{1,12}", any::<(u64, i64)>()), 0..5),
            damage in damage(),
        ) {
            let list = list.into_iter().map(|(name, (number, created_at))| Newest {
                name,
                number,
                path: StorePath::from_base_name(PATH).unwrap(),
                created_at,
            });
            let list: Vec<_> = list.collect();
            let text = Newest::text(&list);
            prop_assert_eq!(Newest::parse(&text), Ok(list));
            if let Ok(read) = Newest::parse(&damage.of_text(&text)) {
                let again = Newest::text(&read);
                prop_assert_eq!(Newest::parse(&again), Ok(read));
            }
        }
    }
}
