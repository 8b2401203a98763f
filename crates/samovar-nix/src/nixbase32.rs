//! Nix's base-32, the text form of hash parts and hashes.
//!
//! # Encoding
//!
//! The bytes are a little-endian number, written with its most significant digit first. The
//! alphabet omits `e`, `o`, `t` and `u` and has no upper case. Five bytes become eight digits.
//! Groups of this size are taken from the *front* of the bytes and written from the *end* of the
//! text.
//!
//! # Grammar and limits
//!
//! `n` bytes are `ceil(8n / 5)` digits. If `8n` is not a multiple of five, the spare bits of the
//! first digit must be zero, so that each value has one text. For 32 bytes the first digit is `0`
//! or `1`.
//!
//! # Quirks
//!
//! The order of the texts differs from the order of the bytes.
//!
//! # Source
//!
//! Nix 2.36, `src/libutil/base-nix-32.cc`.

/// The 32 digits; the index of each is its value.
pub const ALPHABET: &[u8; 32] = b"0123456789abcdfghijklmnpqrsvwxyz";

/// The value for a byte that is not a digit. Its top bit is set; no digit has a value with this
/// bit.
const INVALID: u8 = 0xff;

/// The value of each byte as a digit, or [`INVALID`].
const VALUES: [u8; 256] = values();

#[expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "evaluated by the compiler, which rejects a wrong index or an overflow"
)]
const fn values() -> [u8; 256] {
    let mut values = [INVALID; 256];
    let mut digit = 0;
    while digit < ALPHABET.len() {
        values[ALPHABET[digit] as usize] = digit as u8;
        digit += 1;
    }
    values
}

/// Error of decoding base-32 to bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The number of digits fits no byte string, or not one of the expected length.
    #[error("a base-32 text cannot be {text_len} digits long here")]
    Length {
        /// Length of the text, in bytes.
        text_len: usize,
    },
    /// A byte outside the [`ALPHABET`].
    #[error("not a base-32 digit")]
    Digit,
    /// The spare bits of the first digit are not zero.
    #[error("base-32 text with bits beyond its last byte")]
    Overflow,
}

/// Returns the number of digits that encode `byte_len` bytes; saturates near the maximum of
/// `usize`.
#[must_use]
pub const fn encoded_len(byte_len: usize) -> usize {
    byte_len.saturating_mul(8).div_ceil(5)
}

/// Encodes bytes of any length.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    let mut text = vec![0; encoded_len(bytes.len())];
    fill(bytes, &mut text);
    text.into_iter().map(char::from).collect()
}

/// Encodes into an array, without allocation.
///
/// `TEXT_LEN` must be [`encoded_len`] of `BYTE_LEN`; any other length fails to compile.
///
/// # Examples
///
/// ```
/// let text: [u8; 32] = samovar_nix::nixbase32::encode_array(&[0xff; 20]);
/// assert_eq!(&text, b"zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz");
/// ```
#[must_use]
pub fn encode_array<const BYTE_LEN: usize, const TEXT_LEN: usize>(
    bytes: &[u8; BYTE_LEN],
) -> [u8; TEXT_LEN] {
    const {
        assert!(
            TEXT_LEN == encoded_len(BYTE_LEN),
            "TEXT_LEN must be encoded_len(BYTE_LEN)"
        )
    };
    let mut text = [0; TEXT_LEN];
    fill(bytes, &mut text);
    text
}

/// Decodes a text of any valid length.
///
/// # Errors
///
/// Any [`DecodeError`].
pub fn decode(text: &[u8]) -> Result<Vec<u8>, DecodeError> {
    // Computes 5 * len / 8 without overflow.
    let whole = (text.len() / 8).saturating_mul(5);
    let mut bytes = vec![0; whole.saturating_add((text.len() % 8).saturating_mul(5) / 8)];
    decode_into(text, &mut bytes)?;
    Ok(bytes)
}

/// Decodes into an array, without allocation.
///
/// # Errors
///
/// Any [`DecodeError`]; [`DecodeError::Length`] also if the text does not have the length of
/// `BYTE_LEN` encoded bytes.
///
/// # Examples
///
/// ```
/// use samovar_nix::nixbase32::{DecodeError, decode_array};
///
/// assert_eq!(decode_array(b"7z"), Ok([0xff]));
/// assert_eq!(decode_array::<1>(b"zz"), Err(DecodeError::Overflow));
/// ```
pub fn decode_array<const BYTE_LEN: usize>(text: &[u8]) -> Result<[u8; BYTE_LEN], DecodeError> {
    let mut bytes = [0; BYTE_LEN];
    decode_into(text, &mut bytes)?;
    Ok(bytes)
}

/// Decodes into `bytes`, which must have exactly the decoded length.
///
/// # Errors
///
/// Any [`DecodeError`]; the contents of `bytes` are then unspecified.
pub fn decode_into(text: &[u8], bytes: &mut [u8]) -> Result<(), DecodeError> {
    if text.len() != encoded_len(bytes.len()) {
        return Err(DecodeError::Length {
            text_len: text.len(),
        });
    }
    // Fixed-size chunks let the compiler unroll the loops. This code runs for every narinfo
    // request.
    let (first_digits, groups) = text.as_rchunks::<8>();
    let (whole_bytes, last_bytes) = bytes.as_chunks_mut::<5>();
    let (mut number, mut seen) = number_of(first_digits);
    for byte in last_bytes {
        *byte = (number & 0xff) as u8;
        number >>= 8;
    }
    let spare = number;
    for (bytes, digits) in whole_bytes.iter_mut().zip(groups.iter().rev()) {
        let (number, values) = number_of(digits);
        // One check at the end costs less than a branch per digit.
        seen |= values;
        let [a, b, c, d, e, ..] = number.to_le_bytes();
        *bytes = [a, b, c, d, e];
    }
    if seen & 0x80 != 0 {
        return Err(DecodeError::Digit);
    }
    if spare != 0 {
        return Err(DecodeError::Overflow);
    }
    Ok(())
}

/// Returns the number encoded by up to eight digits, and the bitwise OR of their values, whose top
/// bit is set if any byte is not a digit.
#[inline]
fn number_of(digits: &[u8]) -> (u64, u8) {
    digits.iter().fold((0, 0), |(number, seen), &digit| {
        let value = value_of(digit);
        ((number << 5) | u64::from(value & 31), seen | value)
    })
}

#[expect(
    clippy::indexing_slicing,
    reason = "the table has an entry for every byte"
)]
fn value_of(byte: u8) -> u8 {
    VALUES[usize::from(byte)]
}

/// Writes the digits into `text`, which must have exactly the encoded length.
fn fill(bytes: &[u8], text: &mut [u8]) {
    for (group, digits) in bytes.chunks(5).zip(text.rchunks_mut(8)) {
        let mut number = group
            .iter()
            .rev()
            .fold(0_u64, |number, &b| (number << 8) | u64::from(b));
        for digit in digits.iter_mut().rev() {
            *digit = digit_of(number);
            number >>= 5;
        }
    }
}

#[expect(
    clippy::indexing_slicing,
    reason = "five bits cannot exceed the 32 digits"
)]
fn digit_of(number: u64) -> u8 {
    ALPHABET[(number & 31) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_hex(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex
            .chars()
            .map(|c| u8::try_from(c.to_digit(16).unwrap()).unwrap())
            .collect();
        digits
            .chunks(2)
            .map(|pair| pair[0] * 16 + pair[1])
            .collect()
    }

    #[track_caller]
    fn check(bytes: &[u8], text: &str) {
        assert_eq!(encode(bytes), text);
        assert_eq!(encoded_len(bytes.len()), text.len());
        assert_eq!(decode(text.as_bytes()).as_deref(), Ok(bytes));
    }

    #[track_caller]
    fn check_refused(text: &[u8], error: DecodeError) {
        assert_eq!(decode(text), Err(error));
    }

    #[test]
    fn encodes_as_nix_does() {
        check(&[], "");
        check(&[0x1f], "0z");
        check(&[0xff], "7z");
        check(&[0; 20], "00000000000000000000000000000000");
        check(&[0xff; 20], "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz");
        let counting: Vec<u8> = (0..20).collect();
        check(&counting, "2c91240g1q6hq2qa1440f1h50h1h4080");
        let mut one = [0; 32];
        one[0] = 1;
        check(&one, "0000000000000000000000000000000000000000000000000001");
        check(
            &from_hex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            "0mdqa9w1p6cmli6976v4wi0sw9r4p5prkj7lzfd1877wk11c9c73",
        );
        check(
            &from_hex("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            "1b8m03r63zqhnjf7l5wnldhh7c134ap5vpj0850ymkq1iyzicy5s",
        );
    }

    #[test]
    fn lengths_of_the_digests() {
        assert_eq!([16, 20, 32, 64].map(encoded_len), [26, 32, 52, 103]);
    }

    #[test]
    fn refuses_what_is_not_base_32() {
        check_refused(b"0", DecodeError::Length { text_len: 1 });
        check_refused(b"000", DecodeError::Length { text_len: 3 });
        check_refused(b"000000", DecodeError::Length { text_len: 6 });
        for byte in *b"eotuEOTUABZ -_\0\x7f\x80\xff" {
            check_refused(&[b'0', byte], DecodeError::Digit);
        }
        check_refused(b"80", DecodeError::Overflow);
        // Only one bit of the first digit of 32 bytes is used.
        let mut text = [b'0'; 52];
        text[0] = b'1';
        assert!(decode(&text).is_ok());
        text[0] = b'2';
        check_refused(&text, DecodeError::Overflow);
    }
}
