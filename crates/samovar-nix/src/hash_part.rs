//! The hash part of a store path: the 32 characters that identify it in a cache's URLs.

use std::fmt;

use crate::nixbase32;

/// Length of a hash part as text, in bytes.
pub(crate) const TEXT_LEN: usize = 32;

/// The 160-bit digest of a store path, which precedes the name.
///
/// Hash parts are ordered by the decoded bytes, not by the text.
///
/// # Examples
///
/// ```
/// # use samovar_nix::HashPart;
/// let hash_part = HashPart::parse(b"2c91240g1q6hq2qa1440f1h50h1h4080")?;
/// assert_eq!(hash_part.to_string(), "2c91240g1q6hq2qa1440f1h50h1h4080");
/// # Ok::<(), samovar_nix::HashPartError>(())
/// ```
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HashPart([u8; 20]);

/// Error of parsing a hash part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HashPartError {
    /// The text does not have exactly 32 characters.
    #[error("a hash part has 32 characters")]
    Length,
    /// The text has a character outside Nix's base-32.
    #[error("a character that is not base-32")]
    Digit,
}

impl HashPart {
    /// Parses exactly 32 base-32 characters.
    ///
    /// # Errors
    ///
    /// Any [`HashPartError`].
    #[inline]
    pub fn parse(text: &[u8]) -> Result<Self, HashPartError> {
        let Ok(text) = <&[u8; TEXT_LEN]>::try_from(text) else {
            return Err(HashPartError::Length);
        };
        // 160 bits fill 32 digits exactly, so an invalid digit is the only possible error.
        match nixbase32::decode_array(text) {
            Ok(bytes) => Ok(Self(bytes)),
            Err(_) => Err(HashPartError::Digit),
        }
    }

    /// Creates a hash part from its bytes; any 20 are valid.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 20]) -> Self {
        Self(bytes)
    }

    /// Returns the 20 decoded bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 20] {
        &self.0
    }

    /// Returns the hash part as 32 characters of base-32, without allocation.
    #[must_use]
    pub fn to_text(&self) -> [u8; TEXT_LEN] {
        nixbase32::encode_array(&self.0)
    }
}

impl fmt::Display for HashPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.to_text();
        f.pad(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Debug for HashPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HashPart({self})")
    }
}

impl std::str::FromStr for HashPart {
    type Err = HashPartError;

    fn from_str(text: &str) -> Result<Self, HashPartError> {
        Self::parse(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8; 32] = b"vdszx2k8vwaxcpdpwhbwsgib5c6sf53k";

    #[track_caller]
    fn check_refused(text: &[u8], error: HashPartError) {
        assert_eq!(HashPart::parse(text), Err(error));
    }

    #[test]
    fn text_and_bytes_agree() {
        let hash_part = HashPart::parse(TEXT).unwrap();
        assert_eq!(&hash_part.to_text(), TEXT);
        assert_eq!(hash_part.to_string().as_bytes(), TEXT);
        assert_eq!(HashPart::from_bytes(*hash_part.as_bytes()), hash_part);
        assert_eq!(
            format!("{hash_part:?}"),
            "HashPart(vdszx2k8vwaxcpdpwhbwsgib5c6sf53k)"
        );
    }

    #[test]
    fn refuses_every_other_length() {
        for len in (0..80).filter(|&len| len != 32) {
            check_refused(&vec![b'0'; len], HashPartError::Length);
        }
    }

    #[test]
    fn refuses_every_byte_outside_the_alphabet_at_every_place() {
        for place in 0..TEXT.len() {
            for byte in 0..=255_u8 {
                let mut text = *TEXT;
                text[place] = byte;
                let known = nixbase32::ALPHABET.contains(&byte);
                assert_eq!(
                    HashPart::parse(&text).is_ok(),
                    known,
                    "{byte:#x} at {place}"
                );
            }
        }
    }
}
