//! Random numbers and keyed digests.

use std::io;

use samovar_nix::{Algorithm, Hash};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::sys;

/// A SHA-256 digest.
pub(crate) type Digest = [u8; 32];

/// A random key, generated for each process.
/// Secrets are never compared or looked up directly, only their digests under this key. So timing
/// reveals nothing: a client cannot choose a digest, and the bits of a digest do not reveal the
/// secret.
pub(crate) struct Secret(Zeroizing<[u8; 32]>);

impl Secret {
    pub(crate) fn new() -> io::Result<Self> {
        random().map(|bytes| Self(Zeroizing::new(bytes)))
    }

    /// Hashes the pieces under the key. Each is prefixed with its length, so `["ab", "c"]` and
    /// `["a", "bc"]` differ.
    pub(crate) fn digest(&self, pieces: &[&[u8]]) -> Digest {
        let mut hasher = Sha256::new_with_prefix(&self.0[..]);
        for piece in pieces {
            hasher.update((piece.len() as u64).to_le_bytes());
            hasher.update(piece);
        }
        hasher.finalize().into()
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> Digest {
    Sha256::digest(bytes).into()
}

/// Returns random bytes. Blocks shortly after boot until the system's generator is initialized.
pub(crate) fn random<const LEN: usize>() -> io::Result<[u8; LEN]> {
    let mut bytes = [0; LEN];
    sys::random(&mut bytes)?;
    Ok(bytes)
}

/// Parses a SHA-256 digest of 64 hex digits; `None` for any other text.
pub(crate) fn digest_of_hex(text: &str) -> Option<Digest> {
    // A shorter text would be parsed as base-32 or base-64.
    let hash = (text.len() == 64).then(|| Hash::parse_digest(Algorithm::Sha256, text).ok())??;
    hash.digest().try_into().ok()
}

/// Formats a digest as lower-case hex digits.
pub(crate) fn hex(digest: &Digest) -> String {
    Hash::sha256(digest).base16()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_formatted_and_parsed_as_hex() {
        let digest = sha256(b"abc");
        let text = hex(&digest);
        assert!(text.starts_with("ba7816bf"));
        assert_eq!(digest_of_hex(&text), Some(digest));
        assert_eq!(digest_of_hex(&text.to_uppercase()), Some(digest));
        assert_eq!(digest_of_hex(&text[1..]), None);
        assert_eq!(digest_of_hex(&format!("{text}0")), None);
        assert_eq!(digest_of_hex(&format!("g{}", &text[1..])), None);
    }

    #[test]
    fn the_borders_between_pieces_change_the_digest() {
        let secret = Secret::new().unwrap();
        assert_eq!(secret.digest(&[b"a", b"b"]), secret.digest(&[b"a", b"b"]));
        assert_ne!(secret.digest(&[b"a", b"b"]), secret.digest(&[b"ab", b""]));
        let other = Secret::new().unwrap();
        assert_ne!(secret.digest(&[b"a"]), other.digest(&[b"a"]));
    }
}
