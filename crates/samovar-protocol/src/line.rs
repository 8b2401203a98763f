//! Words and numbers, of which all lines consist.

use samovar_nix::{Algorithm, Hash, NarHash};

/// Splits a line into exactly `N` words, separated by one space.
pub(crate) fn words<const N: usize>(line: &[u8]) -> Option<[&[u8]; N]> {
    let mut words = line.split(|byte| *byte == b' ');
    let mut found = [&[][..]; N];
    for word in &mut found {
        *word = words.next()?;
    }
    words.next().is_none().then_some(found)
}

/// Parses a decimal number without leading zeros.
#[must_use]
pub fn number(text: &[u8]) -> Option<u64> {
    let is_canonical =
        text.iter().all(u8::is_ascii_digit) && (text == b"0" || text.first() != Some(&b'0'));
    is_canonical
        .then(|| std::str::from_utf8(text).ok()?.parse().ok())
        .flatten()
}

/// Returns the last line of an answer with this number of lines, with its LF.
#[must_use]
pub fn end_line(count: usize) -> String {
    format!("end {count}\n")
}

/// Returns a NAR hash in the notation of the protocol: base-32 without the prefix `sha256:`.
#[must_use]
pub fn nar_hash_text(hash: &NarHash) -> String {
    samovar_nix::nixbase32::encode(hash.as_bytes())
}

/// Parses a SHA-256 of 64 lower-case hexadecimal digits.
#[must_use]
pub fn parse_sha256(text: &str) -> Option<[u8; 32]> {
    let hash = Hash::parse_digest(Algorithm::Sha256, text).ok()?;
    (hash.base16() == text).then(|| hash.digest().try_into().ok())?
}

/// Replaces line ends and other control characters, so that a text is part of one line: the message
/// of a decompressor, or the pattern of a token, may have several lines.
pub(crate) fn in_one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_one_form() {
        for (text, expected) in [
            ("0", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("", None),
            ("00", None),
            ("01", None),
            ("+1", None),
            ("-1", None),
            ("1 ", None),
            ("\u{661}", None),
        ] {
            assert_eq!(number(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn lines_have_words() {
        assert_eq!(words(b"a b"), Some([&b"a"[..], b"b"]));
        assert_eq!(words(b"a  b"), Some([&b"a"[..], b"", b"b"]));
        assert_eq!(words::<2>(b"a"), None);
        assert_eq!(words::<2>(b"a b c"), None);
        assert_eq!(words(b""), Some([&b""[..]]));
    }

    #[test]
    fn digests_have_one_form() {
        let digits = "0f".repeat(32);
        assert_eq!(parse_sha256(&digits), Some([15; 32]));
        for wrong in [&digits[1..], &digits.to_uppercase(), &"0".repeat(52)] {
            assert_eq!(parse_sha256(wrong), None, "{wrong}");
        }
    }
}
