//! Store paths.
//!
//! # Grammar
//!
//! ```text
//! store-path = store-dir "/" base-name
//! base-name  = hash-part "-" name
//! hash-part  = 32 characters of base-32
//! name       = 1 to 211 of [0-9a-zA-Z] "+" "-" "." "_" "?" "="
//! ```
//!
//! # Quirks
//!
//! The rule for dots at the start of a name depends on the version of Nix: 2.3 and 2.16.3 reject
//! every leading dot; 2.8 rejects none; 2.18.9 and later reject `.`, `..` and names that start with
//! `.-` or `..-`. A database may hold names of any version, so all dots are accepted here.
//!
//! # Source
//!
//! Nix 2.36, `src/libstore/path.cc`; Nix 2.8.0 and 2.3.18 for the older rules.

use std::cmp::Ordering;
use std::fmt;

use crate::hash_part::TEXT_LEN as HASH_PART_LEN;
use crate::{HashPart, HashPartError, StoreDir};

/// Maximum length of a name, in bytes: a file name with it can still have the suffix `.lock` or
/// `.check`.
pub const NAME_LEN_MAX: usize = 211;

/// A store path without its directory, such as `vdszx2k8vwaxcpdpwhbwsgib5c6sf53k-app-2.0`.
///
/// Paths are ordered by the bytes of the base name, as Nix orders references.
///
/// # Examples
///
/// ```
/// # use samovar_nix::{StoreDir, StorePath};
/// let dir = StoreDir::default();
/// let path = StorePath::parse(&dir, "/nix/store/vdszx2k8vwaxcpdpwhbwsgib5c6sf53k-app-2.0")?;
/// assert_eq!(path.name(), "app-2.0");
/// assert_eq!(path.hash_part().to_string(), "vdszx2k8vwaxcpdpwhbwsgib5c6sf53k");
/// # Ok::<(), samovar_nix::StorePathError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct StorePath {
    /// The base name. Invariant: `<hash_part>-<name>`, ASCII only.
    base_name: Box<str>,
    hash_part: HashPart,
}

/// Error of parsing a store path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StorePathError {
    /// The path is not directly in the store directory.
    #[error("not directly in the store directory")]
    NotInStore,
    /// The base name is shorter than 33 bytes, or has no dash after the hash part.
    #[error("no hash part and dash at the start")]
    NoHashPart,
    /// The hash part is not base-32.
    #[error("bad hash part")]
    HashPart(#[source] HashPartError),
    /// The name is empty.
    #[error("empty name")]
    NameEmpty,
    /// The name is longer than [`NAME_LEN_MAX`].
    #[error("name longer than {NAME_LEN_MAX} bytes")]
    NameTooLong,
    /// The name holds a character that is not allowed.
    #[error("character that is not allowed in a name")]
    NameCharacter,
}

impl StorePath {
    /// Parses `<hash part>-<name>`. Accepts any name that a database may hold.
    ///
    /// # Errors
    ///
    /// Any [`StorePathError`] but [`NotInStore`](StorePathError::NotInStore).
    pub fn from_base_name(base_name: &str) -> Result<Self, StorePathError> {
        let (hash_part, rest) = base_name
            .as_bytes()
            .split_at_checked(HASH_PART_LEN)
            .ok_or(StorePathError::NoHashPart)?;
        let name = rest.strip_prefix(b"-").ok_or(StorePathError::NoHashPart)?;
        let hash_part = HashPart::parse(hash_part).map_err(StorePathError::HashPart)?;
        check_name(name)?;
        Ok(Self {
            base_name: base_name.into(),
            hash_part,
        })
    }

    /// Parses a full path directly in `dir`.
    ///
    /// # Errors
    ///
    /// As [`from_base_name`](Self::from_base_name), and [`StorePathError::NotInStore`].
    pub fn parse(dir: &StoreDir, full: &str) -> Result<Self, StorePathError> {
        let base_name = full
            .strip_prefix(dir.as_str())
            .and_then(|rest| rest.strip_prefix('/'));
        match base_name {
            Some(base_name) if !base_name.contains('/') => Self::from_base_name(base_name),
            _ => Err(StorePathError::NotInStore),
        }
    }

    /// Returns the hash part, which identifies the path in a cache's URLs.
    #[must_use]
    pub const fn hash_part(&self) -> HashPart {
        self.hash_part
    }

    /// Returns the part after the hash part and its dash.
    #[must_use]
    pub fn name(&self) -> &str {
        self.base_name.split_once('-').map_or("", |(_, name)| name)
    }

    /// Returns the part after the store directory and its slash.
    #[must_use]
    pub const fn base_name(&self) -> &str {
        &self.base_name
    }

    /// Returns whether this is a derivation: its name ends in `.drv`.
    #[must_use]
    pub fn is_derivation(&self) -> bool {
        self.base_name.ends_with(".drv")
    }

    /// Returns the full path as a new string.
    #[must_use]
    pub fn full(&self, dir: &StoreDir) -> String {
        [dir.as_str(), "/", &self.base_name].concat()
    }

    /// Displays the full path, without allocation.
    #[must_use]
    pub fn display<'a>(&'a self, dir: &'a StoreDir) -> impl fmt::Display + 'a {
        fmt::from_fn(move |f| write!(f, "{}/{}", dir.as_str(), self.base_name))
    }
}

fn check_name(name: &[u8]) -> Result<(), StorePathError> {
    if name.is_empty() {
        return Err(StorePathError::NameEmpty);
    }
    if name.len() > NAME_LEN_MAX {
        return Err(StorePathError::NameTooLong);
    }
    if !name.iter().copied().all(is_name_character) {
        return Err(StorePathError::NameCharacter);
    }
    Ok(())
}

const fn is_name_character(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.' | b'_' | b'?' | b'=')
}

impl Ord for StorePath {
    fn cmp(&self, other: &Self) -> Ordering {
        self.base_name.cmp(&other.base_name)
    }
}

impl PartialOrd for StorePath {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Writes the base name.
impl fmt::Display for StorePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.base_name)
    }
}

impl fmt::Debug for StorePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StorePath({self})")
    }
}

#[cfg(test)]
mod tests;
