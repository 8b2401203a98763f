//! `test`: the test programs of the workspace, two at a time, and one line at their end that says
//! how many tests there were.
//!
//! cargo runs one program after the other, and most wait longer than they compute: for a limit to
//! pass, a disk, a client. What a program says is printed when it has ended, so nothing is mixed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cargo_metadata::Message;

use crate::command::{in_pairs, progress, repository};

/// How many programs are named at the end as the slowest.
const SLOWEST_COUNT: usize = 8;

/// A program with tests in it, or what runs the examples in the documentation.
struct Job {
    name: String,
    program: PathBuf,
    words: &'static [&'static str],
    folder: PathBuf,
}

/// How a job ended.
struct Ended {
    status: ExitStatus,
    took: Duration,
    summary: Summary,
}

/// What was counted.
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
    // It takes longer than any other, so it begins first.
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
    if !failed.is_empty() {
        bail!("these failed: {}", failed.join(", "));
    }
    if passed == 0 {
        bail!("no test was run");
    }
    Ok(())
}

/// Builds all test programs, and whatever they run.
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
        // As cargo does: tests find files from the folder of their package.
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

/// The package's folder and the name of the target, which alone may be that of several.
fn name(folder: &str, target: &str) -> String {
    let package = folder.rsplit('/').next().unwrap_or(folder);
    format!("{package}/{target}")
}

impl Job {
    /// Runs it, and prints what it says.
    fn run(&self, outputs: &Path) -> Result<Ended> {
        let started = Instant::now();
        // A file and not a pipe, which would not end as long as a server that a test left behind.
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
    /// Counts what a program said.
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

    /// Takes a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; …` into account.
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
    fn results_add_up() {
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
