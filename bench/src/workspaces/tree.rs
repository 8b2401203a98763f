//! The tree of small files that is measured.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use testkit::small_files::small_files;

/// Dependencies of a new Angular project, as `ng new` writes them.
const PACKAGE: &str = include_str!("package.json");

/// The version of TypeScript that replaces the installed one, which is newer.
const TYPESCRIPT: &str = "typescript@4.9.4";

/// Number by which the generated tree is divided for a check.
const CHECK_SHRINK: usize = 300;

/// A tree of small files, and what npm needs to install it.
#[derive(Debug)]
pub(super) struct Tree {
    /// The directory with the files.
    pub(super) files: PathBuf,
    /// The directory of an npm project, if the files are its `node_modules`.
    pub(super) project: Option<PathBuf>,
    /// Sentence for the report.
    pub(super) remark: String,
    _generated: Option<tempfile::TempDir>,
}

impl Tree {
    /// Opens the tree in `dir`. Without `dir`, generates the files below `parent`, few of them if
    /// `is_check`.
    pub(super) fn open(dir: &Path, parent: &Path, is_check: bool) -> Result<Self> {
        if dir.as_os_str().is_empty() {
            return Self::generate(parent, if is_check { CHECK_SHRINK } else { 1 });
        }
        let dir = dir.canonicalize()?;
        let is_project = dir.join("package-lock.json").exists();
        let files = if is_project {
            dir.join("node_modules")
        } else {
            dir.clone()
        };
        ensure!(files.is_dir(), "{} is not a directory", files.display());
        Ok(Self {
            remark: format!("The files are in {}.", files.display()),
            files,
            project: is_project.then_some(dir),
            _generated: None,
        })
    }

    fn generate(parent: &Path, shrink: usize) -> Result<Self> {
        crate::progress("generating the files");
        let dir = tempfile::Builder::new()
            .prefix("samovar-bench-")
            .tempdir_in(parent)?;
        let files = dir.path().join("node_modules");
        small_files(shrink).write_tree(&files)?;
        Ok(Self {
            files,
            project: None,
            remark: "The files are generated; without npm, not all rows are measured.".into(),
            _generated: Some(dir),
        })
    }

    /// Returns the directory with the other version of TypeScript, if it is there.
    pub(super) fn other_typescript(&self) -> Option<PathBuf> {
        let dir = self
            .project
            .as_ref()?
            .join(".other/node_modules/typescript");
        dir.is_dir().then_some(dir)
    }
}

/// Installs an Angular project with npm into `dir` if it is empty. The packages are in a directory
/// beside the files, so that they can be installed again without the network.
pub(super) fn install(dir: &Path) -> Result<()> {
    let is_empty = fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none());
    if !is_empty || dir.as_os_str().is_empty() {
        return Ok(());
    }
    crate::progress("npm installs an Angular project");
    let other = dir.join(".other");
    fs::create_dir_all(&other)?;
    fs::write(dir.join("package.json"), PACKAGE)?;
    fs::write(other.join("package.json"), "{}")?;
    for (project, package) in [(dir, None), (&other, Some(TYPESCRIPT))] {
        let mut npm = Command::new("npm");
        npm.arg("install").args(package).current_dir(project);
        // Without the addresses of the packages, `npm ci` needs the registry.
        npm.arg("--omit-lockfile-registry-resolved=false");
        npm.args(["--ignore-scripts", "--no-audit", "--no-fund", "--cache"]);
        let done = npm.arg(dir.canonicalize()?.join(".npm")).output();
        let done = done.context("npm is needed to install the files")?;
        let said = String::from_utf8_lossy(&done.stderr);
        ensure!(
            done.status.success(),
            "cannot install the project: empty {}, then try again: {}",
            dir.display(),
            said.trim_end()
        );
    }
    Ok(())
}
