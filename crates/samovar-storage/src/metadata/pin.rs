//! The types of pins.

use std::fmt;
use std::str::FromStr;

use samovar_nix::{Glob, HashPart, StorePath};
use samovar_protocol::names::{Lineage, PinName, PinText};

use super::CacheId;

/// A generation of a pin with its lineage. No two generations of a pin have the same version.
/// Displayed as `GENERATION-LINEAGE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// Number of the generation.
    pub generation: i64,
    /// Its lineage.
    pub lineage: Lineage,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.generation, self.lineage)
    }
}

/// A generation of a pin: a named path that the collector keeps, with its closure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// Name of the cache.
    pub cache: String,
    /// Name of the pin, unique within the cache.
    pub name: String,
    /// Number of the generation, from 1. Pinning another path under the same name starts a new one.
    pub generation: i64,
    /// The pinned path.
    pub path: StorePath,
    /// Time at which the generation was created, in seconds since 1970.
    pub created_at: i64,
    /// Time of expiry, in seconds since 1970. `None`: the pin never expires.
    pub expires_at: Option<i64>,
    /// Name of the token with which the generation was added. `None`: the operator added it, or it
    /// was added before schema 7.
    pub token: Option<String>,
    /// The client's host, as the client stated it.
    pub host: Option<String>,
    /// The client's message, such as the reason for the generation.
    pub message: Option<String>,
    /// The lineage of the generation.
    pub lineage: Lineage,
}

impl Pin {
    /// Returns the generation with its lineage.
    #[must_use]
    pub const fn version(&self) -> Version {
        Version {
            generation: self.generation,
            lineage: self.lineage,
        }
    }
}

/// A pin to add to a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPin {
    /// Name of the cache.
    pub cache: String,
    /// Name of the pin.
    pub name: PinName,
    /// Hash part of the path to pin.
    pub hash_part: HashPart,
    /// Number of generations to keep, including the new one. `None`: all are kept.
    pub keep: Option<u32>,
    /// Time of expiry, in seconds since 1970. `None`: the pin never expires.
    pub expires_at: Option<i64>,
    /// Row number of the client's token, which must be valid and permit the names. `None`: the
    /// operator adds the pin.
    pub token: Option<i64>,
    /// The client's host. A generation keeps the host with which it was added.
    pub host: Option<PinText>,
    /// The client's message. A generation keeps the message with which it was added.
    pub message: Option<PinText>,
    /// The generations on which the pin may be added.
    pub condition: Condition,
}

/// Condition of a change of a pin: the fields `If-Match` and `If-None-Match` of a request, whose
/// entity tags are generations. The default always holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Condition {
    /// The newest generation must be one of these.
    pub only: Option<Tags>,
    /// The newest generation must be none of these.
    pub except: Option<Tags>,
}

/// Generations in a [`Condition`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tags {
    /// `*`: every generation.
    Any,
    /// These generations.
    Listed(Vec<Tag>),
}

/// An entity tag in a [`Condition`]: `GENERATION` or `GENERATION-LINEAGE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// Number of the generation.
    pub generation: i64,
    /// `None`: that of any lineage.
    pub lineage: Option<Lineage>,
}

impl Tag {
    fn is_of(self, version: Version) -> bool {
        let is_same = |lineage| lineage == version.lineage;
        self.generation == version.generation && self.lineage.is_none_or(is_same)
    }
}

impl From<Version> for Tag {
    fn from(version: Version) -> Self {
        Self {
            generation: version.generation,
            lineage: Some(version.lineage),
        }
    }
}

impl FromStr for Tag {
    type Err = TagError;

    /// Parses a tag. Refuses other forms of the number, such as "+1" and "01".
    fn from_str(text: &str) -> Result<Self, TagError> {
        let (number, lineage) = match text.split_once('-') {
            Some((number, lineage)) => (number, Some(lineage)),
            None => (text, None),
        };
        let generation: i64 = number.parse().map_err(|_not_a_number| TagError)?;
        let lineage = lineage.map(str::parse).transpose();
        match generation.to_string() == number {
            true => Ok(Self {
                generation,
                lineage: lineage.map_err(|_not_a_lineage| TagError)?,
            }),
            false => Err(TagError),
        }
    }
}

/// Error: the text is not the entity tag of a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an entity tag is the number of a generation, and its lineage after a dash")]
pub struct TagError;

impl Tags {
    /// Returns whether the newest generation is one of these. `None`: the pin does not exist.
    #[must_use]
    pub fn contain(&self, newest: Option<Version>) -> bool {
        match self {
            Self::Any => newest.is_some(),
            Self::Listed(tags) => {
                newest.is_some_and(|newest| tags.iter().any(|tag| tag.is_of(newest)))
            }
        }
    }
}

impl Condition {
    /// Returns whether the condition holds. `newest`: the pin's newest generation, or `None` if the
    /// pin does not exist.
    #[must_use]
    pub fn holds(&self, newest: Option<Version>) -> bool {
        let is_only = self.only.as_ref().is_none_or(|tags| tags.contain(newest));
        let is_except = self
            .except
            .as_ref()
            .is_some_and(|tags| tags.contain(newest));
        is_only && !is_except
    }
}

/// Maximum number of pins of a cache up to which clients may add pins. Each generation counts.
pub const PIN_COUNT_MAX: u32 = 10_000;

/// The outcome of adding a pin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pinned {
    /// The path is pinned.
    Done(Pin),
    /// The cache does not have the path. Nothing was changed.
    NotFound,
    /// The token was revoked or has expired. Nothing was changed.
    TokenInvalid,
    /// The token permits only pins whose own name and path's name match this pattern. Nothing was
    /// changed.
    OtherName(Glob),
    /// A client cannot add another pin: the cache has [`PIN_COUNT_MAX`] of them. Nothing was
    /// changed.
    TooMany,
    /// The condition does not hold. Contains the newest generation, or `None` if the pin does not
    /// exist. Nothing was changed.
    Changed(Option<Version>),
}

/// The generations of a pin to remove for a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpin {
    /// The cache.
    pub cache: CacheId,
    /// Name of the pin.
    pub name: PinName,
    /// The generation to remove. `None`: all generations.
    pub generation: Option<i64>,
    /// Row number of the client's token, which must be valid and permit the name.
    pub token: i64,
    /// The newest generations with which generations may be removed.
    pub condition: Condition,
}

/// The outcome of removing generations of a pin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unpinned {
    /// The number of generations that were removed. 0: there were none, which is a success even if
    /// the condition does not hold, because the request is probably a repetition.
    Done(usize),
    /// The token was revoked or has expired. Nothing was changed.
    TokenInvalid,
    /// The token permits only pins whose name matches this pattern. Nothing was changed.
    OtherName(Glob),
    /// The condition does not hold. Contains the newest generation. Nothing was changed.
    Changed(Option<Version>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_tags() {
        let text = "00ff0102030405060708090a0b0c0d0e";
        let lineage: Lineage = text.parse().unwrap();
        let version = Version {
            generation: 7,
            lineage,
        };
        let tag: Tag = version.to_string().parse().unwrap();
        assert_eq!(tag, version.into());
        let any: Tag = "7".parse().unwrap();
        assert!(tag.is_of(version) && any.is_of(version));
        let other = Version {
            lineage: Lineage::from_bytes([1; 16]),
            ..version
        };
        assert!(!tag.is_of(other) && any.is_of(other));
        for wrong in ["", "+1", "01", "1-", "1-00", "-", &format!("{version}0")] {
            assert_eq!(wrong.parse::<Tag>(), Err(TagError), "{wrong}");
        }
    }

    #[test]
    fn conditions() {
        let version = |generation| Version {
            generation,
            lineage: Lineage::from_bytes([7; 16]),
        };
        let listed = |tags: &[i64]| {
            let tags = tags.iter().map(|tag| version(*tag).into());
            Some(Tags::Listed(tags.collect()))
        };
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
}
