//! Escapes untrusted bytes for log lines.

/// Appends `bytes` escaped, so that they can end neither a quoted field nor a line, and contain no
/// terminal control sequence.
///
/// ```
/// let mut line = b"GET ".to_vec();
/// samovar_http::log::escape(b"/\"\n", &mut line);
/// assert_eq!(line, br#"GET /\"\x0a"#);
/// ```
///
/// `"` and `\` get a backslash; each byte that is not printable ASCII becomes `\xhh`, in lower
/// case.
///
/// # Source
///
/// Apache httpd 2.4, `ap_escape_logitem`, which writes `\n` and `\t` for two bytes. They become
/// `\x0a` and `\x09` here, as in Plack (`Apache::LogFormat::Compiler`, `_safe`). Plack does not
/// escape `"` and `\`, so its clients can forge fields.
pub fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b' '..=b'~' => out.push(byte),
            _ => {
                let high = HEX[usize::from(byte >> 4)];
                let low = HEX[usize::from(byte & 15)];
                out.extend_from_slice(&[b'\\', b'x', high, low]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], expected: &str) {
        let mut out = Vec::new();
        escape(bytes, &mut out);
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }

    #[test]
    fn hostile_bytes() {
        check(b"/a b~", "/a b~");
        check(b"x\" 200 0 \"\\", r#"x\" 200 0 \"\\"#);
        check(b"\r\n\t\0\x1b[2J\x7f", r"\x0d\x0a\x09\x00\x1b[2J\x7f");
        check("é".as_bytes(), r"\xc3\xa9");
        check(b"\xff", r"\xff");
    }

    #[test]
    fn no_byte_but_printable_ascii_comes_out() {
        let all: Vec<u8> = (0..=255).collect();
        let mut out = Vec::new();
        escape(&all, &mut out);
        assert!(out.iter().all(|byte| (b' '..=b'~').contains(byte)));
    }
}
