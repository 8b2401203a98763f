//! `chaos`, `soak` and `leaks`: run the tests of `conformance/chaos` with all faults at once, over
//! millions of requests, and under valgrind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::command::{build_as_tested, find, repository, run};
use crate::serve;

/// Duration of the load under valgrind, in seconds.
const LEAKS_SECONDS: &str = "15";

/// Runs chaos for `seconds`, with a given seed or a new one. Fails if something does not build, or
/// there are findings.
pub(crate) fn run_chaos(seconds: &str, seed: Option<&str>) -> Result<()> {
    let programs = build()?;
    let mut words = vec!["--seconds", seconds];
    if let Some(seed) = seed {
        words.extend(["--seed", seed]);
    }
    run_on(&programs, &programs.join("nix-serve"), "chaos", &words)
}

/// Runs a soak of this many requests on the release build; writes its figures to `docs/`. Fails if
/// something does not build, a response is wrong, or the server's resource usage rises.
pub(crate) fn run_soak(requests: &str) -> Result<()> {
    let programs = build()?;
    let words = ["--requests", requests];
    let found = run_on(&programs, &serve::build("nix-serve")?, "soak", &words);
    fs::copy(
        out("soak").join("soak.csv"),
        repository().join("docs/soak.csv"),
    )?;
    found
}

/// Runs the release build under valgrind and requests all routes. Fails if something does not
/// build, or memory is lost.
pub(crate) fn find_leaks() -> Result<()> {
    if find("valgrind").is_none() {
        bail!("valgrind is missing: `make setup-test` installs it");
    }
    let programs = build()?;
    let words = ["--valgrind", LEAKS_SECONDS];
    run_on(&programs, &serve::build("nix-serve")?, "leaks", &words)
}

/// Builds with assertions enabled; returns the folder of programs.
fn build() -> Result<PathBuf> {
    // Includes the tests, so that dependencies have the same features as in `cargo test`.
    build_as_tested(&["--tests", "--bin", "nix-serve", "--bin", "samovar-chaos"])
}

/// Returns the folder of a run's logs and results.
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
