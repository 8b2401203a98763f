//! Rule for texts that users read: no private words of this project where a common term exists.

use super::{Finding, Text};

/// Private words of the project, each with the term to use instead.
const WORDS: &[(&str, &str)] = &[
    ("mend", "fix"),
    ("mended", "fixed"),
    ("whoever", "name the person or program"),
    ("whomever", "name the person or program"),
    ("somebody", "name the person or program"),
    (
        "nobody",
        "name the person or program, or use the passive with \"not\"",
    ),
    ("so many", "give the number or its name"),
    ("of late", "recently"),
    ("under way", "in progress"),
    ("cut off", "truncated, or aborted"),
    ("broken", "damaged or invalid; a verdict of doctor: error"),
    ("doubt", "uncertain; a verdict of doctor: warning"),
    ("is to be", "must be"),
    ("are to be", "must be"),
    ("visitors", "clients"),
    ("asked for most", "requested most"),
    ("number of the process", "PID"),
];

/// Documents for users, in which the words are searched. Strings of the programs are checked, too.
const DOCUMENTS: &[&str] = &[
    "README.md",
    "COMPAT.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "ARCHITECTURE.md",
    "docs/book/",
    "crates/samovar-http-proto/README.md",
    "crates/samovar-http/README.md",
    "crates/samovar-web/README.md",
    "examples/kettles/README.md",
    "rig/README.md",
    "rig/EXERCISE.md",
];

/// Whether this file is a dashboard, whose texts users read.
pub(super) fn is_dashboard(path: &str) -> bool {
    path.starts_with("rig/grafana/dashboards/") && path.ends_with(".json")
}

/// Checks the documents for users, the dashboards, and the strings of the crates.
pub(super) fn check(texts: &[Text]) -> Vec<Finding> {
    texts.iter().flat_map(of_text).collect()
}

fn of_text(text: &Text) -> Vec<Finding> {
    let is_document = is_dashboard(&text.path)
        || DOCUMENTS
            .iter()
            .any(|name| text.path == *name || (name.ends_with('/') && text.path.starts_with(name)));
    let is_test = text.path.ends_with("tests.rs") || text.path.contains("/tests/");
    let is_source = text.path.starts_with("crates/") && text.path.contains("/src/") && !is_test;
    let mut findings = Vec::new();
    for (index, line) in text.content.lines().enumerate() {
        let read = if is_document {
            line.to_owned()
        } else if is_source && !line.trim_start().starts_with("//") {
            quoted(line)
        } else {
            continue;
        };
        for (word, better) in WORDS.iter().filter(|(word, _)| has(&read, word)) {
            let message = format!("\"{word}\" in what a user reads: {better}");
            findings.push(Finding::new(&text.path, index + 1, message));
        }
    }
    findings
}

/// Returns the text between quotes, and the whole line if it continues a multi-line string.
fn quoted(line: &str) -> String {
    if !line.contains('"') {
        // A line within a multi-line string ends in a backslash.
        return if line.ends_with('\\') {
            line.to_owned()
        } else {
            String::new()
        };
    }
    let starts_inside = line.matches('"').count() % 2 == 1 && !line.ends_with('\\');
    let mut parts = line.split('"');
    if !starts_inside {
        parts.next();
    }
    parts.step_by(2).collect::<Vec<_>>().join(" ")
}

fn has(text: &str, word: &str) -> bool {
    let lower = text.to_lowercase();
    let is_letter = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    lower.match_indices(word).any(|(at, found)| {
        !lower[..at].ends_with(is_letter) && !lower[at + found.len()..].starts_with(is_letter)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, content: &str) -> usize {
        let (path, content) = (path.into(), content.into());
        of_text(&Text { path, content }).len()
    }

    #[test]
    fn private_words_are_found_where_users_read() {
        assert_eq!(count("README.md", "Whoever asks, mends it: mend!"), 2);
        assert_eq!(count("docs/book/start.md", "nobody-knows amend mends"), 0);
        assert_eq!(count("docs/other.md", "nobody"), 0);
        let dashboard = "rig/grafana/dashboards/cache.json";
        assert_eq!(count(dashboard, "\"title\": \"Bodies under way\","), 1);
        assert_eq!(count("rig/other.json", "under way"), 0);
        let source = "crates/a/src/b.rs";
        assert_eq!(count(source, "let nobody = \"is to be\"; // nobody"), 1);
        assert_eq!(count(source, "/// nobody \"nobody\""), 0);
        assert_eq!(
            count(source, "    \"a \\\n     of late \\\n     nobody\","),
            2
        );
    }
}
