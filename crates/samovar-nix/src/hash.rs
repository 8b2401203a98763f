//! Hashes in the text forms of Nix.
//!
//! # Encoding
//!
//! | form | text |
//! | --- | --- |
//! | base-16 | `sha256:` and 64 hexadecimal digits, lower case when written |
//! | base-32 | `sha256:` and 52 digits of [`nixbase32`](crate::nixbase32) |
//! | base-64 | `sha256:` and 44 characters, padding included |
//! | SRI | `sha256-` and 44 characters, padding included |
//!
//! # Grammar
//!
//! The algorithm is the text before the first `:`. Without a colon it is the text before the first
//! `-`, and the form is SRI. After a colon the length alone determines the form: for each algorithm
//! the three lengths differ.
//!
//! # Quirks
//!
//! Hexadecimal may be upper case; base-32 may not. Base-64 is decoded leniently, so an SRI hash may
//! lack its padding; after a `:` it may not, because the length would differ.
//!
//! # Source
//!
//! Nix 2.36, `src/libutil/hash.cc`; Nix 2.8.0, the same file, without BLAKE3.

use std::fmt;

use crate::{base64, nixbase32};

/// The hash functions of Nix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Algorithm {
    /// MD5, 16 bytes. Only in old fixed-output derivations.
    Md5,
    /// SHA-1, 20 bytes.
    Sha1,
    /// SHA-256, 32 bytes. All NAR hashes.
    Sha256,
    /// SHA-512, 64 bytes.
    Sha512,
    /// BLAKE3, 32 bytes. Experimental in Nix.
    Blake3,
}

impl Algorithm {
    /// Returns the name that precedes the hash.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Md5 => "md5",
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
            Self::Blake3 => "blake3",
        }
    }

    /// Returns the length of the digest, in bytes.
    #[must_use]
    pub const fn digest_len(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha256 | Self::Blake3 => 32,
            Self::Sha512 => DIGEST_LEN_MAX,
        }
    }

    /// Parses a name, which must be in lower case.
    ///
    /// # Errors
    ///
    /// [`HashError::Algorithm`].
    pub fn parse(name: &str) -> Result<Self, HashError> {
        [
            Self::Md5,
            Self::Sha1,
            Self::Sha256,
            Self::Sha512,
            Self::Blake3,
        ]
        .into_iter()
        .find(|algorithm| algorithm.name() == name)
        .ok_or(HashError::Algorithm)
    }
}

const DIGEST_LEN_MAX: usize = 64;

/// A digest and its algorithm. [`Display`](fmt::Display) writes the base-32 form.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hash {
    algorithm: Algorithm,
    /// The digest, from the first byte on. Invariant: all bytes after the algorithm's digest length
    /// are zero.
    bytes: [u8; DIGEST_LEN_MAX],
}

/// Error of parsing or creating a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HashError {
    /// The text has neither `:` nor `-`, so no algorithm.
    #[error("hash without an algorithm")]
    NoAlgorithm,
    /// The algorithm is unknown to Nix.
    #[error("unknown hash algorithm")]
    Algorithm,
    /// The length of the digest fits no form of this algorithm.
    #[error("digest of the wrong length")]
    Length,
    /// The digest has the length of base-16 but is not hexadecimal.
    #[error("not a hexadecimal digit")]
    Base16,
    /// The digest has the length of base-32 but is not base-32.
    #[error("digest is not base-32")]
    Base32(#[source] nixbase32::DecodeError),
    /// The digest has the length of base-64 or SRI form but is not base-64.
    #[error("digest is not base-64")]
    Base64(#[source] base64::Base64Error),
}

impl Hash {
    /// Creates a hash from a digest.
    ///
    /// # Errors
    ///
    /// [`HashError::Length`] if the digest does not have the algorithm's length.
    pub fn new(algorithm: Algorithm, digest: &[u8]) -> Result<Self, HashError> {
        if digest.len() != algorithm.digest_len() {
            return Err(HashError::Length);
        }
        let mut hash = Self::zeroed(algorithm);
        hash.digest_mut().copy_from_slice(digest);
        Ok(hash)
    }

    /// Creates a SHA-256 hash from its digest.
    #[must_use]
    pub fn sha256(digest: &[u8; 32]) -> Self {
        let mut hash = Self::zeroed(Algorithm::Sha256);
        hash.digest_mut().copy_from_slice(digest);
        hash
    }

    fn zeroed(algorithm: Algorithm) -> Self {
        Self {
            algorithm,
            bytes: [0; DIGEST_LEN_MAX],
        }
    }

    /// Parses any form with its algorithm.
    ///
    /// # Errors
    ///
    /// Any [`HashError`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use samovar_nix::Hash;
    /// let sri = Hash::parse("sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=")?;
    /// assert_eq!(
    ///     sri.to_string(),
    ///     "sha256:0mdqa9w1p6cmli6976v4wi0sw9r4p5prkj7lzfd1877wk11c9c73",
    /// );
    /// # Ok::<(), samovar_nix::HashError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, HashError> {
        if let Some((name, digest)) = text.split_once(':') {
            return Self::parse_digest(Algorithm::parse(name)?, digest);
        }
        let (name, digest) = text.split_once('-').ok_or(HashError::NoAlgorithm)?;
        let mut hash = Self::zeroed(Algorithm::parse(name)?);
        base64::decode_into(digest.as_bytes(), hash.digest_mut()).map_err(HashError::Base64)?;
        Ok(hash)
    }

    /// Parses a digest of a known algorithm: base-16, base-32 or base-64, by its length.
    ///
    /// # Errors
    ///
    /// Any [`HashError`].
    pub fn parse_digest(algorithm: Algorithm, digest: &str) -> Result<Self, HashError> {
        let (digest_len, text_len) = (algorithm.digest_len(), digest.len());
        let mut hash = Self::zeroed(algorithm);
        let bytes = hash.digest_mut();
        if text_len == digest_len.saturating_mul(2) {
            decode_base16(digest.as_bytes(), bytes)?;
        } else if text_len == nixbase32::encoded_len(digest_len) {
            nixbase32::decode_into(digest.as_bytes(), bytes).map_err(HashError::Base32)?;
        } else if text_len == base64::encoded_len(digest_len) {
            base64::decode_into(digest.as_bytes(), bytes).map_err(HashError::Base64)?;
        } else {
            return Err(HashError::Length);
        }
        Ok(hash)
    }

    /// Returns the algorithm of the hash.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the digest, whose length depends on the algorithm.
    #[must_use]
    pub fn digest(&self) -> &[u8] {
        self.bytes
            .get(..self.algorithm.digest_len())
            .unwrap_or(&self.bytes)
    }

    fn digest_mut(&mut self) -> &mut [u8] {
        self.bytes.split_at_mut(self.algorithm.digest_len()).0
    }

    /// Returns the digest in lower-case hexadecimal, without the algorithm.
    #[must_use]
    pub fn base16(&self) -> String {
        let digits = self
            .digest()
            .iter()
            .flat_map(|&byte| [byte >> 4, byte & 0xf]);
        digits
            .filter_map(|digit| char::from_digit(digit.into(), 16))
            .collect()
    }

    /// Returns the digest in Nix's base-32, without the algorithm.
    #[must_use]
    pub fn nixbase32(&self) -> String {
        nixbase32::encode(self.digest())
    }

    /// Returns the digest in base-64 with padding, without the algorithm.
    #[must_use]
    pub fn base64(&self) -> String {
        base64::encode(self.digest())
    }

    /// Returns the SRI form, such as `sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=`.
    #[must_use]
    pub fn sri(&self) -> String {
        format!("{}-{}", self.algorithm.name(), self.base64())
    }
}

fn decode_base16(digits: &[u8], bytes: &mut [u8]) -> Result<(), HashError> {
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        for &digit in pair {
            let value = char::from(digit).to_digit(16).ok_or(HashError::Base16)?;
            *byte = (*byte << 4) | (value & 0xf) as u8;
        }
    }
    Ok(())
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.name(), self.nixbase32())
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hash({self})")
    }
}

#[cfg(test)]
mod tests;
