//! `quick`: the checks of a change, in a few minutes: formatting, the rules of `tidy`, clippy, the
//! unit tests of the changed packages and of those that depend on them, and the changed test
//! programs; after a change of the engine, its features and packages, too.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use cargo_metadata::{Metadata, MetadataCommand};

use crate::command::{output, progress, repository, run as run_command};
use crate::{crates, test_run, tidy};

/// Runs the checks of what has changed since the Git revision `base`. `None`: the upstream branch,
/// or the last commit if the branch has no upstream.
pub(crate) fn run(base: Option<&str>) -> Result<()> {
    let files = changed_files(base)?;
    let mut metadata = MetadataCommand::new();
    let metadata = metadata.current_dir(repository()).no_deps().exec()?;
    let packages = affected(&metadata, &files);
    let tests: BTreeSet<PathBuf> = files.into_iter().filter(|file| is_test(file)).collect();
    progress(&format!(
        "{} packages are concerned, {} changed test programs",
        packages.len(),
        tests.len()
    ));
    cargo(&["fmt", "--all", "--", "--check"])?;
    tidy::check(&repository())?;
    cargo(&[
        "clippy",
        "--workspace",
        "--lib",
        "--bins",
        "--",
        "-D",
        "warnings",
    ])?;
    if packages
        .iter()
        .any(|one| one.ends_with("crates/samovar-http"))
    {
        crates::check()?;
    }
    test_run::run_chosen(&packages, &tests)
}

fn cargo(words: &[&str]) -> Result<()> {
    run_command(Command::new("cargo").args(words).current_dir(repository()))
}

/// Returns the paths of the files that differ from `base`, including new ones.
fn changed_files(base: Option<&str>) -> Result<BTreeSet<PathBuf>> {
    let git = |words: &[&str]| output(Command::new("git").args(words).current_dir(repository()));
    let base = match base {
        Some(base) => git(&["rev-parse", "--verify", "--end-of-options", base])?,
        None => git(&["merge-base", "HEAD", "@{upstream}"])
            .or_else(|_no_upstream| git(&["rev-parse", "HEAD"]))?,
    };
    let changed = git(&["diff", "--name-only", &base])?;
    let new = git(&["ls-files", "--others", "--exclude-standard"])?;
    let lines = changed.lines().chain(new.lines());
    Ok(lines.map(|line| repository().join(line)).collect())
}

/// Whether a file is the main file of a test program.
fn is_test(file: &Path) -> bool {
    let folder = file.parent().and_then(Path::file_name);
    folder.is_some_and(|name| name == "tests") && file.extension().is_some_and(|end| end == "rs")
}

/// Returns the folders of the packages that contain one of `files`, and of those that depend on
/// them. A file outside of all packages, such as `Cargo.lock`, concerns none.
fn affected(metadata: &Metadata, files: &BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    let members = metadata.workspace_packages();
    let folder = |manifest: &Path| manifest.parent().unwrap_or(manifest).to_owned();
    let folders: Vec<PathBuf> = members
        .iter()
        .map(|package| folder(package.manifest_path.as_std_path()))
        .collect();
    // A package may be in the folder of another one.
    let of_file = |file: &PathBuf| {
        let around = folders.iter().filter(|folder| file.starts_with(folder));
        around
            .max_by_key(|folder| folder.as_os_str().len())
            .cloned()
    };
    let mut affected: BTreeSet<PathBuf> = files.iter().filter_map(of_file).collect();
    loop {
        let before = affected.len();
        for (package, folder) in members.iter().zip(&folders) {
            let mut below = package
                .dependencies
                .iter()
                .filter_map(|one| one.path.as_ref());
            if below.any(|path| affected.contains(path.as_std_path())) {
                affected.insert(folder.clone());
            }
        }
        if affected.len() == before {
            return affected;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn concerned(file: &str) -> BTreeSet<String> {
        let mut metadata = MetadataCommand::new();
        let metadata = metadata.current_dir(repository()).no_deps().exec().unwrap();
        let folders = affected(&metadata, &[repository().join(file)].into());
        let name = |path: PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        folders.into_iter().map(name).collect()
    }

    #[test]
    fn a_change_concerns_the_packages_above_it() {
        let above = concerned("crates/samovar-nix/src/lib.rs");
        assert!(
            above.contains("samovar-nix") && above.contains("nix-serve"),
            "{above:?}"
        );
        assert!(!above.contains("samovar-http"), "{above:?}");
        assert_eq!(
            concerned("conformance/chaos/src/main.rs"),
            ["chaos".to_owned()].into()
        );
        assert_eq!(concerned("README.md"), BTreeSet::new());
    }

    #[test]
    fn test_programs_are_the_files_of_tests() {
        assert!(is_test(Path::new("/a/crates/samovar/tests/uploads.rs")));
        assert!(!is_test(Path::new(
            "/a/crates/samovar/tests/support/mod.rs"
        )));
        assert!(!is_test(Path::new("/a/crates/samovar/src/main.rs")));
    }
}
