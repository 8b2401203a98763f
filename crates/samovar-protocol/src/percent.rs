//! Percent-encoding of texts in lines and of names in URLs.

use std::fmt::Write as _;

/// Encodes all bytes but letters, digits and `-._~`, with upper-case digits.
///
/// # Examples
///
/// ```
/// use samovar_protocol::percent::{decode, encode};
///
/// assert_eq!(encode("mr/app 1"), "mr%2Fapp%201");
/// assert_eq!(decode("mr%2fapp%201").as_deref(), Some("mr/app 1"));
/// assert_eq!(decode("mr/app"), None);
/// ```
#[must_use]
pub fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match is_plain(byte) {
            true => encoded.push(char::from(byte)),
            // Writing to a `String` never fails.
            false => write!(encoded, "%{byte:02X}").unwrap_or_default(),
        }
    }
    encoded
}

/// Decodes a text in which any byte may be encoded. Returns `None` if it has other bytes than
/// [`encode`] leaves or writes, or if the result is not UTF-8.
#[must_use]
pub fn decode(text: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => digit(bytes.next()?)? << 4 | digit(bytes.next()?)?,
            byte if is_plain(byte) => byte,
            _ => return None,
        });
    }
    String::from_utf8(decoded).ok()
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

fn digit(byte: u8) -> Option<u8> {
    u8::try_from(char::from(byte).to_digit(16)?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::damage::damage;

    #[test]
    fn malformed_texts_are_refused() {
        for wrong in ["%", "%2", "%2g", "a b", "\u{e4}", "%FF", "a\n", "%+1"] {
            assert_eq!(decode(wrong), None, "{wrong:?}");
        }
        assert_eq!(decode("%61-%7e").as_deref(), Some("a-~"));
    }

    proptest! {
        #[test]
        fn texts_are_read_as_they_were_written(text in "(?s).{0,20}", damage in damage()) {
            let encoded = encode(&text);
            prop_assert_eq!(decode(&encoded), Some(text));
            if let Some(decoded) = decode(&damage.of_text(&encoded)) {
                prop_assert_eq!(decode(&encode(&decoded)), Some(decoded));
            }
        }
    }
}
