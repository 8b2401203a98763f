//! Converts the text of a build log to HTML: numbered lines, with the colours of a terminal.
//!
//! # Theory of operation
//!
//! The text comes in pieces, cut anywhere, and its HTML is returned piece by piece. [`LogText`]
//! holds the end of a cut character and the parameters of a cut escape sequence, so its memory does
//! not depend on the log.
//!
//! Of the escape sequences of ECMA-48, only SGR with bold and the 16 colours has an effect. All
//! others are removed, and so are the other control characters. A carriage return within a line
//! breaks the line, because the text before it cannot be erased.

/// Number of lines per block of HTML. Browsers skip the layout of blocks that are not visible.
const BLOCK_LINE_COUNT: u64 = 250;

/// Maximum length of the parameters of an escape sequence. A longer sequence has no effect.
const PARAMETERS_LEN_MAX: usize = 64;

/// Colour and weight of text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Style {
    /// 0 to 7: the colours of SGR 30 to 37; 8 to 15: those of 90 to 97.
    colour: Option<u8>,
    is_bold: bool,
}

/// The state of the parser of escape sequences.
#[derive(Debug)]
enum State {
    Text,
    /// After ESC, or after an intermediate character that follows it.
    Escape,
    /// In a control sequence, with its parameters so far.
    Control(String),
    /// In a control string, for example the title of a window.
    ControlString,
}

/// Converts the text of one log.
#[derive(Debug)]
pub(super) struct LogText {
    state: State,
    style: Style,
    /// The style of the open `span`.
    shown: Style,
    /// Number of lines so far.
    line_count: u64,
    is_in_line: bool,
    /// Whether the last character was a carriage return.
    is_after_return: bool,
    /// The start of a character that the next piece continues.
    cut: Vec<u8>,
}

impl LogText {
    pub(super) fn new() -> Self {
        Self {
            state: State::Text,
            style: Style::default(),
            shown: Style::default(),
            line_count: 0,
            is_in_line: false,
            is_after_return: false,
            cut: Vec::new(),
        }
    }

    /// Returns the HTML of the next piece of text.
    pub(super) fn push(&mut self, piece: &[u8]) -> String {
        let mut bytes = std::mem::take(&mut self.cut);
        bytes.extend_from_slice(piece);
        self.cut = bytes.split_off(bytes.len() - cut_len(&bytes));
        self.convert(&bytes)
    }

    /// Returns the HTML of the end of the log.
    pub(super) fn finish(mut self) -> String {
        let cut = std::mem::take(&mut self.cut);
        let mut html = self.convert(&cut);
        if self.is_in_line {
            self.end_line(&mut html);
        }
        html.push_str(match self.line_count {
            0 => "<span class=\"soft\">The log is empty.</span>",
            _ => "</span>",
        });
        html
    }

    fn convert(&mut self, bytes: &[u8]) -> String {
        let mut html = String::with_capacity(2 * bytes.len());
        for character in String::from_utf8_lossy(bytes).chars() {
            self.character(character, &mut html);
        }
        html
    }

    fn character(&mut self, character: char, html: &mut String) {
        match (&mut self.state, character) {
            // Ends an incomplete sequence too, so that it cannot hide the rest of the log.
            (_, '\n') => {
                self.state = State::Text;
                self.is_after_return = false;
                self.begin_line(html);
                self.end_line(html);
            }
            (_, '\u{1b}') => self.state = State::Escape,
            (State::Text, character) => self.text(character, html),
            (State::Escape, '[') => self.state = State::Control(String::new()),
            (State::Escape, ']' | 'P' | 'X' | '^' | '_') => self.state = State::ControlString,
            (State::Escape, ' '..='/') => {}
            (State::Escape, _) | (State::ControlString, '\u{7}') => self.state = State::Text,
            (State::ControlString, _) => {}
            (State::Control(parameters), '\u{20}'..='\u{3f}') => {
                if parameters.len() <= PARAMETERS_LEN_MAX {
                    parameters.push(character);
                }
            }
            (State::Control(parameters), last) => {
                if last == 'm' && parameters.len() <= PARAMETERS_LEN_MAX {
                    self.style = self.style.changed(parameters);
                }
                self.state = State::Text;
            }
        }
    }

    fn text(&mut self, character: char, html: &mut String) {
        if character == '\r' {
            self.is_after_return = true;
            return;
        }
        if character.is_control() && character != '\t' {
            return;
        }
        self.begin_line(html);
        if std::mem::take(&mut self.is_after_return) {
            html.push('\n');
        }
        if self.shown != self.style {
            self.end_span(html);
            self.begin_span(html);
        }
        match character {
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '&' => html.push_str("&amp;"),
            other => html.push(other),
        }
    }

    fn begin_line(&mut self, html: &mut String) {
        if std::mem::replace(&mut self.is_in_line, true) {
            return;
        }
        if self.line_count.is_multiple_of(BLOCK_LINE_COUNT) {
            if self.line_count > 0 {
                html.push_str("</span>");
            }
            html.push_str("<span class=\"lines\">");
        }
        self.line_count += 1;
        let number = self.line_count;
        html.push_str(&format!(
            "<span id=\"L{number}\"><a href=\"#L{number}\">{number}</a>"
        ));
    }

    fn end_line(&mut self, html: &mut String) {
        self.end_span(html);
        html.push_str("\n</span>");
        self.is_in_line = false;
    }

    fn begin_span(&mut self, html: &mut String) {
        self.shown = self.style;
        match (self.style.colour, self.style.is_bold) {
            (None, false) => {}
            (None, true) => html.push_str("<span class=\"bold\">"),
            (Some(colour), false) => html.push_str(&format!("<span class=\"c{colour}\">")),
            (Some(colour), true) => html.push_str(&format!("<span class=\"c{colour} bold\">")),
        }
    }

    fn end_span(&mut self, html: &mut String) {
        if std::mem::take(&mut self.shown) != Style::default() {
            html.push_str("</span>");
        }
    }
}

impl Style {
    /// Returns the style after an SGR sequence with these parameters.
    fn changed(mut self, parameters: &str) -> Self {
        let mut codes = parameters.split(';');
        while let Some(code) = codes.next() {
            match code.parse::<u8>() {
                Err(_) if code.is_empty() => self = Self::default(),
                Ok(0) => self = Self::default(),
                Ok(1) => self.is_bold = true,
                Ok(22) => self.is_bold = false,
                Ok(code @ 30..=37) => self.colour = Some(code - 30),
                Ok(code @ 90..=97) => self.colour = Some(code - 82),
                Ok(39) => self.colour = None,
                // A colour by number, which is shown if it is one of the 16, or by its parts.
                Ok(code @ (38 | 48)) => {
                    let kind = codes.next();
                    let parts = codes.by_ref().take(if kind == Some("2") { 3 } else { 1 });
                    let number = parts.last().and_then(|number| number.parse().ok());
                    if code == 38 {
                        self.colour = number.filter(|number| kind == Some("5") && *number < 16);
                    }
                }
                _ => {}
            }
        }
        self
    }
}

/// Returns the length of an incomplete UTF-8 character at the end.
fn cut_len(bytes: &[u8]) -> usize {
    let last = bytes.iter().rev().take(3).position(|byte| *byte >= 0xc0);
    let Some(position) = last else {
        return 0;
    };
    let len = match bytes[bytes.len() - 1 - position] {
        0xc0..0xe0 => 2,
        0xe0..0xf0 => 3,
        _ => 4,
    };
    if position + 1 < len { position + 1 } else { 0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn html_of<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> String {
        let mut text = LogText::new();
        let mut html: String = pieces.into_iter().map(|piece| text.push(piece)).collect();
        html.push_str(&text.finish());
        html
    }

    /// Checks the HTML of a log of one line.
    #[track_caller]
    fn check(log: &str, expected: &str) {
        let expected = format!(
            "<span class=\"lines\"><span id=\"L1\"><a href=\"#L1\">1</a>{expected}\n</span></span>"
        );
        assert_eq!(html_of([log.as_bytes()]), expected, "{log:?}");
    }

    #[test]
    fn colours_are_shown_and_other_sequences_removed() {
        check(
            "a \u{1b}[31mred\u{1b}[0m b",
            "a <span class=\"c1\">red</span> b",
        );
        check(
            "\u{1b}[1;92mok\u{1b}[m.",
            "<span class=\"c10 bold\">ok</span>.",
        );
        check("\u{1b}[1mb\u{1b}[22mn", "<span class=\"bold\">b</span>n");
        check("\u{1b}[38;5;9mx\u{1b}[39my", "<span class=\"c9\">x</span>y");
        check("\u{1b}[38;2;1;2;3mx\u{1b}[48;5;1my", "xy");
        check("\u{1b}[01;38;2;1;31;3mx", "<span class=\"bold\">x</span>");
        check("\u{1b}]0;title\u{7}a\u{1b}]8;;url\u{1b}\\b", "ab");
        check(
            "\u{1b}[2J\u{1b}[1A\u{1b}[?25l\u{1b}(B\u{1b}=x\u{0}\u{8}",
            "x",
        );
        check(&format!("\u{1b}[{}mx", "1;".repeat(500)), "x");
        check("\u{1b}[31m\u{1b}[0mx", "x");
    }

    #[test]
    fn text_is_escaped_and_invalid_text_replaced() {
        check("<a href=\"&\">", "&lt;a href=\"&amp;\"&gt;");
        assert!(html_of([&b"\xff\xe2\x82"[..]]).contains("\u{fffd}\u{fffd}"));
    }

    #[test]
    fn each_line_has_its_number() {
        let html = html_of([&b"a\r\nb\rc\n\n\x1b[32md\ne"[..]]);
        let text = |line: &str| line.rsplit("</a>").next().unwrap().to_owned();
        let lines: Vec<String> = html.split("<span id=").skip(1).map(text).collect();
        assert_eq!(lines[0], "a\n</span>");
        assert_eq!(lines[1], "b\nc\n</span>");
        assert_eq!(lines[2], "\n</span>");
        assert_eq!(lines[3], "<span class=\"c2\">d</span>\n</span>");
        assert_eq!(lines[4], "<span class=\"c2\">e</span>\n</span></span>");
        let long = "x\n".repeat(501);
        let html = html_of([long.as_bytes()]);
        assert_eq!(html.matches("class=\"lines\"").count(), 3);
        assert!(html.contains("<a href=\"#L501\">501</a>"));
    }

    /// A control string without an end hides one line at most.
    #[test]
    fn an_incomplete_sequence_ends_with_its_line() {
        for start in ["\u{1b}]0;", "\u{1b}[31", "\u{1b}P"] {
            let html = html_of([format!("{start}\nshown").as_bytes()]);
            assert!(html.contains("shown"), "{html}");
        }
    }

    #[test]
    fn an_empty_log_is_reported() {
        assert!(html_of([&b""[..]]).contains("The log is empty."));
    }

    proptest! {
        /// Where the text is cut does not matter, and all elements are closed.
        #[test]
        fn any_bytes_in_any_pieces(
            log in proptest::collection::vec(prop_oneof![
                any::<u8>().boxed(),
                proptest::sample::select(&b"\x1b[]m;13\n\r<\xe2\x82\xac"[..]).boxed(),
            ], 0..300),
            len in 1_usize..9,
        ) {
            let html = html_of([&*log]);
            prop_assert_eq!(&html_of(log.chunks(len)), &html);
            prop_assert_eq!(html.matches("<span").count(), html.matches("</span").count());
            prop_assert!(!html.contains(|c: char| c.is_control() && c != '\n' && c != '\t'));
        }
    }
}
