//! Text for logs.

use std::fmt::{self, Write};

/// Writes text as a part of one line: control characters, and other characters that end a line, are
/// escaped, so that no client can forge a line of a log or control the terminal of its reader.
pub(crate) struct Escaped<'a, 'f>(pub(crate) &'a mut fmt::Formatter<'f>);

impl Write for Escaped<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some((at, char)) = rest.char_indices().find(|(_, char)| is_escaped(*char)) {
            let (plain, from) = rest.split_at(at);
            self.0.write_str(plain)?;
            write!(self.0, "{}", char.escape_default())?;
            rest = &from[char.len_utf8()..];
        }
        self.0.write_str(rest)
    }
}

/// Whether a character could end a line or control a terminal.
fn is_escaped(char: char) -> bool {
    // The two others are the line and paragraph separators of Unicode.
    char.is_control() || matches!(char, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Line<'a>(&'a str);

    impl fmt::Display for Line<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(Escaped(f), "<{}>", self.0)
        }
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(Line(text).to_string(), expected);
    }

    #[test]
    fn only_what_ends_a_line_or_controls_a_terminal_is_escaped() {
        check("", "<>");
        check("a \\ \"tea\" té 茶", "<a \\ \"tea\" té 茶>");
        check("a\nb\r\n", "<a\\nb\\r\\n>");
        check("\t\u{1b}[2J\0", "<\\t\\u{1b}[2J\\u{0}>");
        check("\u{85}\u{2028}x\u{2029}", "<\\u{85}\\u{2028}x\\u{2029}>");
    }
}
