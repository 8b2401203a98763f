//! Secret and public keys, and signing with them.
//!
//! # Encoding
//!
//! `<key name>:<base64>`, in a file with or without a line end. A public key has 32 bytes; a secret
//! key has 64, the Ed25519 seed and then the public key, as libsodium lays them out.
//!
//! # Limits and quirks
//!
//! * White space around the text is dropped: `nix-store --generate-binary-cache-key` writes no line
//!   end, but files in the wild have one, and nix-serve drops it.
//! * Nix only asks that the name be not empty. Here it must also be free of white space and
//!   control characters: clients split their list of trusted keys at white space, so a name with
//!   a space can be trusted by nobody, and one with a line feed would break the narinfo.
//! * Base-64 is read by Nix's lenient decoder.
//! * Nobody checks that the halves of a secret key belong together. Nix signs with the seed and
//!   mixes in the stored public half; if that is wrong, its signatures verify with neither key.
//!   Here the public key is always computed from the seed; [`SecretKey::halves_agree`] tells of
//!   the mistake.
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

/// A key that signs. It is wiped from memory when dropped and never printed.
#[derive(Clone)]
pub struct SecretKey {
    name: Box<str>,
    signing: SigningKey,
    halves_agree: bool,
}

/// A key that verifies. [`Display`](fmt::Display) writes the form that clients are given.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PublicKey {
    name: Box<str>,
    bytes: [u8; PUBLIC_LEN],
}

/// Why a text is not a key. No variant holds any of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// No colon.
    #[error("key without a name")]
    NoColon,
    /// The name is empty, or holds white space or a control character.
    #[error("bad key name")]
    Name,
    /// The rest is not the base-64 of 64 bytes for a secret and 32 for a public key.
    #[error("bad base-64")]
    Base64(#[source] Base64Error),
}

impl SecretKey {
    /// Reads the text of a secret key file.
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

    /// The name, as it stands before the signatures.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the public half of the file belongs to its seed. If not, warn: what this key signs
    /// will not verify with the public key that was handed out with it.
    #[must_use]
    pub const fn halves_agree(&self) -> bool {
        self.halves_agree
    }

    /// The key that verifies what this one signs.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey {
            name: self.name.clone(),
            bytes: self.signing.verifying_key().to_bytes(),
        }
    }

    /// Signs a message, for a path its [fingerprint](crate::PathInfo::fingerprint).
    ///
    /// The same key and message always give the same signature.
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
    /// Reads the text of a public key.
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

    /// The name; clients look for a signature with the same one.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The 32 bytes of the key.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.bytes
    }

    /// Whether `signature` is by this key and name and for this message.
    ///
    /// Weak keys and signatures that are not in canonical form verify nothing, as in libsodium.
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
