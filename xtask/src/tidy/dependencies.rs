//! Rules for all dependencies, direct or not: the lists of `deny.toml`, checked within a second and
//! without a tool, for the pre-commit hook. cargo-deny, which checks more, is part of `make check`.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::Metadata;

use super::Finding;

const FILE: &str = "deny.toml";
const OUR_REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Dependency.
#[derive(Debug, Clone)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) version: String,
    /// SPDX expression.
    pub(super) licence: String,
    pub(super) source: String,
}

/// Returns all dependencies outside the workspace, for all platforms.
pub(super) fn of_workspace(metadata: &Metadata) -> Vec<Package> {
    let foreign = metadata
        .packages
        .iter()
        .filter(|package| package.source.is_some());
    foreign
        .map(|package| Package {
            name: package.name.to_string(),
            version: package.version.to_string(),
            licence: package.license.clone().unwrap_or_default(),
            source: package
                .source
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
        })
        .collect()
}

/// Checks licences, duplicates and sources against the lists in `deny`.
pub(super) fn check(deny: &str, packages: &[Package]) -> Vec<Finding> {
    let allowed: BTreeSet<&str> = quoted_list(deny, "allow = [").into_iter().collect();
    let twice: BTreeSet<&str> = quoted_list(deny, "skip = [").into_iter().collect();
    let mut messages = Vec::new();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Package {
        name,
        version,
        licence,
        source,
    } in packages
    {
        versions.entry(name).or_default().push(version);
        if !is_allowed(licence, &allowed) {
            messages.push(format!(
                "{name} {version} is under {licence:?}, which the list of licences does not allow: \
                 what we give away must be ours to give"
            ));
        }
        if source != OUR_REGISTRY {
            messages.push(format!(
                "{name} {version} comes from {source}: only what a registry keeps can be built \
                 again next year"
            ));
        }
    }
    for (name, versions) in versions {
        if versions.len() > 1 && !twice.contains(name) {
            messages.push(format!(
                "{name} is there {} times ({}): it costs build time and binary, and types of one \
                 do not fit the other; align them or add an exception with a reason and a date",
                versions.len(),
                versions.join(", ")
            ));
        }
    }
    messages
        .into_iter()
        .map(|message| Finding::new(FILE, 0, message))
        .collect()
}

/// Returns the first quoted word of each line from `start` to the closing bracket.
fn quoted_list<'a>(document: &'a str, start: &str) -> Vec<&'a str> {
    let lines = document
        .lines()
        .skip_while(|line| line.trim() != start)
        .skip(1);
    let lines = lines.take_while(|line| line.trim() != "]");
    lines
        .filter(|line| !line.trim_start().starts_with('#'))
        .filter_map(|line| line.split('"').nth(1))
        .collect()
}

/// Returns whether allowed licences satisfy an SPDX expression. `/` is the old notation of `OR`.
fn is_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut words = words.as_slice();
    let met = any(&mut words, allowed);
    met == Some(true) && words.is_empty()
}

/// Evaluates `a OR b …`; returns `None` if it is malformed.
fn any(words: &mut &[&str], allowed: &BTreeSet<&str>) -> Option<bool> {
    let mut met = all(words, allowed)?;
    while let ["OR", rest @ ..] = *words {
        *words = rest;
        met |= all(words, allowed)?;
    }
    Some(met)
}

/// Evaluates `a AND b …`, which binds tighter.
fn all(words: &mut &[&str], allowed: &BTreeSet<&str>) -> Option<bool> {
    let mut met = one(words, allowed)?;
    while let ["AND", rest @ ..] = *words {
        *words = rest;
        met &= one(words, allowed)?;
    }
    Some(met)
}

fn one(words: &mut &[&str], allowed: &BTreeSet<&str>) -> Option<bool> {
    match *words {
        ["(", rest @ ..] => {
            *words = rest;
            let met = any(words, allowed)?;
            let [")", rest @ ..] = *words else {
                return None;
            };
            *words = rest;
            Some(met)
        }
        [licence, "WITH", exception, rest @ ..] => {
            *words = rest;
            Some(allowed.contains(format!("{licence} WITH {exception}").as_str()))
        }
        [licence, rest @ ..] if !matches!(*licence, ")" | "AND" | "OR" | "WITH") => {
            *words = rest;
            Some(allowed.contains(licence))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_licence(expression: &str, expected: bool) {
        let allowed = BTreeSet::from(["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"]);
        assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
    }

    #[test]
    fn licence_expressions() {
        check_licence("MIT", true);
        check_licence("GPL-3.0-only", false);
        check_licence("", false);
        check_licence("GPL-3.0-only OR MIT", true);
        check_licence("GPL-3.0-only AND MIT", false);
        check_licence("MIT/Apache-2.0", true);
        check_licence("(MIT OR GPL-3.0-only) AND Apache-2.0", true);
        check_licence("(MIT OR GPL-3.0-only) AND OpenSSL", false);
        check_licence("Apache-2.0 WITH LLVM-exception", true);
        check_licence("MIT WITH LLVM-exception", false);
        check_licence("MIT OR (", false);
        check_licence("MIT MIT", false);
    }

    const DENY: &str =
        "allow = [\n    \"MIT\",\n]\nskip = [\n    # \"why\"\n    { crate = \"b\" },\n]";

    fn package(name: &str, version: &str) -> Package {
        Package {
            name: name.into(),
            version: version.into(),
            licence: "MIT".into(),
            source: OUR_REGISTRY.into(),
        }
    }

    #[test]
    fn duplicates_and_sources() {
        assert!(
            check(
                DENY,
                &[package("a", "1"), package("b", "1"), package("b", "2")]
            )
            .is_empty()
        );
        assert_eq!(
            check(DENY, &[package("a", "1"), package("a", "2")]).len(),
            1
        );
        let fork = Package {
            source: "git+https://example.org/a".into(),
            ..package("a", "1")
        };
        assert_eq!(check(DENY, &[fork]).len(), 1);
        let other = Package {
            licence: "GPL-3.0-only".into(),
            ..package("a", "1")
        };
        assert_eq!(check(DENY, &[other]).len(), 1);
    }
}
