//! Encoder of response heads.

use crate::http::{Status, Version};

/// Framing of a response body (RFC 9112, section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delimiter {
    /// No body and no framing field, for the statuses 204 and 304.
    None,
    /// `Content-Length`, in bytes.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// No framing field: the server closes the connection after the body. For a body of unknown
    /// length to an HTTP/1.0 peer.
    Close,
}

/// Appends the status line.
pub fn status_line(out: &mut Vec<u8>, status: Status) {
    out.extend_from_slice(b"HTTP/1.1 ");
    decimal(out, u64::from(status.code()));
    out.push(b' ');
    out.extend_from_slice(status.reason().as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends a field line. The caller has checked both parts with [`is_field_name`] and
/// [`is_field_value`].
pub fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends the framing field, if any.
pub fn delimiter(out: &mut Vec<u8>, delimiter: Delimiter) {
    match delimiter {
        Delimiter::None | Delimiter::Close => {}
        Delimiter::Length(len) => {
            out.extend_from_slice(b"Content-Length: ");
            decimal(out, len);
            out.extend_from_slice(b"\r\n");
        }
        Delimiter::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
    }
}

/// Appends `Date`, `Connection` unless it is the default of the version, and the empty line.
pub fn finish(out: &mut Vec<u8>, version: Version, keep: bool, date: &[u8]) {
    out.extend_from_slice(b"Date: ");
    out.extend_from_slice(date);
    out.extend_from_slice(match (keep, version) {
        // RFC 9113, 8.2.2: HTTP/2 does not use `Connection`.
        (true, Version::Http11) | (_, Version::Http2) => b"\r\n\r\n",
        (true, Version::Http10) => b"\r\nConnection: keep-alive\r\n\r\n",
        (false, _) => b"\r\nConnection: close\r\n\r\n",
    });
}

/// Appends a number in decimal digits.
pub fn decimal(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0_u8; 20];
    let mut start = digits.len();
    for slot in digits.iter_mut().rev() {
        // The remainder of a division by ten is below 256.
        *slot = b'0'.saturating_add((number % 10) as u8);
        start = start.saturating_sub(1);
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(start..).unwrap_or_default());
}

/// Returns whether a field name is a token (RFC 9110, section 5.1).
pub fn is_field_name(name: impl AsRef<[u8]>) -> bool {
    is_token(name)
}

/// Returns whether a text is a token, such as a method or a field name (RFC 9110, section 5.6.2).
pub fn is_token(text: impl AsRef<[u8]>) -> bool {
    let text = text.as_ref();
    !text.is_empty()
        && text
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

/// Returns whether a field value may be sent unchanged (RFC 9110, section 5.5).
pub fn is_field_value(value: &[u8]) -> bool {
    value
        .iter()
        .all(|byte| *byte == b'\t' || !byte.is_ascii_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for number in [0, 9, 10, 200, u64::MAX] {
            let mut out = Vec::new();
            decimal(&mut out, number);
            assert_eq!(out, number.to_string().into_bytes());
        }
    }

    #[test]
    fn heads() {
        let mut out = Vec::new();
        status_line(&mut out, Status::OK);
        field(&mut out, "Content-Type", b"text/plain");
        delimiter(&mut out, Delimiter::Length(14));
        finish(
            &mut out,
            Version::Http10,
            true,
            b"Sun, 06 Nov 1994 08:49:37 GMT",
        );
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 14\r\n\
             Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nConnection: keep-alive\r\n\r\n"
        );
    }

    #[test]
    fn fields_cannot_split_a_head() {
        assert!(is_field_name("X-Ok"));
        for name in ["", "a b", "a:", "a\r\n", "ä"] {
            assert!(!is_field_name(name), "{name:?}");
        }
        assert!(is_field_value(b"ok \t \xff"));
        for value in [&b"a\r\nb"[..], b"a\n", b"\0", b"\x7f"] {
            assert!(!is_field_value(value), "{value:?}");
        }
    }
}
