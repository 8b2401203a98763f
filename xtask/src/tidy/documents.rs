//! Rules for the documents in the repository's top folder.

use super::{Finding, Text};

const DOCUMENTS: [&str; 3] = ["README.md", "ARCHITECTURE.md", "COMPAT.md"];

/// Folders whose paths are checked where they are in backquotes.
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

/// Checks that paths named in documents exist, because a stale path makes newcomers distrust the
/// rest.
pub(super) fn check(texts: &[Text], exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for document in texts
        .iter()
        .filter(|text| DOCUMENTS.contains(&text.path.as_str()))
    {
        for (index, line) in document.content.lines().enumerate() {
            for path in cited(line) {
                if !exists(path) {
                    let message = format!("names {path}, which does not exist");
                    findings.push(Finding::new(&document.path, index + 1, message));
                }
            }
        }
    }
    findings
}

/// Returns targets of links, and paths in backquotes.
fn cited(line: &str) -> Vec<&str> {
    let links = line
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    let links = links.filter(|target| !target.contains("://") && !target.starts_with('#'));
    let links = links.filter_map(|target| target.split('#').next());
    let quoted = line.split('`').skip(1).step_by(2);
    let quoted = quoted.filter(|text| FOLDERS.iter().any(|folder| text.starts_with(folder)));
    // Patterns and commands are no paths.
    let quoted = quoted.filter(|text| !text.contains([' ', '*', '{', '<', '…', '$']));
    links.chain(quoted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_paths_are_found() {
        assert_eq!(
            cited("see [a](docs/a.md#top) and `crates/b/src/`."),
            ["docs/a.md", "crates/b/src/"]
        );
        assert!(
            cited("[a](https://example.org) [b](#c) `cargo run` `crates/*/src` `nix/store`")
                .is_empty()
        );
    }

    #[test]
    fn only_what_is_gone_is_reported() {
        let text = |path: &str| Text {
            path: path.into(),
            content: "`xtask/a` `xtask/b`".into(),
        };
        let found = check(&[text("README.md"), text("docs/notes.md")], |path| {
            path == "xtask/a"
        });
        assert_eq!(
            found,
            [Finding::new(
                "README.md",
                1,
                "names xtask/b, which does not exist"
            )]
        );
    }
}
