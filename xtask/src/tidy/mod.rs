//! `tidy`: rules of the repository that no other tool checks.
//!
//! | module | rules |
//! | --- | --- |
//! | [`arrows`] | crates depend on each other as ARCHITECTURE.md draws it |
//! | [`imports`] | files of a crate import each other in small circles only, layers only downwards |
//! | [`rooms`] | modules at the top level of a crate do not import each other in circles |
//! | [`methods`] | the methods of a type are in at most three files |
//! | [`functions`] | functions have at most 70 lines, or a reason to be longer |
//! | [`sleeps`] | tests wait for events; the list of their sleeps may only become shorter |
//! | [`flaky`] | the list of flaky tests names tests that exist, and may only become shorter |
//! | [`words`] | texts for users do not contain the project's private words |
//! | [`sources`] | `unsafe` in one folder only; line width; file size; `TODO` |
//! | [`manifests`] | each direct dependency has a reason beside it |
//! | [`promises`] | documents with promises name tests that exist |
//! | [`links`] | links and paths in documents have targets, and the book links all its pages |
//!
//! A rule is a function from text to findings. Its message includes the reason, so that no other
//! document is needed.

mod arrows;
mod flaky;
mod functions;
mod imports;
mod lexer;
mod links;
mod manifests;
mod methods;
mod modules;
mod promises;
mod ratchet;
mod rooms;
mod sleeps;
mod sources;
mod uses;
mod words;

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// A violation of a rule, and where it is.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    /// Path of the file, relative to the repository.
    file: String,
    /// Line number from 1; 0 for the whole file.
    line: usize,
    /// Description of the violation, with the reason for the rule.
    message: String,
}

impl Finding {
    fn new(file: &str, line: usize, message: impl Into<String>) -> Self {
        Self {
            file: file.into(),
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.message),
            line => write!(f, "{}:{line}: {}", self.file, self.message),
        }
    }
}

/// A text file of the repository.
#[derive(Debug)]
struct Text {
    /// Path of the file, relative to the repository.
    path: String,
    content: String,
}

/// Checks every rule below `repository`; prints the findings. Fails if a rule is broken, or the
/// tree cannot be read.
pub(crate) fn check(repository: &Path) -> Result<()> {
    let mut texts = Vec::new();
    read_texts(repository, "", &mut texts)?;
    let metadata = cargo_metadata::MetadataCommand::new()
        .manifest_path(repository.join("Cargo.toml"))
        .exec()
        .context("cargo cannot read the workspace")?;
    let read = |name: &str| fs::read_to_string(repository.join(name)).unwrap_or_default();

    let mut findings = arrows::check(&read("ARCHITECTURE.md"), &arrows::of_workspace(&metadata));
    findings.extend(imports::check(&texts, &read("ARCHITECTURE.md")));
    findings.extend(rooms::check(&texts, &read(rooms::LIST)));
    findings.extend(methods::check(&texts, &read(methods::LIST)));
    findings.extend(functions::check(&texts));
    findings.extend(sleeps::check(&texts, &read("xtask/sleeps.txt")));
    findings.extend(flaky::check(&texts, &read("xtask/flaky.txt")));
    findings.extend(words::check(&texts));
    findings.extend(sources::check(&texts));
    findings.extend(manifests::check(&texts));
    findings.extend(promises::check(&texts));
    findings.extend(links::check(&texts, |path| repository.join(path).exists()));

    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("tidy: {} findings", findings.len());
    }
    println!("tidy: {} files are in order", texts.len());
    Ok(())
}

/// Prints for each crate below `repository` the number of modules at the top level, of the imports
/// between them, and of the imports from a higher layer.
pub(crate) fn print_rooms(repository: &Path) -> Result<()> {
    let mut texts = Vec::new();
    read_texts(repository, "", &mut texts)?;
    println!("{}", rooms::table(&texts));
    Ok(())
}

/// Reads all Rust files, manifests, documents and dashboards below `folder`, sorted by path.
fn read_texts(repository: &Path, folder: &str, texts: &mut Vec<Text>) -> Result<()> {
    let mut entries: Vec<_> =
        fs::read_dir(repository.join(folder))?.collect::<std::io::Result<_>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() {
            name.clone()
        } else {
            format!("{folder}/{name}")
        };
        let kind = entry.file_type()?;
        // Skip build output and git's files.
        if kind.is_dir() && !name.starts_with("target") && !name.starts_with('.') {
            read_texts(repository, &path, texts)?;
        } else if kind.is_file()
            && ([".rs", ".md", "Cargo.toml"]
                .iter()
                .any(|e| name.ends_with(e))
                || words::is_dashboard(&path))
        {
            let content = fs::read_to_string(entry.path())
                .with_context(|| format!("cannot read {path} as text"))?;
            texts.push(Text { path, content });
        }
    }
    Ok(())
}
