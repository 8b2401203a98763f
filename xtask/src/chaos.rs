//! `chaos`: everything at once against the built server; see `conformance/chaos`.

use std::process::Command;

use anyhow::Result;

use crate::command::{progress, run};
use crate::repository;

/// Where the server's log stays.
const OUT: &str = ".samovar/chaos";

/// Runs for so long, with this seed or with another each time.
///
/// # Errors
///
/// If something does not build, or something is found.
pub(crate) fn run_chaos(seconds: &str, seed: Option<&str>) -> Result<()> {
    let repository = repository();
    progress("building (the first time: some minutes)");
    // As `cargo test` builds them: with what is asserted in them, and nothing is built twice.
    run(Command::new("cargo")
        .args(["build", "--workspace", "--bins", "--tests"])
        .current_dir(&repository))?;
    let mut metadata = cargo_metadata::MetadataCommand::new();
    let metadata = metadata.current_dir(&repository).no_deps().exec()?;
    let programs = metadata.target_directory.join("debug");
    let mut chaos = Command::new(programs.join("samovar-chaos"));
    chaos
        .arg("--server")
        .arg(programs.join("nix-serve"))
        .args(["--seconds", seconds])
        .arg("--out")
        .arg(repository.join(OUT));
    if let Some(seed) = seed {
        chaos.args(["--seed", seed]);
    }
    run(&mut chaos)
}
