//! Random numbers and digests under a key.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

/// SHA-256.
pub(crate) type Digest = [u8; 32];

/// A key that no one else knows, made anew in each process.
///
/// What is compared or looked up is never a secret itself but its digest under this key. So the
/// time that takes tells nothing: nobody can choose the digest, and its bits lead back to nothing.
pub(crate) struct Secret(Zeroizing<[u8; 32]>);

impl Secret {
    pub(crate) fn new() -> io::Result<Self> {
        random().map(|bytes| Self(Zeroizing::new(bytes)))
    }

    /// The digest of these pieces, whose borders count.
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

/// Random bytes. Waits while the system has none, right after it was started.
pub(crate) fn random<const LEN: usize>() -> io::Result<[u8; LEN]> {
    let mut bytes = [0; LEN];
    // So few come all at once.
    let len = getrandom(&mut bytes, GetRandomFlags::empty())?;
    match len == LEN {
        true => Ok(bytes),
        false => Err(io::Error::other("too few random bytes")),
    }
}

/// The digest that 64 hex digits stand for.
pub(crate) fn digest_of_hex(text: &str) -> Option<Digest> {
    let mut digest = [0; 32];
    let pairs = text.as_bytes().chunks_exact(2);
    if text.len() != 64 {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(pairs) {
        let mut nibbles = pair.iter().map(|digit| char::from(*digit).to_digit(16));
        let (high, low) = (nibbles.next()??, nibbles.next()??);
        *byte = u8::try_from(high << 4 | low).ok()?;
    }
    Some(digest)
}

/// Lower-case hex digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_and_back() {
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
    fn borders_count() {
        let secret = Secret::new().unwrap();
        assert_eq!(secret.digest(&[b"a", b"b"]), secret.digest(&[b"a", b"b"]));
        assert_ne!(secret.digest(&[b"a", b"b"]), secret.digest(&[b"ab", b""]));
        let other = Secret::new().unwrap();
        assert_ne!(secret.digest(&[b"a"]), other.digest(&[b"a"]));
    }
}
