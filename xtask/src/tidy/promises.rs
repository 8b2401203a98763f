//! Rule that a document with promises names tests that exist: the last column of its tables with
//! the head `test`, and the end of each item that begins in bold.

use std::collections::BTreeSet;

use super::{Finding, Text};

/// Documents with promises.
const DOCUMENTS: [&str; 3] = [
    "docs/book/upstreams.md",
    "docs/reliability.md",
    "docs/threat-model.md",
];

/// Checks the documents with promises among `texts` against the tests among them.
pub(super) fn check(texts: &[Text]) -> Vec<Finding> {
    let tests = Tests::of(texts);
    let documents = texts.iter().filter(|text| DOCUMENTS.contains(&&*text.path));
    documents
        .flat_map(|text| of_document(text, &tests))
        .collect()
}

fn of_document(text: &Text, tests: &Tests<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lines: Vec<&str> = text.content.lines().collect();
    let mut is_table_of_tests = false;
    for (index, line) in lines.iter().enumerate() {
        let cell = line
            .strip_suffix('|')
            .and_then(|row| row.rsplit('|').next());
        is_table_of_tests = match cell {
            Some(cell) => is_table_of_tests || cell.trim() == "test",
            None => false,
        };
        let named = match cell.filter(|_| is_table_of_tests) {
            Some(cell) => spans(cell).map(str::to_owned).collect(),
            None if line.starts_with("* **") => {
                let item = item(&lines[index..]);
                if !item.contains('`') && !item.contains("by hand") {
                    let message = "no test: name the one that shows that the promise holds";
                    findings.push(Finding::new(&text.path, index + 1, message));
                }
                spans(&item)
                    .filter(|span| is_named(span))
                    .map(str::to_owned)
                    .collect()
            }
            None => Vec::new(),
        };
        for span in named {
            for name in names(&span).filter(|name| !tests.have(name)) {
                let message = format!("`{name}` is no test: correct the name");
                findings.push(Finding::new(&text.path, index + 1, message));
            }
        }
    }
    findings
}

/// Returns the text of the list item that the first line begins.
fn item(lines: &[&str]) -> String {
    let rest = lines.iter().skip(1);
    let rest = rest.take_while(|line| line.starts_with("  "));
    lines
        .iter()
        .take(1)
        .chain(rest)
        .fold(String::new(), |all, line| all + line + " ")
}

/// Returns the texts in backquotes.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Whether a span in running text names tests, as `nix-serve: hold` does.
fn is_named(span: &str) -> bool {
    span.starts_with("nix-serve: ") || span.starts_with("samovar: ") || span.contains("--test ")
}

/// Returns the names of tests in a span: of `nix-serve: hold, pages`, `--test hold`,
/// `crates/nix-serve/tests/hold` or `hold::a_test`.
fn names(span: &str) -> impl Iterator<Item = &str> {
    let is_command = span.contains("--test ");
    let list = match span.split_once(": ") {
        Some((_, list)) if !is_command => list,
        _ => span,
    };
    let after_option = span.split("--test ").skip(1);
    let after_option = after_option.filter_map(|rest| rest.split(' ').next());
    let is_list = !is_command && !list.contains(['=', '{', '<', '…']) && !list.starts_with('-');
    let listed = list.split(", ").filter(move |_| is_list);
    let listed = listed.filter_map(|name| name.rsplit(['/', ':']).next());
    let all = after_option.filter(move |_| is_command).chain(listed);
    all.filter(|name| name.contains(|c: char| c.is_ascii_lowercase()) && !name.contains([' ', '.']))
}

/// The names of everything that a document may name as a test.
struct Tests<'a>(BTreeSet<&'a str>);

impl<'a> Tests<'a> {
    /// Collects the crates, the files of tests and fuzz targets, and the functions and modules of
    /// files with tests.
    fn of(texts: &'a [Text]) -> Self {
        let mut names = BTreeSet::new();
        for text in texts.iter().filter(|text| text.path.ends_with(".rs")) {
            let crate_path = text.path.strip_prefix("crates/");
            names.extend(crate_path.and_then(|path| path.split('/').next()));
            let path = text.path.trim_end_matches(".rs").trim_end_matches("/main");
            if path.contains("/tests/") || path.starts_with("fuzz/") {
                names.extend(path.rsplit('/').next());
            }
            if text.content.contains("#[test]") {
                names.extend(path.trim_end_matches("/mod").rsplit('/').next());
                let functions = text.content.split("fn ").skip(1);
                names.extend(functions.filter_map(|rest| rest.split(['(', '<']).next()));
                names.extend(text.content.contains("\nmod tests {").then_some("tests"));
            }
        }
        Self(names)
    }

    fn have(&self, name: &str) -> bool {
        self.0.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_document(document: &str, expected: &[&str]) {
        let text = |path: &str, content: &str| Text {
            path: path.to_owned(),
            content: content.to_owned(),
        };
        let texts = [
            text(
                "crates/nix-serve/tests/hold.rs",
                "#[test]\nfn paths_stay() {}\n",
            ),
            text("docs/reliability.md", document),
        ];
        let findings = check(&texts);
        let messages: Vec<_> = findings.iter().map(|found| &*found.message).collect();
        assert_eq!(messages, expected, "{document}");
    }

    #[test]
    fn tests_in_items_exist() {
        check_document("* **It holds.**\n  `nix-serve: hold`\n", &[]);
        check_document(
            "* **It holds.** `cargo test -p nix-serve --test hold -- -x`\n",
            &[],
        );
        check_document(
            "* **It holds.** `samovar: hold, gone`, `--test away`, `access.rate`\n",
            &[
                "`gone` is no test: correct the name",
                "`away` is no test: correct the name",
            ],
        );
        check_document(
            "* **It holds.** Text.\n* Other.\n",
            &["no test: name the one that shows that the promise holds"],
        );
    }

    #[test]
    fn tests_in_tables_exist() {
        let table = |cell: &str| format!("| promise | test |\n|---|---|\n| a | {cell} |\n");
        check_document(
            &table("`hold`, `crates/nix-serve/tests/hold`: `paths_stay`"),
            &[],
        );
        check_document(
            &table("`hold`, `gone`"),
            &["`gone` is no test: correct the name"],
        );
        check_document("| promise | value |\n|---|---|\n| a | `gone` |\n", &[]);
    }
}
