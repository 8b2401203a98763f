//! `chaos`, `soak` and `leaks`: everything at once against the built server, for long, and under
//! valgrind; see `conformance/chaos`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::command::{build_as_tested, find, repository, run};
use crate::serve;

/// How long the server is driven under valgrind.
const LEAKS_SECONDS: &str = "15";

/// Runs for so long, with this seed or with another each time.
///
/// # Errors
///
/// If something does not build, or something is found.
pub(crate) fn run_chaos(seconds: &str, seed: Option<&str>) -> Result<()> {
    let programs = build()?;
    let mut words = vec!["--seconds", seconds];
    if let Some(seed) = seed {
        words.extend(["--seed", seed]);
    }
    run_on(&programs, &programs.join("nix-serve"), "chaos", &words)
}

/// Runs that many requests against the release build; the chart and its figures go into `docs/`.
///
/// # Errors
///
/// If something does not build, an answer is wrong, or what the server holds rises.
pub(crate) fn run_soak(requests: &str) -> Result<()> {
    let programs = build()?;
    let words = ["--requests", requests];
    let found = run_on(&programs, &serve::build()?, "soak", &words);
    for name in ["soak.csv", "soak.svg"] {
        let (from, to) = (out("soak").join(name), repository().join("docs").join(name));
        fs::copy(from, to)?;
    }
    found
}

/// Drives the release build under valgrind over all routes.
///
/// # Errors
///
/// If something does not build, or something is lost.
pub(crate) fn find_leaks() -> Result<()> {
    if find("valgrind").is_none() {
        bail!("valgrind is missing: `make setup-test` installs it");
    }
    let programs = build()?;
    let words = ["--valgrind", LEAKS_SECONDS];
    run_on(&programs, &serve::build()?, "leaks", &words)
}

/// With what is asserted in it. Where programs are.
fn build() -> Result<PathBuf> {
    // With the tests, features of dependencies are those that they were built with.
    build_as_tested(&["--tests", "--bin", "nix-serve", "--bin", "samovar-chaos"])
}

/// Where logs and results stay.
fn out(name: &str) -> PathBuf {
    repository().join(".samovar").join(name)
}

fn run_on(programs: &Path, server: &Path, name: &str, words: &[&str]) -> Result<()> {
    run(Command::new(programs.join("samovar-chaos"))
        .arg("--server")
        .arg(server)
        .arg("--out")
        .arg(out(name))
        .args(words))
}
