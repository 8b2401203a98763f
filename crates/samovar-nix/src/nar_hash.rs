//! The hash of a NAR.

use std::fmt;

use crate::{Algorithm, Hash, HashError, nixbase32};

/// The SHA-256 hash of a store path's NAR; Nix allows no other algorithm for it.
///
/// [`Display`](fmt::Display) writes `sha256:` and the base-32 text, as narinfo and fingerprint do.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NarHash([u8; 32]);

/// Error of parsing or converting a NAR hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NarHashError {
    /// The text is not a hash.
    #[error("not a hash")]
    Hash(#[from] HashError),
    /// The text is a hash, but not SHA-256.
    #[error("a NAR hash is SHA-256")]
    NotSha256,
}

impl NarHash {
    /// Parses any text form with its algorithm: base-16, base-32, base-64 or SRI.
    ///
    /// # Errors
    ///
    /// Any [`NarHashError`].
    pub fn parse(text: &str) -> Result<Self, NarHashError> {
        Self::from_hash(&Hash::parse(text)?)
    }

    /// Parses 52 digits of base-32 without the algorithm, as in the URL of a NAR.
    ///
    /// # Errors
    ///
    /// Any [`nixbase32::DecodeError`].
    pub fn parse_nixbase32(text: &[u8]) -> Result<Self, nixbase32::DecodeError> {
        nixbase32::decode_array(text).map(Self)
    }

    /// Converts a [`Hash`](struct@Hash).
    ///
    /// # Errors
    ///
    /// [`NarHashError::NotSha256`].
    pub fn from_hash(hash: &Hash) -> Result<Self, NarHashError> {
        match (hash.algorithm(), hash.digest().try_into()) {
            (Algorithm::Sha256, Ok(bytes)) => Ok(Self(bytes)),
            _ => Err(NarHashError::NotSha256),
        }
    }

    /// Creates a NAR hash from its digest.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the digest.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the base-32 text without `sha256:`, without allocation.
    #[must_use]
    pub fn nixbase32(&self) -> [u8; 52] {
        nixbase32::encode_array(&self.0)
    }

    /// Converts to a [`Hash`](struct@Hash), which has the other text forms.
    #[must_use]
    pub fn to_hash(&self) -> Hash {
        Hash::sha256(&self.0)
    }
}

impl fmt::Display for NarHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        f.write_str(std::str::from_utf8(&self.nixbase32()).unwrap_or_default())
    }
}

impl fmt::Debug for NarHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NarHash({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE32: &str = "1fb14p4f4kphcxxd4ld35s8apmpf6zi358y6b98pn4dnsylrfy3s";
    const BASE16: &str = "7a7897a9d7b6117b515ac6a332e237eed6ab902ea351d27a67f04ee2c82561b9";

    #[test]
    fn every_form_is_the_same_hash() {
        let nar_hash = NarHash::parse(&format!("sha256:{BASE16}")).unwrap();
        assert_eq!(nar_hash.to_string(), format!("sha256:{BASE32}"));
        assert_eq!(nar_hash.nixbase32(), BASE32.as_bytes());
        assert_eq!(NarHash::parse(&nar_hash.to_string()), Ok(nar_hash));
        assert_eq!(NarHash::parse(&nar_hash.to_hash().sri()), Ok(nar_hash));
        assert_eq!(NarHash::parse_nixbase32(BASE32.as_bytes()), Ok(nar_hash));
        assert_eq!(NarHash::from_bytes(*nar_hash.as_bytes()), nar_hash);
        assert_eq!(nar_hash.to_hash().base16(), BASE16);
    }

    #[test]
    fn other_algorithms_are_refused() {
        let sha1 = "sha1:1234567812345678123456781234567812345678";
        assert_eq!(NarHash::parse(sha1), Err(NarHashError::NotSha256));
        // A BLAKE3 hash is as long as a SHA-256 hash.
        assert_eq!(
            NarHash::parse(&format!("blake3:{BASE16}")),
            Err(NarHashError::NotSha256)
        );
        assert_eq!(
            NarHash::parse(BASE16),
            Err(NarHashError::Hash(HashError::NoAlgorithm))
        );
    }
}
