//! Percent-encoding (RFC 3986, section 2.1).

use percent_encoding::percent_decode_str;

/// Decodes a value. `None` if an escape is incomplete or the bytes are not UTF-8.
///
/// A plus sign is not decoded: store URIs are not forms.
pub(super) fn decode(text: &str) -> Option<String> {
    // The decoder would pass an incomplete escape through.
    let is_escape = |rest: &str| {
        let digits = rest.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    if !text.split('%').skip(1).all(is_escape) {
        return None;
    }
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.ok().map(|text| text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(input: &str, expected: Option<&str>) {
        assert_eq!(decode(input).as_deref(), expected);
    }

    #[test]
    fn values() {
        check("", Some(""));
        check("/a%20b", Some("/a b"));
        check("%2Fx%2fy", Some("/x/y"));
        check("a+b", Some("a+b"));
        check("%", None);
        check("%2", None);
        check("%2g", None);
        check("%+1", None);
        check("%ff", None);
        check("%c3%a9", Some("é"));
    }
}
