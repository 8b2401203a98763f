//! Rules for Rust files.

use super::lexer::{self, Line};
use super::{Finding, Text};

/// The protocol modules: bytes in, events and bytes out.
const PURE: &str = "crates/samovar-http/src/proto/";
/// The only place for `unsafe`, file or folder.
const UNSAFE: &str = "crates/samovar-http/src/io/sys";
const COLUMNS_MAX: usize = 100;
const LINES_MAX: usize = 600;

/// Checks all rules on all Rust files. `ratchet` lists those that are known to be too long.
pub(super) fn check(texts: &[Text], ratchet: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for text in texts.iter().filter(|text| text.path.ends_with(".rs")) {
        let lines = lexer::lines(&text.content);
        findings.extend(width(text));
        findings.extend(unfinished(&text.path, &lines));
        findings.extend(unsafe_code(&text.path, &lines));
        if text.path.starts_with(PURE) {
            findings.extend(purity(&text.path, &lines));
        }
    }
    findings.extend(size(texts, ratchet));
    findings
}

/// rustfmt keeps code within the width, but neither comments nor strings.
fn width(text: &Text) -> Vec<Finding> {
    let too_wide = |line: &str| {
        // A table's row is one line, and a word is never broken.
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

/// What is left undone has somebody who knows about it.
fn unfinished(path: &str, lines: &[Line]) -> Vec<Finding> {
    let anonymous = |comment: &str| {
        ["TODO", "FIXME"].iter().any(|word| {
            comment.split_once(word).is_some_and(|(before, behind)| {
                // Between backquotes it is spoken about.
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
            let message = "a remark on unfinished work needs a link or, in parentheses, a name: \
                           otherwise it stays for ever";
            Finding::new(path, index + 1, message)
        })
        .collect()
}

/// Unsafe code is in one place, and every block says why it is sound.
fn unsafe_code(path: &str, lines: &[Line]) -> Vec<Finding> {
    let found = lines
        .iter()
        .enumerate()
        .filter(|(_, line)| has_word(&line.code, "unsafe"));
    found
        .filter_map(|(index, _)| {
            if !path.starts_with(UNSAFE) {
                let message = format!("`unsafe` outside {UNSAFE}: all of it must be read at once");
                return Some(Finding::new(path, index + 1, message));
            }
            let above = lines.iter().take(index).rev();
            let mut above = above.take_while(|line| line.code.trim().is_empty());
            let said = above.any(|line| line.comment.contains("SAFETY:"));
            let message = "`unsafe` without a `// SAFETY:` above it that names the invariant and \
                           who upholds it";
            (!said).then(|| Finding::new(path, index + 1, message))
        })
        .collect()
}

fn has_word(code: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    code.split(|c: char| !part_of_word(c))
        .any(|found| found == word)
}

/// The protocol modules touch nothing outside: so they can be fuzzed, and stepped through with any
/// clock. Time and bytes are arguments.
fn purity(path: &str, lines: &[Line]) -> Vec<Finding> {
    const FORBIDDEN: [&str; 6] = [
        "std::net",
        "std::fs",
        "std::thread",
        "rustix",
        "Instant::now",
        "SystemTime::now",
    ];
    let code: Vec<&str> = lines.iter().map(|line| line.code.as_str()).collect();
    let mut findings = Vec::new();
    for (line, path_used) in paths_used(&code) {
        if let Some(name) = FORBIDDEN.iter().find(|name| mentions(&path_used, name)) {
            let message = format!(
                "`{name}` in a protocol module: bytes and time come in as arguments, so that any \
                 input and any clock can be tried"
            );
            findings.push(Finding::new(path, line, message));
        }
    }
    findings.dedup();
    findings
}

fn mentions(path_used: &str, name: &str) -> bool {
    let segments: Vec<&str> = path_used.split("::").map(str::trim).collect();
    let name: Vec<&str> = name.split("::").collect();
    segments.windows(name.len()).any(|window| window == name)
}

/// Every path in the code with the line it starts on; grouped imports are written out.
fn paths_used(code: &[&str]) -> Vec<(usize, String)> {
    let mut paths = Vec::new();
    let mut import: Option<(usize, String)> = None;
    for (index, line) in code.iter().enumerate() {
        let start = line
            .trim_start()
            .trim_start_matches("pub(crate) ")
            .trim_start_matches("pub ");
        if import.is_none() && start.starts_with("use ") {
            import = Some((index + 1, String::new()));
        }
        let Some((_, text)) = &mut import else {
            let words = line.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
            paths.extend(
                words
                    .filter(|word| !word.is_empty())
                    .map(|w| (index + 1, w.to_owned())),
            );
            continue;
        };
        text.push_str(start.trim_start_matches("use "));
        if line.contains(';')
            && let Some((line, text)) = import.take()
        {
            let text = text.split(';').next().unwrap_or_default().to_owned();
            paths.extend(write_out("", &text).into_iter().map(|path| (line, path)));
        }
    }
    paths
}

/// `a::{b, c::{d, e}}` becomes `a::b`, `a::c::d`, `a::c::e`.
fn write_out(prefix: &str, tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((head, group)) = tree.split_once('{') else {
        return if tree.is_empty() {
            Vec::new()
        } else {
            vec![format!("{prefix}{tree}")]
        };
    };
    let prefix = format!("{prefix}{}", head.trim());
    let group = group.trim_end().strip_suffix('}').unwrap_or(group);
    let mut depth = 0_u32;
    let mut parts = vec![String::new()];
    for character in group.chars() {
        match character {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if character == ',' && depth == 0 {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(character);
        }
    }
    parts
        .iter()
        .flat_map(|part| write_out(&prefix, part))
        .collect()
}

/// A long file swallows what comes near it.
fn size(texts: &[Text], ratchet: &str) -> Vec<Finding> {
    const RATCHET: &str = "xtask/ratchet.txt";
    let known = ratchet.lines().filter(|line| !line.starts_with('#'));
    let known = known.filter_map(|line| line.split_once(' '));
    let known: Vec<(&str, usize)> = known
        .filter_map(|(count, path)| Some((path, count.parse().ok()?)))
        .collect();
    let mut findings = Vec::new();
    for text in texts.iter().filter(|text| text.path.ends_with(".rs")) {
        let count = text.content.lines().count();
        let listed = known
            .iter()
            .find(|(path, _)| *path == text.path)
            .map(|(_, count)| *count);
        let message = match listed {
            None if count > LINES_MAX => format!(
                "{count} lines, more than {LINES_MAX}: split it by its nouns, or list it in \
                 {RATCHET} with the reason in the commit"
            ),
            Some(limit) if count > limit => {
                format!("{count} lines, {limit} in {RATCHET}: a file this long may only shrink")
            }
            Some(limit) if count < limit => {
                format!("{count} lines, {limit} in {RATCHET}: lower the number, so it stays so")
            }
            _ => continue,
        };
        findings.push(Finding::new(&text.path, 0, message));
    }
    let gone = known
        .iter()
        .filter(|(path, _)| texts.iter().all(|text| text.path != *path));
    findings.extend(gone.map(|(path, _)| Finding::new(RATCHET, 0, format!("{path} is gone"))));
    findings
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

    /// Lines on which a file breaks a rule.
    #[track_caller]
    fn check_lines(path: &str, content: &str, expected: &[usize]) {
        let found = check(&[text(path, content)], "");
        let lines: Vec<usize> = found.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, expected, "{found:?}");
    }

    #[test]
    fn lines_fit_the_width() {
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
    fn unfinished_work_has_a_name() {
        check_lines("a.rs", "// TODO: later", &[1]);
        check_lines("a.rs", "// TODO(ada): later", &[]);
        check_lines("a.rs", "// FIXME: see https://example.org/1", &[]);
        check_lines("a.rs", "let todo = \"TODO\";", &[]);
    }

    #[test]
    fn unsafe_code_stays_where_it_is() {
        let block = "fn f() {\n    unsafe { g() }\n}";
        check_lines("crates/a/src/lib.rs", block, &[2]);
        check_lines("crates/samovar-http/src/io/sys.rs", block, &[2]);
        let said = "// SAFETY: `g` asks nothing of its caller.\n// Really.\nunsafe { g() }";
        check_lines("crates/samovar-http/src/io/sys/epoll.rs", said, &[]);
        check_lines(
            "crates/a/src/lib.rs",
            "#![forbid(unsafe_code)] // no unsafe",
            &[],
        );
    }

    #[test]
    fn protocol_modules_are_pure() {
        let proto = "crates/samovar-http/src/proto/chunk.rs";
        check_lines(proto, "use std::fs;", &[1]);
        check_lines(
            proto,
            "\nuse std::{\n    io,\n    net::{IpAddr, TcpStream},\n};",
            &[2],
        );
        check_lines(proto, "let now = std::time::Instant::now();", &[1]);
        check_lines(proto, "use rustix::event::epoll;", &[1]);
        check_lines(proto, "use std::time::{Duration, Instant};", &[]);
        check_lines(proto, "// std::fs is not used", &[]);
        check_lines("crates/samovar-http/src/io/file.rs", "use std::fs;", &[]);
    }

    #[test]
    fn grouped_imports_are_written_out() {
        let paths = write_out("", "a::{b, c::{d, e}, f}");
        assert_eq!(paths, ["a::b", "a::c::d", "a::c::e", "a::f"]);
    }

    #[test]
    fn long_files_only_shrink() {
        let long = text("a.rs", &"\n".repeat(601));
        let long = std::slice::from_ref(&long);
        assert_eq!(size(long, "").len(), 1);
        assert_eq!(size(long, "601 a.rs\n").len(), 0);
        assert_eq!(size(long, "600 a.rs\n").len(), 1);
        assert_eq!(size(long, "700 a.rs\n").len(), 1);
        assert_eq!(size(&[text("a.rs", "")], "# why\n700 gone.rs\n").len(), 1);
        assert_eq!(size(&[text("a.rs", &"\n".repeat(600))], "").len(), 0);
    }
}
