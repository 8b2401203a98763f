//! Rules for the dependencies between the workspace's crates.

use std::collections::BTreeSet;

use cargo_metadata::{DependencyKind, Metadata};

use super::Finding;

const FILE: &str = "ARCHITECTURE.md";
const FENCE: &str = "```arrows";

/// A dependency between two crates, `(from, to)`: the first has the second as a normal dependency.
pub(super) type Arrow = (String, String);

/// Returns the normal dependencies between the workspace's crates. Dev-dependencies are left out.
pub(super) fn of_workspace(metadata: &Metadata) -> BTreeSet<Arrow> {
    let members = metadata.workspace_packages();
    let names: BTreeSet<&str> = members
        .iter()
        .map(|package| package.name.as_str())
        .collect();
    let mut arrows = BTreeSet::new();
    for package in &members {
        for dependency in &package.dependencies {
            let normal = dependency.kind == DependencyKind::Normal;
            if normal && names.contains(dependency.name.as_str()) {
                arrows.insert((package.name.to_string(), dependency.name.clone()));
            }
        }
    }
    arrows
}

/// Compares the dependencies that ARCHITECTURE.md draws with the actual ones.
pub(super) fn check(document: &str, built: &BTreeSet<Arrow>) -> Vec<Finding> {
    let Some(drawn) = drawn(document) else {
        let message = format!(
            "has no block {FENCE} with a line `a -> b` for each dependency between crates; \
             the block makes new dependencies visible in reviews"
        );
        return vec![Finding::new(FILE, 0, message)];
    };
    let new = built.difference(&drawn).map(|(from, to)| {
        format!(
            "does not show `{from} -> {to}`: a new dependency between crates needs a decision in \
             docs/decisions/ first"
        )
    });
    let gone = drawn.difference(built).map(|(from, to)| {
        format!("shows `{from} -> {to}`, which is no dependency: remove the arrow")
    });
    new.chain(gone)
        .map(|message| Finding::new(FILE, 0, message))
        .collect()
}

/// Parses the block of dependencies in ARCHITECTURE.md; `None` if there is none. A line may have
/// several targets: `a -> b, c`.
fn drawn(document: &str) -> Option<BTreeSet<Arrow>> {
    let mut lines = document.lines().skip_while(|line| line.trim() != FENCE);
    lines.next()?;
    let block = lines.take_while(|line| line.trim() != "```");
    Some(
        block
            .filter_map(|line| line.split_once("->"))
            .flat_map(|(from, targets)| {
                targets
                    .split(',')
                    .map(|to| (from.trim().to_owned(), to.trim().to_owned()))
            })
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(arrows: &[(&str, &str)]) -> BTreeSet<Arrow> {
        arrows
            .iter()
            .map(|(from, to)| ((*from).into(), (*to).into()))
            .collect()
    }

    const DOCUMENT: &str = "# A\n\n```arrows\na -> b, c\nb -> c\n```\nc -> a is prose\n";

    #[test]
    fn the_arrows_block_is_parsed() {
        assert_eq!(
            drawn(DOCUMENT),
            Some(set(&[("a", "b"), ("a", "c"), ("b", "c")]))
        );
        assert_eq!(drawn("# nothing"), None);
    }

    #[test]
    fn missing_and_obsolete_arrows_are_reported() {
        assert!(check(DOCUMENT, &set(&[("a", "b"), ("a", "c"), ("b", "c")])).is_empty());
        let findings = check(DOCUMENT, &set(&[("a", "b"), ("b", "c"), ("c", "a")]));
        assert_eq!(findings.len(), 2);
        assert!(findings[0].message.contains("does not show `c -> a`"));
        assert!(findings[1].message.contains("shows `a -> c`"));
        assert_eq!(check("", &set(&[])).len(), 1);
    }
}
