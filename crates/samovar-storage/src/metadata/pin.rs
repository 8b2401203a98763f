//! Types for pins.

use std::fmt;
use std::str::FromStr;

use samovar_nix::{Glob, HashPart, StorePath};

/// Maximum length of the name of a pin, in bytes.
pub const PIN_NAME_LEN_MAX: usize = 255;

/// The name of a pin: 1 to 255 bytes without control characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinName(String);

impl PinName {
    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Error: the text is not the name of a pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the name of a pin must have 1 to {PIN_NAME_LEN_MAX} bytes and no control character")]
pub struct PinNameError;

impl FromStr for PinName {
    type Err = PinNameError;

    fn from_str(text: &str) -> Result<Self, PinNameError> {
        match (1..=PIN_NAME_LEN_MAX).contains(&text.len()) && !text.contains(char::is_control) {
            true => Ok(Self(text.to_owned())),
            false => Err(PinNameError),
        }
    }
}

impl fmt::Display for PinName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A pin: a named path that the collector keeps, with its closure.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_pins() {
        let longest = "a".repeat(PIN_NAME_LEN_MAX);
        for good in ["a", "app main/1", "\u{e4}", &longest] {
            assert_eq!(good.parse::<PinName>().unwrap().as_str(), good);
        }
        for wrong in ["", "a\n", "\u{7f}", &format!("{longest}a")] {
            assert_eq!(wrong.parse::<PinName>(), Err(PinNameError), "{wrong:?}");
        }
    }
}
