//! `test`: runs the workspace's test programs, two at a time, and prints the number of tests in one
//! line at the end.
//!
//! cargo runs test programs one by one, and most of them wait longer than they compute: for a
//! timeout, a disk or a client. A program's output is printed when it has ended, so outputs do not
//! mix.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cargo_metadata::Message;

use crate::command::{in_pairs, progress, repository};

/// Number of the slowest test programs that are listed at the end.
const SLOWEST_COUNT: usize = 8;

/// A command to run: a test program, or the doctests.
struct Job {
    name: String,
    program: PathBuf,
    words: &'static [&'static str],
    folder: PathBuf,
}

/// The outcome of a job: how its program ended, and its tests.
struct Ended {
    status: ExitStatus,
    took: Duration,
    summary: Summary,
}

/// Numbers of test programs and of tests, by their result.
#[derive(Debug, Default, PartialEq, Eq)]
struct Summary {
    binaries: u32,
    passed: u32,
    failed: u32,
    ignored: u32,
}

/// Runs all tests and doctests of the workspace, even after a failure. Fails if a test fails or
/// does not build.
pub(crate) fn run() -> Result<()> {
    let started = Instant::now();
    // Doctests take longest, so they start first.
    let mut jobs = vec![Job {
        name: "examples in the documentation".to_owned(),
        program: "cargo".into(),
        words: &["test", "--workspace", "--doc", "--no-fail-fast"],
        folder: repository(),
    }];
    jobs.extend(build()?);
    let built = started.elapsed();
    let outputs = repository().join(".samovar/test-output");
    fs::create_dir_all(&outputs)?;
    let all = in_pairs(&jobs, |job| job.run(&outputs));
    let mut summary = Summary::default();
    let mut times = Vec::new();
    let mut failed = Vec::new();
    for (job, ended) in jobs.iter().zip(all) {
        let ended = ended.with_context(|| job.name.clone())?;
        summary.add(&ended.summary);
        times.push((ended.took, &*job.name));
        if !ended.status.success() {
            failed.push(format!("{} ({})", job.name, ended.status));
        }
    }
    times.sort_unstable();
    let slowest = times.iter().rev().take(SLOWEST_COUNT);
    let slowest: Vec<_> = slowest
        .map(|(took, name)| format!("{name} {:.0} s", took.as_secs_f64()))
        .collect();
    println!("samovar: the slowest: {}", slowest.join(", "));
    let Summary {
        binaries,
        passed,
        failed: failed_count,
        ignored,
    } = summary;
    println!(
        "samovar: {passed} tests passed, {failed_count} failed, {ignored} ignored, in {binaries} \
         binaries; {:.0} s to build and {:.0} s to run",
        built.as_secs_f64(),
        (started.elapsed() - built).as_secs_f64()
    );
    // A test that leaves out a version passes, and its output is not shown.
    if let Some(line) = crate::newer_nix::left_out() {
        println!("samovar: {line}");
    }
    if !failed.is_empty() {
        bail!("these failed: {}", failed.join(", "));
    }
    if passed == 0 {
        bail!("no test was run");
    }
    Ok(())
}

/// Builds all test programs and the programs that they run.
fn build() -> Result<Vec<Job>> {
    progress("building the tests");
    let mut cargo = Command::new("cargo")
        .args(["test", "--workspace", "--no-run"])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(repository())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo")?;
    let stdout = cargo.stdout.take().context("stdout is piped")?;
    let mut jobs = Vec::new();
    for message in Message::parse_stream(std::io::BufReader::new(stdout)) {
        let Message::CompilerArtifact(artifact) = message? else {
            continue;
        };
        let (true, Some(program)) = (artifact.profile.test, artifact.executable) else {
            continue;
        };
        // Tests run in the folder of their package, as cargo runs them.
        let folder = artifact.manifest_path.parent();
        let folder = folder.context("a manifest is in a folder")?;
        jobs.push(Job {
            name: name(folder.as_str(), &artifact.target.name),
            program: program.into(),
            words: &[],
            folder: folder.into(),
        });
    }
    let status = cargo.wait()?;
    if !status.success() {
        bail!("the tests do not build: {status}");
    }
    jobs.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    Ok(jobs)
}

/// Returns a name that is unique in the workspace: the package's folder and the target's name.
fn name(folder: &str, target: &str) -> String {
    let package = folder.rsplit('/').next().unwrap_or(folder);
    format!("{package}/{target}")
}

impl Job {
    /// Runs the job and prints its output.
    fn run(&self, outputs: &Path) -> Result<Ended> {
        let started = Instant::now();
        // Output goes to a file. A pipe would stay open as long as any server that a test has left
        // running.
        let file = outputs.join(self.name.replace([' ', '/'], "-"));
        let output = fs::File::create(&file)?;
        let status = Command::new(&self.program)
            .args(self.words)
            .current_dir(&self.folder)
            .stderr(output.try_clone()?)
            .stdout(output)
            .status()
            .context("cannot start it")?;
        let took = started.elapsed();
        let said = String::from_utf8_lossy(&fs::read(&file)?).into_owned();
        println!(
            "     Running {}: {status}, {:.1} s\n{said}",
            self.name,
            took.as_secs_f64()
        );
        Ok(Ended {
            status,
            took,
            summary: Summary::of(&said),
        })
    }
}

impl Summary {
    /// Counts the tests that a program reports in its output.
    fn of(said: &str) -> Self {
        let mut summary = Self::default();
        for line in said.lines() {
            summary.add_line(line);
        }
        summary
    }

    fn add(&mut self, other: &Self) {
        self.binaries += other.binaries;
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// Adds the counts of a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    fn add_line(&mut self, line: &str) {
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
    fn test_results_are_summed_over_programs() {
        let mut summary = Summary::default();
        for said in [
            "running 3 tests\n\
             test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; finished in 3.84s\n",
            "test result: FAILED. 30 passed; 2 failed; 0 ignored; 7 filtered out",
        ] {
            summary.add(&Summary::of(said));
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
