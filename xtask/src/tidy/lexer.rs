//! Splits a Rust file into code and comments, line by line.
//!
//! Recognises comments, strings and character literals only: enough that a rule about code is not
//! triggered by a string.

/// One line of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Line {
    /// The code of the line. The contents of strings are removed.
    pub(super) code: String,
    /// The comments in the line, with their slashes.
    pub(super) comment: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Code,
    LineComment,
    /// Inside block comments, nested to this depth.
    BlockComment(u32),
    /// Inside a string with backslash escapes.
    Text,
    /// Inside a raw string, which ends with a quote and this many hashes.
    RawText(usize),
}

/// Splits each line of a source file into code and comment.
pub(super) fn lines(source: &str) -> Vec<Line> {
    let mut state = State::Code;
    source.lines().map(|line| split(line, &mut state)).collect()
}

fn split(source: &str, state: &mut State) -> Line {
    let mut line = Line::default();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        // `len` is the length of the next token in bytes, and `next` the state after it.
        let (len, next) = step(rest, &line.code, *state);
        let len = if len == 0 { first.len_utf8() } else { len };
        let (token, behind) = rest.split_at(len);
        match (*state, next) {
            (State::Code, State::Code | State::Text | State::RawText(_)) => {
                line.code.push_str(token);
            }
            (State::Text | State::RawText(_), State::Code) => line.code.push('"'),
            (State::Text | State::RawText(_), _) => {}
            _ => line.comment.push_str(token),
        }
        *state = next;
        rest = behind;
    }
    if *state == State::LineComment {
        *state = State::Code;
    }
    line
}

/// Returns the length in bytes of the token at the start of `rest`, or 0 if it is a single
/// character, and the state after it.
fn step(rest: &str, code: &str, state: State) -> (usize, State) {
    match state {
        State::Code if rest.starts_with("//") => (2, State::LineComment),
        State::Code if rest.starts_with("/*") => (2, State::BlockComment(1)),
        State::Code if rest.starts_with('"') => (1, State::Text),
        State::Code if rest.starts_with('r') && !ends_in_word(code, 'b') => raw_start(rest),
        State::Code if rest.starts_with('\'') => (character_len(rest), State::Code),
        State::BlockComment(depth) if rest.starts_with("/*") => (2, State::BlockComment(depth + 1)),
        State::BlockComment(1) if rest.starts_with("*/") => (2, State::Code),
        State::BlockComment(depth) if rest.starts_with("*/") => (2, State::BlockComment(depth - 1)),
        State::Text if rest.starts_with('\\') => (
            1 + rest.chars().nth(1).map_or(0, char::len_utf8),
            State::Text,
        ),
        State::Text if rest.starts_with('"') => (1, State::Code),
        State::RawText(hashes) => {
            let end = format!("\"{}", "#".repeat(hashes));
            if rest.starts_with(&end) {
                (end.len(), State::Code)
            } else {
                (0, state)
            }
        }
        _ => (0, state),
    }
}

/// Returns whether `code` ends inside a word. A single `prefix` of a literal, as in `r"…"`, is no
/// such word.
fn ends_in_word(code: &str, prefix: char) -> bool {
    let code = code.strip_suffix(prefix).unwrap_or(code);
    code.ends_with(|last: char| last.is_alphanumeric() || last == '_')
}

fn raw_start(rest: &str) -> (usize, State) {
    let hashes = rest.chars().skip(1).take_while(|&c| c == '#').count();
    if rest.chars().nth(1 + hashes) == Some('"') {
        (hashes + 2, State::RawText(hashes))
    } else {
        (0, State::Code)
    }
}

/// Returns the length of a character literal; 1 for the quote of a lifetime.
fn character_len(rest: &str) -> usize {
    let mut characters = rest.char_indices().skip(1);
    match characters.next() {
        Some((_, '\\')) => {
            characters.next();
            rest.char_indices()
                .skip(3)
                .find(|(_, c)| *c == '\'')
                .map_or(1, |(at, _)| at + 1)
        }
        Some(_) => match characters.next() {
            Some((at, '\'')) => at + 1,
            _ => 1,
        },
        None => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, code: &str, comment: &str) {
        let lines = lines(source);
        let join = |part: fn(&Line) -> &String| {
            lines
                .iter()
                .map(|line| part(line).trim())
                .collect::<Vec<_>>()
                .join("|")
        };
        assert_eq!(
            (join(|l| &l.code), join(|l| &l.comment)),
            (code.into(), comment.into())
        );
    }

    #[test]
    fn comments_are_separated_from_code() {
        check("let a = 1; // why", "let a = 1;", "// why");
        check(
            "/* one\n/* two */ still */ code",
            "|code",
            "/* one|/* two */ still */",
        );
        check("a /* b */ c", "a  c", "/* b */");
    }

    #[test]
    fn strings_are_emptied() {
        check(r#"f("unsafe // no") // yes"#, r#"f("")"#, "// yes");
        check(r#"f("a\"b") + g"#, r#"f("") + g"#, "");
        check("f(r#\"a\"b\"#, 1)", "f(r#\"\", 1)", "");
        check("f(br\"a\\\") + g", "f(br\"\") + g", "");
        check("f(\"one\ntwo\") + g", "f(\"|\") + g", "|");
        check("for r in x {}", "for r in x {}", "");
    }

    #[test]
    fn character_literals_and_lifetimes_are_no_strings() {
        check(r#"f('"', b) // c"#, r#"f('"', b)"#, "// c");
        check(r"f('\'') // c", r"f('\'')", "// c");
        check(
            r#"fn f<'a>(x: &'a str) // "c"#,
            "fn f<'a>(x: &'a str)",
            r#"// "c"#,
        );
        check(r"f('\u{1F}', '\\') // c", r"f('\u{1F}', '\\')", "// c");
    }
}
