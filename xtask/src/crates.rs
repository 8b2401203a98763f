//! `crates`: the checks of the crates that are meant for other programs, too: each set of their
//! features compiles without warnings, `cargo package` accepts them, and no link of their READMEs
//! is relative, because it would lead nowhere on the page of a registry.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::{progress, repository, run as run_command};

/// The crates, each before those that depend on it.
const CRATES: [&str; 3] = ["samovar-http-proto", "samovar-http", "samovar-web"];

/// Features of `samovar-http` that replace a module by another one, each with and without the
/// other.
const SETS: [&str; 4] = ["", "tls", "http2", "tls,http2"];

/// Features of `samovar-http` that only add modules.
const ADDED: &str = "anyhow,compression,signals";

pub(crate) fn check() -> Result<()> {
    for set in SETS {
        for features in [set.to_owned(), format!("{set},{ADDED}")] {
            progress(&format!("samovar-http with the features [{features}]"));
            check_with("samovar-http", &features)?;
        }
    }
    // The engine without its default features.
    check_with("samovar-web", "")?;
    check_with("samovar-http-proto", "")?;
    for name in CRATES {
        let path = repository().join("crates").join(name).join("README.md");
        let text = std::fs::read_to_string(&path);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        if let Some(target) = relative_links(&text).next() {
            bail!("{}: the link to {target} is relative", path.display());
        }
    }
    package()
}

/// Compiles a library with these features only. Clippy, because its warnings can be errors without
/// another build of all dependencies.
fn check_with(package: &str, features: &str) -> Result<()> {
    cargo(&[
        "clippy",
        "--quiet",
        "--package",
        package,
        "--lib",
        "--no-default-features",
        "--features",
        features,
        "--",
        "--deny",
        "warnings",
    ])
}

/// Makes the files that a registry would get, without building what is in them.
fn package() -> Result<()> {
    let mut words = vec![
        "package",
        "--quiet",
        "--no-verify",
        "--allow-dirty",
        "--offline",
    ];
    words.extend(CRATES.iter().flat_map(|name| ["--package", name]));
    cargo(&words)
}

/// Returns the targets of links that are relative to the document.
fn relative_links(document: &str) -> impl Iterator<Item = &str> {
    let targets = document.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
    targets.filter(|target| !target.starts_with("https://") && !target.starts_with('#'))
}

fn cargo(words: &[&str]) -> Result<()> {
    run_command(Command::new("cargo").args(words).current_dir(repository()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_links_are_found() {
        let document = "[a](https://example.org/) [b](#start) [c](examples/c.rs) [d](../d.md)";
        let found: Vec<_> = relative_links(document).collect();
        assert_eq!(found, ["examples/c.rs", "../d.md"]);
    }
}
