//! [`Version`]: a generation in an entity tag. [`Tags`]: a list of entity tags. [`Condition`]: the
//! fields `If-Match` and `If-None-Match` of a request (RFC 9110, 13.1).
//!
//! # Grammar
//!
//! ```text
//! version = number [ "-" lineage ]
//! tags    = "*" / 1#( [ "W/" ] DQUOTE version DQUOTE )
//! ```
//!
//! `#` is a list of RFC 9110, 5.6.1, which may have empty elements. An entity tag of another form
//! stands for no generation.

use crate::line::number;
use crate::names::Lineage;

/// A generation of a pin with its lineage. No two generations of a pin have the same version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// Number of the generation.
    pub number: u64,
    /// Its lineage. `None`: unknown, and in a list of a request any.
    pub lineage: Option<Lineage>,
}

impl Version {
    /// Returns the text in an entity tag: `NUMBER-LINEAGE`, or only the number.
    #[must_use]
    pub fn text(self) -> String {
        match self.lineage {
            Some(lineage) => format!("{}-{lineage}", self.number),
            None => self.number.to_string(),
        }
    }

    /// Parses the text in an entity tag. Returns `None` if it is no generation; numbers have one
    /// form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (digits, lineage) = match text.split_once('-') {
            Some((digits, lineage)) => (digits, Some(lineage.parse().ok()?)),
            None => (text, None),
        };
        Some(Self {
            number: number(digits.as_bytes())?,
            lineage,
        })
    }

    /// Returns the entity tag.
    #[must_use]
    pub fn tag(self) -> String {
        format!("\"{}\"", self.text())
    }

    /// Returns whether this version in a list of a request belongs to a generation.
    #[must_use]
    pub fn is_of(self, generation: Self) -> bool {
        self.number == generation.number
            && (self.lineage.is_none() || self.lineage == generation.lineage)
    }
}

/// A list of entity tags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tags {
    /// `*`: every generation.
    Any,
    /// These generations.
    Listed(Vec<Version>),
}

/// The treatment of weak entity tags, into which a proxy may have changed strong ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weak {
    /// A weak tag matches no generation, as RFC 9110 requires for `If-Match`.
    MatchNothing,
    /// A weak tag matches like the strong one.
    AreStrong,
}

impl Tags {
    /// Returns the value of a header field. Clients and servers send no list without a tag.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Any => "*".to_owned(),
            Self::Listed(versions) => {
                let tags: Vec<String> = versions.iter().map(|version| version.tag()).collect();
                tags.join(", ")
            }
        }
    }

    /// Parses the value of a header field. Tags that are no generation match nothing, and are
    /// omitted. Returns `None` if the list is malformed or empty.
    #[must_use]
    pub fn parse(text: &[u8], weak: Weak) -> Option<Self> {
        if text.trim_ascii() == b"*" {
            return Some(Self::Any);
        }
        let mut versions = Vec::new();
        let mut is_empty = true;
        let mut rest = text.trim_ascii_start();
        while let Some((first, others)) = rest.split_first() {
            if *first == b',' {
                rest = others.trim_ascii_start();
                continue;
            }
            let strong = rest.strip_prefix(b"W/");
            let quoted = strong.unwrap_or(rest).strip_prefix(b"\"")?;
            let mut parts = quoted.splitn(2, |byte| *byte == b'"');
            let opaque = parts.next()?;
            rest = parts.next()?.trim_ascii_start();
            let is_ended = rest.first().is_none_or(|next| *next == b',');
            if !is_ended || opaque.iter().any(|byte| *byte <= b' ' || *byte == 0x7f) {
                return None;
            }
            is_empty = false;
            let is_omitted = strong.is_some() && weak == Weak::MatchNothing;
            let opaque = std::str::from_utf8(opaque).ok().filter(|_| !is_omitted);
            versions.extend(opaque.and_then(Version::parse));
        }
        (!is_empty).then_some(Self::Listed(versions))
    }

    /// Returns whether the newest generation is one of these. `None`: the pin does not exist.
    #[must_use]
    pub fn contain(&self, newest: Option<Version>) -> bool {
        match self {
            Self::Any => newest.is_some(),
            Self::Listed(versions) => {
                newest.is_some_and(|newest| versions.iter().any(|one| one.is_of(newest)))
            }
        }
    }
}

/// Condition of a change of a pin: the fields `If-Match` and `If-None-Match` of a request. The
/// default always holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Condition {
    /// The newest generation must be one of these.
    pub only: Option<Tags>,
    /// The newest generation must be none of these.
    pub except: Option<Tags>,
}

impl Condition {
    /// Returns whether the condition holds. `newest`: the pin's newest generation, or `None` if the
    /// pin does not exist.
    #[must_use]
    pub fn holds(&self, newest: Option<Version>) -> bool {
        let is_in = |tags: &Tags| tags.contain(newest);
        self.only.as_ref().is_none_or(is_in) && !self.except.as_ref().is_some_and(is_in)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn version(text: &str) -> Version {
        Version::parse(text).unwrap()
    }

    #[test]
    fn versions() {
        let text = "7-00ff0102030405060708090a0b0c0d0e";
        let exact = version(text);
        assert_eq!((exact.number, exact.text().as_str()), (7, text));
        assert_eq!(exact.tag(), format!("\"{text}\""));
        let any = version("7");
        assert_eq!((any.lineage, any.text().as_str()), (None, "7"));
        assert!(exact.is_of(exact) && any.is_of(exact));
        let other = Version {
            lineage: Some(Lineage::from_bytes([1; 16])),
            ..exact
        };
        assert!(!exact.is_of(other) && any.is_of(other));
        for wrong in ["", "+1", "01", "1-", "1-00", "-", &format!("{text}0")] {
            assert_eq!(Version::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn lists_of_tags() {
        let strong = |text: &str| Tags::parse(text.as_bytes(), Weak::MatchNothing);
        let listed = |texts: &[&str]| {
            let versions = texts.iter().map(|text| version(text));
            Some(Tags::Listed(versions.collect()))
        };
        let exact = format!("1-{}", "0a".repeat(16));
        assert_eq!(strong(&format!("\"{exact}\"")), listed(&[&exact]));
        assert_eq!(strong("*"), Some(Tags::Any));
        assert_eq!(strong("\"1\""), listed(&["1"]));
        for list in ["\"1\" , \"23\"", ",\"1\",, \t,\"a,b\",\"23\" ,"] {
            assert_eq!(strong(list), listed(&["1", "23"]), "{list}");
        }
        assert_eq!(Tags::parse(b"\"\xff\"", Weak::AreStrong), listed(&[]));
        for other in [
            "\"\"",
            "\"a\"",
            "\"+1\"",
            "\"01\"",
            "\"18446744073709551616\"",
            "W/\"1\"",
        ] {
            assert_eq!(strong(other), listed(&[]), "{other}");
        }
        assert_eq!(Tags::parse(b"W/\"1\"", Weak::AreStrong), listed(&["1"]));
        for wrong in [
            "",
            "1",
            "\"1",
            "1\"",
            "\"",
            "\"1\"\"2\"",
            "\"1\" 2",
            "\"a b\"",
            ",",
            "*, \"1\"",
            "\"1\", *",
            "w/\"1\"",
        ] {
            assert_eq!(strong(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn conditions() {
        let version = |number| Version {
            number,
            lineage: Some(Lineage::from_bytes([7; 16])),
        };
        let listed =
            |numbers: &[u64]| Some(Tags::Listed(numbers.iter().copied().map(version).collect()));
        let holds = |only: &Option<Tags>, except: &Option<Tags>, newest| {
            let (only, except) = (only.clone(), except.clone());
            Condition { only, except }.holds(newest)
        };
        let (any, none) = (Some(Tags::Any), None);
        for newest in [None, Some(version(1)), Some(version(2))] {
            assert!(holds(&none, &none, newest));
            assert_eq!(holds(&any, &none, newest), newest.is_some());
            assert_eq!(holds(&none, &any, newest), newest.is_none());
            assert_eq!(
                holds(&listed(&[2]), &none, newest),
                newest == Some(version(2))
            );
            assert_eq!(
                holds(&none, &listed(&[2]), newest),
                newest != Some(version(2))
            );
            assert_eq!(holds(&listed(&[1, 2]), &none, newest), newest.is_some());
            assert!(!holds(&listed(&[]), &none, newest));
            assert!(!holds(&listed(&[2]), &any, newest));
        }
    }

    fn versions_of(found: Vec<(u64, Option<[u8; 16]>)>) -> Vec<Version> {
        let version = |(number, lineage): (u64, Option<_>)| Version {
            number,
            lineage: lineage.map(Lineage::from_bytes),
        };
        found.into_iter().map(version).collect()
    }

    proptest! {
        #[test]
        fn lists_are_read_as_they_were_written(
            found in vec(any::<(u64, Option<[u8; 16]>)>(), 1..6),
        ) {
            let tags = Tags::Listed(versions_of(found));
            for weak in [Weak::MatchNothing, Weak::AreStrong] {
                prop_assert_eq!(Tags::parse(tags.text().as_bytes(), weak), Some(tags.clone()));
            }
        }

        #[test]
        fn weak_tags_and_spaces_are_read(
            found in vec((any::<u64>(), any::<bool>()), 1..6),
            space in "[ \t]{0,2}",
        ) {
            let tag = |(number, is_weak): &(u64, bool)| {
                format!("{}\"{number}\"", if *is_weak { "W/" } else { "" })
            };
            let tags: Vec<String> = found.iter().map(tag).collect();
            let text = tags.join(&format!("{space},{space}"));
            let expected = |with_weak: bool| {
                let kept = found.iter().filter(|(_, is_weak)| with_weak || !is_weak);
                let numbers = kept.map(|(number, _)| (*number, None));
                Some(Tags::Listed(versions_of(numbers.collect())))
            };
            prop_assert_eq!(Tags::parse(text.as_bytes(), Weak::AreStrong), expected(true));
            prop_assert_eq!(Tags::parse(text.as_bytes(), Weak::MatchNothing), expected(false));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "[*W/\"0-9, -]{0,20}") {
            let strong = Tags::parse(text.as_bytes(), Weak::MatchNothing);
            let weak = Tags::parse(text.as_bytes(), Weak::AreStrong);
            prop_assert_eq!(weak.is_some(), strong.is_some());
        }

        #[test]
        fn a_version_has_one_text(text in "[0-9a-f+-]{0,40}") {
            if let Some(version) = Version::parse(&text) {
                prop_assert_eq!(version.text(), text);
            }
        }
    }
}
