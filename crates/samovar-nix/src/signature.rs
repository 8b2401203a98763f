//! Signatures of paths: the `Sig` field and the database's `sigs` column.
//!
//! # Grammar
//!
//! `<key name>:<base64>`: the name has at least one character and neither colon, white space nor
//! control character; the 64 bytes of an Ed25519 signature are 86 characters and `==`.
//!
//! # Quirks
//!
//! Nix before 2.34 accepted any text as a signature. Later versions reject a narinfo with a
//! malformed `Sig` line, so a server must drop signatures that do not parse. Parsing is strict for
//! that reason: every client accepts a signature that parses here, and it is written back
//! unchanged.
//!
//! # Source
//!
//! Nix 2.36, `src/libutil/signature/local-keys.cc`; RFC 8032 for the bytes.

use std::fmt;

use crate::base64::{self, Base64Error};

/// A detached Ed25519 signature and the name of the key that made it.
///
/// Signatures are ordered by key name, then by bytes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Signature {
    /// Name of the key. Invariant: it passes [`is_key_name`].
    key_name: Box<str>,
    bytes: [u8; BYTES_LEN],
}

const BYTES_LEN: usize = 64;

/// Error of parsing or creating a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// The text has no colon.
    #[error("signature without a key name")]
    NoColon,
    /// The key name is empty, or holds a colon, white space or a control character.
    #[error("the name of the key is empty, or has a blank or a control character")]
    KeyName,
    /// The text after the colon is not the canonical base-64 of 64 bytes.
    #[error("bad base-64")]
    Base64(#[source] Base64Error),
}

impl Signature {
    /// Creates a signature from a key name and its bytes.
    ///
    /// # Errors
    ///
    /// [`SignatureError::KeyName`].
    pub fn new(key_name: &str, bytes: [u8; 64]) -> Result<Self, SignatureError> {
        if !is_key_name(key_name) {
            return Err(SignatureError::KeyName);
        }
        Ok(Self {
            key_name: key_name.into(),
            bytes,
        })
    }

    /// Creates a signature of a key whose name has already been checked.
    pub(crate) fn from_key(key_name: &str, bytes: [u8; BYTES_LEN]) -> Self {
        Self {
            key_name: key_name.into(),
            bytes,
        }
    }

    /// Parses the text of a `Sig` field strictly.
    ///
    /// # Errors
    ///
    /// Any [`SignatureError`].
    pub fn parse(text: &str) -> Result<Self, SignatureError> {
        let (key_name, encoded) = text.split_once(':').ok_or(SignatureError::NoColon)?;
        let mut bytes = [0; BYTES_LEN];
        base64::decode_into(encoded.as_bytes(), &mut bytes).map_err(SignatureError::Base64)?;
        let signature = Self::new(key_name, bytes)?;
        // The decoder is lenient, but encoding the result again shows any deviation.
        if signature.base64() != encoded.as_bytes() {
            return Err(SignatureError::Base64(Base64Error::Length));
        }
        Ok(signature)
    }

    /// Returns the key name, as in clients' lists of trusted keys.
    #[must_use]
    pub fn key_name(&self) -> &str {
        &self.key_name
    }

    /// Returns the 64 bytes of the signature.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 64] {
        &self.bytes
    }

    /// Returns the base-64 text after the colon, without allocation.
    #[must_use]
    pub fn base64(&self) -> [u8; 88] {
        let mut text = [0; base64::encoded_len(BYTES_LEN)];
        base64::encode_into(&self.bytes, &mut text);
        text
    }
}

/// Returns whether a key may have this name: see the grammar above.
pub(crate) fn is_key_name(name: &str) -> bool {
    let bad = |c: char| c == ':' || c.is_whitespace() || c.is_control();
    !name.is_empty() && !name.contains(bad)
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.base64();
        write!(
            f,
            "{}:{}",
            self.key_name,
            std::str::from_utf8(&text).unwrap_or_default()
        )
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signature({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE64: &str =
        "PNCZbIfuWmQC5aFLl8d8/F7cx2V+Sx/H55eGw5+5mFTdhm7slXXNIyCdSraij3gcnRsqhv+j+nrKClEcSyBdAA==";

    #[track_caller]
    fn check_refused(text: &str, error: SignatureError) {
        assert_eq!(Signature::parse(text), Err(error));
    }

    #[test]
    fn read_and_written_back() {
        for name in ["test-1", "cache.example.org-1", "a", "é"] {
            let text = format!("{name}:{BASE64}");
            let signature = Signature::parse(&text).unwrap();
            assert_eq!(signature.key_name(), name);
            assert_eq!(signature.to_string(), text);
            assert_eq!(Signature::new(name, *signature.as_bytes()), Ok(signature));
        }
    }

    #[test]
    fn refusals() {
        let character = SignatureError::Base64(Base64Error::Character);
        let length = SignatureError::Base64(Base64Error::Length);
        check_refused("", SignatureError::NoColon);
        check_refused(BASE64, SignatureError::NoColon);
        check_refused(&format!(":{BASE64}"), SignatureError::KeyName);
        for name in ["a b", "a\t", "\n", "a\r", "a\0", "a\u{a0}b"] {
            check_refused(&format!("{name}:{BASE64}"), SignatureError::KeyName);
        }
        check_refused(&format!("a:b:{BASE64}"), character);
        check_refused(&format!("a: {BASE64}"), character);
        check_refused("a:", length);
        check_refused("a:AAAA", length);
    }

    #[test]
    fn signatures_that_only_some_clients_accept_are_refused() {
        let length = SignatureError::Base64(Base64Error::Length);
        check_refused(&format!("a:{}", BASE64.trim_end_matches('=')), length);
        check_refused(&format!("a:{}", BASE64.strip_suffix('=').unwrap()), length);
        check_refused(&format!("a:{BASE64}\n"), length);
        check_refused(&format!("a:{BASE64}="), length);
        check_refused(&format!("a:\n{BASE64}"), length);
        // The last digit has four unused bits.
        check_refused(&format!("a:{}", BASE64.replace("A==", "B==")), length);
    }
}
