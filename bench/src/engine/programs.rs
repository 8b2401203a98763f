//! Builds the servers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Where the built programs are.
#[derive(Debug)]
pub(crate) struct Programs {
    /// Directory of the servers that use samovar-http.
    pub(crate) examples: PathBuf,
    /// Directory of the rivals in Rust.
    pub(crate) rivals: PathBuf,
    pub(crate) go: PathBuf,
    /// Directory of Java's classes.
    pub(crate) java: PathBuf,
}

/// Returns the places beside this program.
pub(crate) fn programs() -> Programs {
    let program = std::env::current_exe().unwrap_or_default();
    let own = program.parent().unwrap_or(Path::new("."));
    let rivals = own.with_file_name("rivals");
    Programs {
        examples: own.join("examples"),
        go: rivals.join("rival-go"),
        java: rivals.join("java"),
        rivals: rivals.join("release"),
    }
}

/// Builds our servers.
pub(crate) fn build_ours() -> Result<()> {
    let bench = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let programs = programs();
    let target = programs.examples.ancestors().nth(2);
    let target = target.context("a program is in target/release")?;
    cargo(&bench.join("Cargo.toml"), target, "--examples")
}

/// Builds all servers whose languages are installed.
pub(crate) fn build() -> Result<()> {
    crate::progress("building the servers (the first time: some minutes)");
    build_ours()?;
    let rivals = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("rivals");
    let programs = programs();
    let target = programs.rivals.parent().context("rivals/release")?;
    cargo(&rivals.join("Cargo.toml"), target, "--bins")?;
    fs::create_dir_all(&programs.java)?;
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(&programs.go).arg(".");
    other(go.current_dir(rivals.join("go")), "Go")?;
    let mut javac = Command::new("javac");
    javac.arg("-d").arg(&programs.java);
    other(javac.arg(rivals.join("java/Rival.java")), "Java")
}

fn cargo(manifest: &Path, target: &Path, what: &str) -> Result<()> {
    let status = Command::new("cargo")
        .args(["build", "--release", "--quiet", what, "--manifest-path"])
        .arg(manifest)
        .arg("--target-dir")
        .arg(target)
        .status()
        .context("cannot start cargo")?;
    ensure!(status.success(), "{} does not build", manifest.display());
    Ok(())
}

/// Runs a compiler that may be missing.
fn other(compiler: &mut Command, language: &str) -> Result<()> {
    match compiler.status() {
        Ok(status) => ensure!(status.success(), "the rival in {language} does not build"),
        Err(error) => crate::progress(&format!("no rival in {language}: {error}")),
    }
    Ok(())
}
