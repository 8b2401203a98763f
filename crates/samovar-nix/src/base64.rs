//! Base-64 in Nix's lenient form.
//!
//! # Encoding
//!
//! The standard alphabet with padding (RFC 4648, section 4).
//!
//! # Quirks
//!
//! Nix's decoder skips line feeds, stops at the first `=`, and ignores missing padding, everything
//! after the padding, and left-over bits. All other characters outside the alphabet, including
//! spaces and carriage returns, are errors. Existing hashes and keys were accepted by that decoder,
//! so this module reproduces it: a general base-64 library rejects some of them.
//!
//! # Source
//!
//! Nix 2.36, `src/libutil/base-n.cc`.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Error of decoding base-64 to a given number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Base64Error {
    /// The text has a character outside the alphabet.
    #[error("not a base-64 character")]
    Character,
    /// The text decodes to fewer or more bytes than expected.
    #[error("base-64 text of the wrong length")]
    Length,
}

/// Returns the number of characters that encode `byte_len` bytes, with padding.
pub(crate) const fn encoded_len(byte_len: usize) -> usize {
    byte_len.div_ceil(3).saturating_mul(4)
}

/// Writes the text of `bytes`, with padding, into `text`, which must have [`encoded_len`] bytes.
pub(crate) fn encode_into(bytes: &[u8], text: &mut [u8]) {
    for (group, characters) in bytes.chunks(3).zip(text.chunks_mut(4)) {
        let number = (0..3).fold(0_u32, |number, index| {
            (number << 8) | u32::from(group.get(index).copied().unwrap_or(0))
        });
        for (index, (character, shift)) in characters.iter_mut().zip([18, 12, 6, 0]).enumerate() {
            // A group of n bytes has n + 1 significant characters.
            *character = if index <= group.len() {
                character_of(number >> shift)
            } else {
                b'='
            };
        }
    }
}

/// Encodes `bytes`, with padding.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = vec![0; encoded_len(bytes.len())];
    encode_into(bytes, &mut text);
    text.into_iter().map(char::from).collect()
}

#[expect(
    clippy::indexing_slicing,
    reason = "six bits cannot exceed the 64 characters"
)]
fn character_of(number: u32) -> u8 {
    ALPHABET[(number & 63) as usize]
}

/// Decodes into `bytes`, which must have exactly the decoded length.
///
/// # Errors
///
/// Any [`Base64Error`]; the contents of `bytes` are then unspecified.
pub(crate) fn decode_into(text: &[u8], bytes: &mut [u8]) -> Result<(), Base64Error> {
    let mut places = bytes.iter_mut();
    let mut number = 0_u32;
    let mut bits = 0_u32;
    for &character in text
        .iter()
        .take_while(|&&c| c != b'=')
        .filter(|&&c| c != b'\n')
    {
        number = (number << 6) | value_of(character).ok_or(Base64Error::Character)?;
        bits = bits.wrapping_add(6);
        if bits >= 8 {
            bits = bits.wrapping_sub(8);
            *places.next().ok_or(Base64Error::Length)? = ((number >> bits) & 0xff) as u8;
        }
    }
    if places.next().is_some() {
        return Err(Base64Error::Length);
    }
    Ok(())
}

fn value_of(character: u8) -> Option<u32> {
    let (first, value) = match character {
        b'A'..=b'Z' => (b'A', 0),
        b'a'..=b'z' => (b'a', 26),
        b'0'..=b'9' => (b'0', 52),
        b'+' => (b'+', 62),
        b'/' => (b'/', 63),
        _ => return None,
    };
    Some(u32::from(character.wrapping_sub(first)).wrapping_add(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], text: &str) {
        assert_eq!(encode(bytes), text);
        assert_eq!(encoded_len(bytes.len()), text.len());
        check_read(text, bytes);
    }

    #[track_caller]
    fn check_read(text: &str, bytes: &[u8]) {
        let mut read = vec![0; bytes.len()];
        assert_eq!(decode_into(text.as_bytes(), &mut read), Ok(()));
        assert_eq!(read, bytes);
    }

    #[track_caller]
    fn check_refused(text: &str, byte_len: usize, error: Base64Error) {
        assert_eq!(
            decode_into(text.as_bytes(), &mut vec![0; byte_len]),
            Err(error)
        );
    }

    // RFC 4648, section 10.
    #[test]
    fn vectors_of_the_rfc() {
        check(b"", "");
        check(b"f", "Zg==");
        check(b"fo", "Zm8=");
        check(b"foo", "Zm9v");
        check(b"foob", "Zm9vYg==");
        check(b"fooba", "Zm9vYmE=");
        check(b"foobar", "Zm9vYmFy");
        check(&[0xfb, 0xff, 0xbf], "+/+/");
    }

    #[test]
    fn accepts_what_nix_accepts() {
        check_read("Zg", b"f");
        check_read("Zg=", b"f");
        check_read("Z\ng=\n=", b"f");
        check_read("Zh==", b"f");
        check_read("Zg==!anything", b"f");
        check_read("Zm9vY", b"foo");
    }

    #[test]
    fn refuses_what_nix_refuses() {
        check_refused("Zg== ", 2, Base64Error::Length);
        check_refused(" Zg==", 1, Base64Error::Character);
        check_refused("Zg\r\n==", 1, Base64Error::Character);
        check_refused("Z-9v", 3, Base64Error::Character);
        check_refused("Zm9v", 2, Base64Error::Length);
        check_refused("Zm9v", 4, Base64Error::Length);
    }
}
