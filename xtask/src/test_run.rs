//! `test`: `cargo test`, and one line at its end that says how many tests there were.
//!
//! cargo prints a result for each of some thirty binaries, and a reader wants to know of all.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::repository;

/// What `cargo test` counted so far.
#[derive(Debug, Default, PartialEq, Eq)]
struct Summary {
    binaries: u32,
    passed: u32,
    failed: u32,
    ignored: u32,
}

/// Runs all tests and doctests of the workspace; a failure does not keep the rest from running.
///
/// # Errors
///
/// If a test failed or did not build.
pub(crate) fn run() -> Result<()> {
    let started = Instant::now();
    let mut child = Command::new("cargo")
        .args(["test", "--workspace", "--no-fail-fast"])
        .current_dir(repository())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo")?;
    let stdout = child.stdout.take().context("stdout is piped")?;
    let mut summary = Summary::default();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        summary.add(&line);
    }
    let status = child.wait()?;
    let Summary {
        binaries,
        passed,
        failed,
        ignored,
    } = summary;
    println!(
        "samovar: {passed} tests passed, {failed} failed, {ignored} ignored, in {binaries} \
         binaries and {:.0} s",
        started.elapsed().as_secs_f64()
    );
    if !status.success() {
        bail!("cargo test: {status}");
    }
    if passed == 0 {
        bail!("cargo test ran no test");
    }
    Ok(())
}

impl Summary {
    /// Takes a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; …` into account.
    fn add(&mut self, line: &str) {
        let Some(counts) = line.strip_prefix("test result: ") else {
            return;
        };
        self.binaries += 1;
        for count in counts.split(['.', ';']) {
            let Some((number, what)) = count.trim().split_once(' ') else {
                continue;
            };
            let Ok(number) = number.parse::<u32>() else {
                continue;
            };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_add_up() {
        let mut summary = Summary::default();
        for line in [
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; finished in 3.84s",
            "test result: FAILED. 30 passed; 2 failed; 0 ignored; 7 filtered out",
        ] {
            summary.add(line);
        }
        assert_eq!(
            summary,
            Summary {
                binaries: 2,
                passed: 33,
                failed: 2,
                ignored: 1
            }
        );
    }
}
