//! Rules for the manifests of crates.

use super::{Finding, Text};

/// Checks that each direct dependency has a reason beside it. Crates of the workspace are exempt:
/// their reason is the arrow in ARCHITECTURE.md.
pub(super) fn check(texts: &[Text]) -> Vec<Finding> {
    let manifests = texts
        .iter()
        .filter(|text| text.path.ends_with("/Cargo.toml"));
    manifests
        .flat_map(|text| unexplained(&text.path, &text.content))
        .collect()
}

fn unexplained(path: &str, manifest: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut in_dependencies = false;
    let mut line_above = "";
    for (index, line) in manifest.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            in_dependencies = line.trim_end_matches(']').ends_with("dependencies");
        } else if in_dependencies
            && let Some(name) = dependency(line)
            && !name.starts_with("samovar")
            && !line_above.starts_with('#')
            && !line.contains(" # ")
        {
            let message = format!(
                "`{name}` has no comment above it: state what the dependency saves and what it \
                 brings with it"
            );
            findings.push(Finding::new(path, index + 1, message));
        }
        line_above = line;
    }
    findings
}

/// Returns the name in `name = …` or `name.workspace = …`; `None` for lines inside a longer value.
fn dependency(line: &str) -> Option<&str> {
    let (key, _) = line.split_once('=')?;
    let name = key.trim().split('.').next()?;
    let plain = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    (!line.starts_with('#') && !name.is_empty() && name.chars().all(plain)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_lines(manifest: &str, expected: &[usize]) {
        let found = unexplained("crates/a/Cargo.toml", manifest);
        assert_eq!(
            found.iter().map(|finding| finding.line).collect::<Vec<_>>(),
            expected
        );
    }

    #[test]
    fn a_dependency_needs_a_comment_with_its_reason() {
        check_lines("[dependencies]\nanyhow = \"1\"\n", &[2]);
        check_lines(
            "[dependencies]\n# Errors.\nanyhow = \"1\"\nlibc.workspace = true\n",
            &[4],
        );
        check_lines("[dependencies]\nanyhow = \"1\" # Errors.\n", &[]);
        check_lines(
            "[dev-dependencies]\ntempfile = { workspace = true }\n",
            &[2],
        );
        check_lines(
            "[dependencies]\nsamovar-nix.workspace = true\n[lints]\na = true\n",
            &[],
        );
    }
}
