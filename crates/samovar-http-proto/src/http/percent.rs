//! Percent-decoding of request paths.

use std::borrow::Cow;

/// Decodes `%XX` once (RFC 3986, section 2.1). Borrows if there is nothing to decode.
///
/// Returns `None` for a `%` without two hexadecimal digits. Such a path is ambiguous: two servers
/// could decode it differently.
///
/// # Examples
///
/// ```
/// use samovar_http_proto::http::percent::decode;
/// assert_eq!(decode(b"a%21b").as_deref(), Some(&b"a!b"[..]));
/// assert_eq!(decode(b"a%2"), None);
/// ```
pub fn decode(text: &[u8]) -> Option<Cow<'_, [u8]>> {
    // Most paths are short and have no escapes. The compiler vectorizes a loop without an early
    // exit, which is faster on such paths than a search.
    let is_encoded = text.iter().fold(false, |is, byte| is | (*byte == b'%'));
    if !is_encoded {
        return Some(Cow::Borrowed(text));
    }
    let first = memchr::memchr(b'%', text).unwrap_or(text.len());
    let (plain, rest) = text.split_at(first);
    let mut decoded = Vec::with_capacity(text.len());
    decoded.extend_from_slice(plain);
    let mut bytes = rest.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let high = hex_digit(bytes.next()?)?;
            let low = hex_digit(bytes.next()?)?;
            decoded.push(high << 4 | low);
        } else {
            decoded.push(byte);
        }
    }
    Some(Cow::Owned(decoded))
}

fn hex_digit(byte: u8) -> Option<u8> {
    (byte as char)
        .to_digit(16)
        .and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<&[u8]>) {
        assert_eq!(decode(text.as_bytes()).as_deref(), expected, "{text:?}");
    }

    #[test]
    fn decodes_once() {
        check("", Some(b""));
        check("/plain", Some(b"/plain"));
        check("%41%62", Some(b"Ab"));
        check("%2541", Some(b"%41"));
        check("%ff%00", Some(&[0xff, 0]));
    }

    #[test]
    fn malformed_escapes_are_refused() {
        check("%", None);
        check("%4", None);
        check("a%4x", None);
        check("%+1", None);
    }
}
