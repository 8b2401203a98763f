//! Secret and public keys, and signing with them.
//!
//! # Encoding
//!
//! `<key name>:<base64>`, in a file with or without a line end. A public key has 32 bytes. A secret
//! key has 64: the Ed25519 seed, then the public key, as in libsodium.
//!
//! # Limits and quirks
//!
//! * White space around the text is ignored: `nix-store --generate-binary-cache-key` writes no line
//!   end, but files in the wild have one, and nix-serve removes it.
//! * Nix only requires a non-empty name. Here it must also be free of white space and control
//!   characters: clients split their list of trusted keys at white space, so a name with a space
//!   cannot be trusted, and one with a line feed would break the narinfo.
//! * Base-64 is decoded leniently, as by Nix.
//! * Nix does not check that the halves of a secret key match. It signs with the seed and mixes in
//!   the stored public half; if that is wrong, its signatures verify with neither key. Here the
//!   public key is always computed from the seed; [`SecretKey::halves_agree`] reports a mismatch.
//!
//! # Source
//!
//! Nix 2.36, `src/libutil/signature/local-keys.cc`; libsodium's `crypto_sign`; RFC 8032.

use std::fmt;

use ed25519_dalek::{Signer as _, SigningKey, VerifyingKey};
use zeroize::Zeroizing;

use crate::base64::{self, Base64Error};
use crate::signature::{Signature, is_key_name};

const SECRET_LEN: usize = 64;
const PUBLIC_LEN: usize = 32;

/// A secret key. It is wiped from memory on drop and never printed.
///
/// # Examples
///
/// ```
/// # use samovar_nix::{PublicKey, SecretKey};
/// # let seed = [7; 32];
/// # let secret_text = {
/// #     use ed25519_dalek::SigningKey;
/// #     let key = SigningKey::from_bytes(&seed);
/// #     let digest = [seed, key.verifying_key().to_bytes()].concat();
/// #     let hash = samovar_nix::Hash::new(samovar_nix::Algorithm::Sha512, &digest)?;
/// #     format!("cache.example.org-1:{}", hash.base64())
/// # };
/// let secret = SecretKey::parse(&secret_text)?;
/// let signature = secret.sign(b"message");
/// assert_eq!(signature.key_name(), "cache.example.org-1");
///
/// let public = PublicKey::parse(&secret.public().to_string())?;
/// assert!(public.verify(b"message", &signature));
/// assert!(!public.verify(b"another message", &signature));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SecretKey {
    name: Box<str>,
    signing: SigningKey,
    halves_agree: bool,
}

/// A public key. [`Display`](fmt::Display) writes the form used in `trusted-public-keys`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PublicKey {
    name: Box<str>,
    bytes: [u8; PUBLIC_LEN],
}

/// Error of parsing a key. No variant holds any part of the text, which may be secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The text has no colon.
    #[error("key without a name")]
    NoColon,
    /// The key name is empty, or holds white space or a control character.
    #[error("the name of the key is empty, or has a blank or a control character")]
    Name,
    /// The text after the colon is not base-64 of 64 bytes (secret key) or 32 bytes (public key).
    #[error("bad base-64")]
    Base64(#[source] Base64Error),
}

impl SecretKey {
    /// Parses the text of a secret key file.
    ///
    /// The caller owns the text and should wipe it.
    ///
    /// # Errors
    ///
    /// Any [`KeyError`].
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let mut bytes = Zeroizing::new([0; SECRET_LEN]);
        let name = parse_key(text, bytes.as_mut())?;
        let mut seed = Zeroizing::new([0; PUBLIC_LEN]);
        let (seed_half, public_half) = bytes.split_at(PUBLIC_LEN);
        seed.copy_from_slice(seed_half);
        let signing = SigningKey::from_bytes(&seed);
        let halves_agree = signing.verifying_key().as_bytes() == public_half;
        Ok(Self {
            name: name.into(),
            signing,
            halves_agree,
        })
    }

    /// Returns the key name, which precedes signatures.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the public half of the file matches its seed. If not, print a warning:
    /// signatures will not verify with the public key that was published with it.
    #[must_use]
    pub const fn halves_agree(&self) -> bool {
        self.halves_agree
    }

    /// Returns the public key that verifies signatures of this key.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey {
            name: self.name.clone(),
            bytes: self.signing.verifying_key().to_bytes(),
        }
    }

    /// Signs a message; for a path this is its [fingerprint](crate::PathInfo::fingerprint).
    ///
    /// Deterministic: the same key and message give the same signature.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> Signature {
        Signature::from_key(&self.name, self.signing.sign(message).to_bytes())
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey({}:<redacted>)", self.name)
    }
}

impl PublicKey {
    /// Parses the text of a public key.
    ///
    /// # Errors
    ///
    /// Any [`KeyError`].
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let mut bytes = [0; PUBLIC_LEN];
        let name = parse_key(text, &mut bytes)?;
        Ok(Self {
            name: name.into(),
            bytes,
        })
    }

    /// Returns the key name; clients look for a signature of the same name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the 32 bytes of the key.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.bytes
    }

    /// Returns whether `signature` is a signature of `message` by this key and has the key's name.
    ///
    /// Weak keys and non-canonical signatures are rejected, as in libsodium.
    #[must_use]
    pub fn verify(&self, message: &[u8], signature: &Signature) -> bool {
        let bytes = ed25519_dalek::Signature::from_bytes(signature.as_bytes());
        signature.key_name() == self.name()
            && VerifyingKey::from_bytes(&self.bytes)
                .is_ok_and(|key| key.verify_strict(message, &bytes).is_ok())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, base64::encode(&self.bytes))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

/// Splits the text, decodes the key into `bytes` and returns the name.
fn parse_key<'a>(text: &'a str, bytes: &mut [u8]) -> Result<&'a str, KeyError> {
    let (name, encoded) = text.trim().split_once(':').ok_or(KeyError::NoColon)?;
    if !is_key_name(name) {
        return Err(KeyError::Name);
    }
    base64::decode_into(encoded.as_bytes(), bytes).map_err(KeyError::Base64)?;
    Ok(name)
}

#[cfg(test)]
mod tests;
