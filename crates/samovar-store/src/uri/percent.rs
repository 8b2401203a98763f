//! Percent decoding, as RFC 3986, section 2.1 has it.

/// Decodes a value. `None` when an escape is broken or the bytes are no UTF-8.
///
/// A plus sign stays one: store URIs are no forms.
pub(super) fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first == b'%' {
            let (digits, tail) = tail.split_at_checked(2)?;
            bytes.push(digit(digits[0])? << 4 | digit(digits[1])?);
            rest = tail;
        } else {
            bytes.push(first);
        }
    }
    String::from_utf8(bytes).ok()
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
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
