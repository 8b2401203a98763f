//! Rules for Rust files.

use super::lexer::{self, Line};
use super::{Finding, Text};

/// The only file or folder in which `unsafe` is allowed.
const UNSAFE: &str = "crates/samovar-http/src/sys";
const COLUMNS_MAX: usize = 100;
const LINES_MAX: usize = 600;

/// Applies all rules to all Rust files.
pub(super) fn check(texts: &[Text]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for text in texts.iter().filter(|text| text.path.ends_with(".rs")) {
        let lines = lexer::lines(&text.content);
        findings.extend(width(text));
        findings.extend(unfinished(&text.path, &lines));
        findings.extend(unsafe_code(&text.path, &lines));
        findings.extend(size(&text.path, lines.len()));
    }
    findings
}

/// Checks the width of comments and strings, which rustfmt leaves alone.
fn width(text: &Text) -> Vec<Finding> {
    let too_wide = |line: &str| {
        // Table rows and long words cannot be wrapped.
        let row = line
            .trim_start()
            .trim_start_matches(['/', '!'])
            .trim_start()
            .starts_with('|');
        let long_word = line
            .split_whitespace()
            .any(|word| word.chars().count() > 50);
        line.chars().count() > COLUMNS_MAX && !row && !long_word
    };
    let wide = text
        .content
        .lines()
        .enumerate()
        .filter(|(_, line)| too_wide(line));
    wide.map(|(index, _)| {
        let message = format!("wider than {COLUMNS_MAX} columns: two files must fit side by side");
        Finding::new(&text.path, index + 1, message)
    })
    .collect()
}

/// Checks that every `TODO` has an owner or a link.
fn unfinished(path: &str, lines: &[Line]) -> Vec<Finding> {
    let anonymous = |comment: &str| {
        ["TODO", "FIXME"].iter().any(|word| {
            comment.split_once(word).is_some_and(|(before, behind)| {
                // A word in backquotes is only mentioned.
                !before.ends_with('`')
                    && !behind.starts_with('(')
                    && !behind.contains("http")
                    && !behind.contains('#')
            })
        })
    };
    let found = lines
        .iter()
        .enumerate()
        .filter(|(_, line)| anonymous(&line.comment));
    found
        .map(|(index, _)| {
            let message = "a remark on unfinished work needs a link, or an owner in parentheses: \
                           otherwise it is forgotten";
            Finding::new(path, index + 1, message)
        })
        .collect()
}

/// Checks that unsafe code is in one place. Clippy checks that each block has a `SAFETY:` comment.
fn unsafe_code(path: &str, lines: &[Line]) -> Vec<Finding> {
    let lines = lines.iter().enumerate();
    lines
        .filter(|(_, line)| !path.starts_with(UNSAFE) && has_word(&line.code, "unsafe"))
        .map(|(index, _)| {
            let message =
                format!("`unsafe` outside {UNSAFE}: unsafe code is reviewed in one place");
            Finding::new(path, index + 1, message)
        })
        .collect()
}

fn has_word(code: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    code.split(|c: char| !part_of_word(c))
        .any(|found| found == word)
}

/// Checks the length of a file: a long file tends to grow further.
fn size(path: &str, count: usize) -> Option<Finding> {
    (count > LINES_MAX).then(|| {
        let message = format!("{count} lines, more than {LINES_MAX}: split it by topic");
        Finding::new(path, 0, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &str, content: &str) -> Text {
        Text {
            path: path.into(),
            content: content.into(),
        }
    }

    /// Checks that a file breaks a rule on exactly these lines.
    #[track_caller]
    fn check_lines(path: &str, content: &str, expected: &[usize]) {
        let found = check(&[text(path, content)]);
        let lines: Vec<usize> = found.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, expected, "{found:?}");
    }

    #[test]
    fn lines_longer_than_the_maximum_are_reported() {
        check_lines("a.rs", &format!("// {}", "ab ".repeat(32)), &[]);
        check_lines("a.rs", &format!("// {}", "ab ".repeat(33)), &[1]);
        check_lines("a.rs", &format!("/// | {}", "ab ".repeat(40)), &[]);
        check_lines(
            "a.rs",
            &format!("const A: &str = \"{}\";", "a".repeat(120)),
            &[],
        );
        check_lines("a.md", &"ab ".repeat(100), &[]);
    }

    #[test]
    fn a_todo_needs_an_owner_or_a_link() {
        check_lines("a.rs", "// TODO: later", &[1]);
        check_lines("a.rs", "// TODO(ada): later", &[]);
        check_lines("a.rs", "// FIXME: see https://example.org/1", &[]);
        check_lines("a.rs", "let todo = \"TODO\";", &[]);
    }

    #[test]
    fn unsafe_code_outside_its_module_is_reported() {
        let block = "fn f() {\n    unsafe { g() }\n}";
        check_lines("crates/a/src/lib.rs", block, &[2]);
        check_lines("crates/samovar-http/src/sys.rs", block, &[]);
        check_lines("crates/samovar-http/src/sys/epoll.rs", block, &[]);
        check_lines(
            "crates/a/src/lib.rs",
            "#![forbid(unsafe_code)] // no unsafe",
            &[],
        );
    }

    #[test]
    fn a_file_has_at_most_600_lines() {
        check_lines("a.rs", &"\n".repeat(600), &[]);
        check_lines("a.rs", &"\n".repeat(601), &[0]);
    }
}
