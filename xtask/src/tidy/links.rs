//! Rules for links and paths in documents, and for the book's table of contents.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Text};

/// The folder of the book's pages.
const BOOK: &str = "docs/book/";
const SUMMARY: &str = "docs/book/SUMMARY.md";

/// Documents in which paths in backquotes are checked, too.
const OVERVIEWS: [&str; 3] = ["README.md", "ARCHITECTURE.md", "COMPAT.md"];

/// Text in backquotes is a path if it starts with one of these.
const FOLDERS: [&str; 9] = [
    "crates/",
    "docs/",
    "xtask/",
    "bench/",
    "testdata/",
    "fuzz/",
    "conformance/",
    "examples/",
    ".ci/",
];

/// Checks that links have existing targets, that paths in [`OVERVIEWS`] exist, and that every page
/// of the book is linked.
pub(super) fn check(texts: &[Text], exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let documents = texts.iter().filter(|text| text.path.ends_with(".md"));
    let documents: BTreeMap<&str, &Text> =
        documents.map(|text| (text.path.as_str(), text)).collect();
    let mut findings = Vec::new();
    let mut named = BTreeSet::new();
    for document in documents.values() {
        for (line, target) in targets(&document.content) {
            let (path, anchor) = match target.split_once('#') {
                Some((path, anchor)) => (path, Some(anchor)),
                None => (target, None),
            };
            let path = match path {
                "" => document.path.clone(),
                path => beside(&document.path, path),
            };
            let message = match (documents.get(path.as_str()), anchor) {
                (Some(there), Some(anchor)) if !anchors(&there.content).contains(anchor) => {
                    format!("leads to {path}#{anchor}, a heading that is not there")
                }
                (None, _) if !exists(&path) => format!("leads to {path}, which does not exist"),
                _ => String::new(),
            };
            if !message.is_empty() {
                findings.push(Finding::new(&document.path, line, message));
            }
            if document.path == SUMMARY && !named.insert(path.clone()) {
                let message = format!("names {path} twice: a page has one place in the book");
                findings.push(Finding::new(SUMMARY, line, message));
            }
        }
    }
    for document in OVERVIEWS.iter().filter_map(|path| documents.get(path)) {
        for (index, line) in document.content.lines().enumerate() {
            for path in quoted_paths(line).filter(|path| !exists(path)) {
                let message = format!("names {path}, which does not exist");
                findings.push(Finding::new(&document.path, index + 1, message));
            }
        }
    }
    let pages: BTreeSet<String> = documents
        .keys()
        .filter(|path| path.starts_with(BOOK) && **path != SUMMARY)
        .map(|path| (*path).to_owned())
        .collect();
    findings.extend(pages.difference(&named).map(|path| {
        let message = format!("is not named in {SUMMARY}, so it is no page of the book");
        Finding::new(path, 0, message)
    }));
    findings.extend(named.difference(&pages).map(|path| {
        let message = format!("names {path}, which is not below {BOOK}: mdBook cannot show it");
        Finding::new(SUMMARY, 0, message)
    }));
    findings
}

/// Returns the targets of links within the repository, with their line numbers. Skips code.
fn targets(content: &str) -> Vec<(usize, &str)> {
    let mut targets = Vec::new();
    for (line, text) in prose(content) {
        // Text in backquotes is code, unless it is within the text of a link.
        let mut rest = text;
        while let Some(at) = rest.find("](") {
            let before = &text[..text.len() - rest.len() + at];
            rest = &rest[at + 2..];
            let is_code = before.matches('`').count() % 2 == 1;
            let target = rest.split([')', ' ']).next().unwrap_or_default();
            let is_elsewhere = target.contains(':');
            if !is_code && !is_elsewhere && !target.is_empty() {
                targets.push((line, target));
            }
        }
    }
    targets
}

/// Returns the paths in backquotes in a line. Leaves out patterns and commands.
fn quoted_paths(line: &str) -> impl Iterator<Item = &str> {
    let quoted = line.split('`').skip(1).step_by(2);
    quoted
        .filter(|text| FOLDERS.iter().any(|folder| text.starts_with(folder)))
        .filter(|text| !text.contains([' ', '*', '{', '<', '…', '$']))
}

/// Returns the lines outside code fences, each with its number from 1.
fn prose(content: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_fenced = false;
    let lines = content.lines().enumerate();
    lines.filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        (!is_fenced && !is_fence).then_some((index + 1, line))
    })
}

/// Returns the anchors of headings: lower-case letters, digits, `-` and `_`, with `-` for spaces.
fn anchors(content: &str) -> BTreeSet<String> {
    let headings = prose(content).filter_map(|(_, line)| {
        let text = line.trim_start_matches('#');
        (text.len() < line.len()).then(|| text.trim().to_lowercase())
    });
    let is_kept = |letter: &char| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_');
    let slug = |heading: String| -> String {
        let kept = heading.chars().filter(is_kept);
        kept.map(|letter| if letter == ' ' { '-' } else { letter })
            .collect()
    };
    headings.map(slug).collect()
}

/// Resolves the target of a link in `document` to a path relative to the repository.
fn beside(document: &str, target: &str) -> String {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "" | "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_texts(texts: &[(&str, &str)], expected: &[(&str, usize, &str)]) {
        let text = |&(path, content): &(&str, &str)| Text {
            path: path.into(),
            content: content.into(),
        };
        let texts: Vec<Text> = texts.iter().map(text).collect();
        let found = check(&texts, |path| path == "src/there.rs" || path == "docs");
        let finding =
            |&(path, line, message): &(&str, usize, &str)| Finding::new(path, line, message);
        let expected: Vec<Finding> = expected.iter().map(finding).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn links_to_missing_files_are_reported() {
        check_texts(
            &[
                ("docs/a.md", "[b](../b.md)\n[c](c.md) [d](../src/there.rs)"),
                (
                    "b.md",
                    "[docs](./docs/) [web](https://e.org/x) [mail](mailto:a@e.org)",
                ),
            ],
            &[("docs/a.md", 2, "leads to docs/c.md, which does not exist")],
        );
    }

    #[test]
    fn anchors_without_a_heading_are_reported() {
        check_texts(
            &[
                (
                    "a.md",
                    "[1](#own) [2](b.md#its-503-heading)\n[3](#gone) [4](b.md#own)\n# Own",
                ),
                ("b.md", "## Its 503, `heading`\n```\n# own\n```"),
            ],
            &[
                ("a.md", 2, "leads to a.md#gone, a heading that is not there"),
                ("a.md", 2, "leads to b.md#own, a heading that is not there"),
            ],
        );
    }

    #[test]
    fn links_in_code_are_ignored() {
        check_texts(
            &[(
                "a.md",
                "`v[0](x)` is code, [`this`](gone.md) is not\n```\n[x](y)\n```",
            )],
            &[("a.md", 1, "leads to gone.md, which does not exist")],
        );
    }

    #[test]
    fn missing_paths_in_overviews_are_reported() {
        let text = "`docs/gone.md` `docs` `crates/*/src` `cargo run docs/`";
        let message = "names docs/gone.md, which does not exist";
        check_texts(
            &[("README.md", text), ("docs/notes.md", text)],
            &[("README.md", 1, message)],
        );
    }

    #[test]
    fn the_summary_names_every_page_once() {
        check_texts(
            &[
                (SUMMARY, "[a](a.md)\n[a](a.md)\n[out](../out.md)"),
                ("docs/book/a.md", ""),
                ("docs/book/lost.md", ""),
                ("docs/out.md", ""),
            ],
            &[
                (
                    SUMMARY,
                    2,
                    "names docs/book/a.md twice: a page has one place in the book",
                ),
                (
                    "docs/book/lost.md",
                    0,
                    "is not named in docs/book/SUMMARY.md, so it is no page of the book",
                ),
                (
                    SUMMARY,
                    0,
                    "names docs/out.md, which is not below docs/book/: mdBook cannot show it",
                ),
            ],
        );
    }
}
