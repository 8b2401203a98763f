//! `test`: runs the workspace's test programs, two at a time; runs what failed once more, alone;
//! and prints the number of tests in one line at the end.
//!
//! cargo runs test programs one by one, and most of them wait longer than they compute: for a
//! timeout, a disk or a client. A program's output is printed when it has ended, so outputs do not
//! mix.
//!
//! The summary repeats the warnings of values above their limits ([`testkit::limit`]).
//!
//! A test that fails beside others and passes alone is *flaky*. It is reported, and does not fail
//! the run ([0054](../../../docs/decisions/0054-what-failed-runs-again.md)).

mod known;
mod program;
mod report;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cargo_metadata::{Artifact, Message};

use self::known::LIST;
pub(crate) use self::known::parse_known;
use self::program::{Ended, Program};
use self::report::{Summary, failed_tests, output_of, warnings};
use crate::command::{in_pairs, progress, repository};

/// Number of the slowest test programs that are listed at the end.
const SLOWEST_COUNT: usize = 8;

/// Maximum number of failures that are run again. If there are more, the change is wrong and not
/// the machine.
const AGAIN_COUNT_MAX: usize = 20;

/// Maximum duration of a program. The slowest takes 75 s on a quiet machine.
const PROGRAM_TIME_MAX: Duration = Duration::from_secs(600);

/// A failed test, or a program that failed without naming a test.
struct Failure<'a> {
    program: &'a Program,
    test: Option<String>,
    /// What the test printed; if that is not known, what the program printed.
    output: String,
}

/// Runs all tests and doctests of the workspace, even after a failure, or those of the programs
/// whose names contain one of `words`. Fails if a test fails twice or does not build.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    if let Some(option) = words.iter().find(|word| word.starts_with('-')) {
        bail!("unknown option {option}\n\n{}", crate::USAGE);
    }
    let started = Instant::now();
    // Doctests take longest, so they start first.
    let mut programs = vec![Program::doctests()];
    programs.extend(build(&[], |_| true)?);
    if !words.is_empty() {
        programs.retain(|program| words.iter().any(|word| program.name.contains(word)));
    }
    run_programs(&programs, started, started.elapsed())
}

/// Runs the unit tests of the packages in the given folders, and the test programs with the given
/// main files.
pub(crate) fn run_chosen(packages: &BTreeSet<PathBuf>, tests: &BTreeSet<PathBuf>) -> Result<()> {
    let started = Instant::now();
    let mut words = vec!["--lib", "--bins"];
    for test in tests {
        let name = test.file_stem().and_then(|stem| stem.to_str());
        words.extend(["--test", name.context("a test has no name")?]);
    }
    let programs = build(&words, |artifact| match artifact.target.is_test() {
        true => tests.contains(artifact.target.src_path.as_std_path()),
        false => {
            let folder = artifact.manifest_path.parent();
            folder.is_some_and(|folder| packages.contains(folder.as_std_path()))
        }
    })?;
    if programs.is_empty() {
        println!("samovar: no test is concerned");
        return Ok(());
    }
    run_programs(&programs, started, started.elapsed())
}

/// Runs programs that took `build_time` to build since `started`.
fn run_programs(programs: &[Program], started: Instant, build_time: Duration) -> Result<()> {
    let outputs = repository().join(".samovar/test-output");
    fs::create_dir_all(&outputs)?;
    let all = in_pairs(programs, |program| {
        program.run_all(&outputs, PROGRAM_TIME_MAX)
    });
    let mut summary = Summary::default();
    let mut times = Vec::new();
    let mut failures = Vec::new();
    let mut warned = Vec::new();
    for (program, ended) in programs.iter().zip(all) {
        let ended = ended.with_context(|| program.name.clone())?;
        summary.add(&ended.summary);
        times.push((ended.time, &*program.name));
        failures.extend(failures_of(program, &ended));
        let warnings = warnings(&ended.output);
        warned.extend(warnings.map(|warning| format!("{} {warning}", program.name)));
    }
    let (flaky, failed) = run_again(failures, &outputs)?;
    // A test that leaves out a version passes, and its output is not shown.
    if let Some(line) = crate::newer_nix::left_out() {
        println!("samovar: {line}");
    }
    report_flaky(&flaky)?;
    for warning in warned {
        println!("samovar: warning: {warning}");
    }
    println!("samovar: the slowest: {}", slowest(times));
    println!(
        "samovar: {} tests passed, {} failed, {} flaky, {} ignored, in {} binaries; {:.0} s to \
         build and {:.0} s to run",
        summary.passed,
        failed.len(),
        flaky.len(),
        summary.ignored,
        summary.binaries,
        build_time.as_secs_f64(),
        (started.elapsed() - build_time).as_secs_f64()
    );
    if !failed.is_empty() {
        let names: Vec<String> = failed.iter().map(Failure::name).collect();
        bail!("these failed:\n  {}", names.join("\n  "));
    }
    if summary.passed == 0 {
        bail!("no test was run");
    }
    Ok(())
}

/// Builds test programs and the programs that they run. `words`: arguments that select targets;
/// none for all. Returns the programs that are chosen.
fn build(words: &[&str], is_chosen: impl Fn(&Artifact) -> bool) -> Result<Vec<Program>> {
    progress("building the tests");
    let mut cargo = Command::new("cargo")
        .args(["test", "--workspace", "--no-run"])
        .args(words)
        .arg("--message-format=json-render-diagnostics")
        .current_dir(repository())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo")?;
    let stdout = cargo.stdout.take().context("stdout is piped")?;
    let mut programs = Vec::new();
    for message in Message::parse_stream(std::io::BufReader::new(stdout)) {
        let Message::CompilerArtifact(artifact) = message? else {
            continue;
        };
        if !artifact.profile.test || !is_chosen(&artifact) {
            continue;
        }
        let Some(executable) = artifact.executable else {
            continue;
        };
        // Tests run in the folder of their package, as cargo runs them.
        let folder = artifact.manifest_path.parent();
        let folder = folder.context("a manifest is in a folder")?;
        let is_bin = artifact.target.is_bin();
        programs.push(Program::new(
            folder.as_std_path(),
            &artifact.target.name,
            is_bin,
            executable.into(),
        ));
    }
    let status = cargo.wait()?;
    if !status.success() {
        // A linker without disk space is killed by a signal, and does not say why.
        let disk = rustix::fs::statvfs(repository())?;
        let free_mib = disk.f_bavail.saturating_mul(disk.f_frsize) >> 20;
        bail!("the tests do not build: {status}; free disk space: {free_mib} MiB");
    }
    programs.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    Ok(programs)
}

/// Returns the failures of a program: one for each test that it names, or one for the whole
/// program if it does not name each test that failed, for example because it was killed.
fn failures_of<'a>(program: &'a Program, ended: &Ended) -> Vec<Failure<'a>> {
    if ended.status.success() {
        return Vec::new();
    }
    let tests = failed_tests(&ended.output);
    let are_all_named = !tests.is_empty() && tests.len() == ended.summary.failed as usize;
    if program.is_doctests() || !are_all_named {
        return vec![Failure {
            program,
            test: None,
            output: format!("{}\n{}", ended.output.trim_end(), ended.status),
        }];
    }
    let failure = |test: String| Failure {
        program,
        output: output_of(&test, &ended.output),
        test: Some(test),
    };
    tests.into_iter().map(failure).collect()
}

/// Runs each failure once more, one after the other, with nothing beside it. Returns those that
/// passed, which are flaky, and those that failed again.
fn run_again<'a>(
    failures: Vec<Failure<'a>>,
    outputs: &Path,
) -> Result<(Vec<Failure<'a>>, Vec<Failure<'a>>)> {
    let (mut flaky, mut failed) = (Vec::new(), Vec::new());
    if failures.len() > AGAIN_COUNT_MAX {
        progress(&format!(
            "{} tests failed: more than {AGAIN_COUNT_MAX} are not run again",
            failures.len()
        ));
        return Ok((flaky, failures));
    }
    for failure in failures {
        progress(&format!("once more, alone: {}", failure.name()));
        let program = failure.program;
        let ended = match &failure.test {
            Some(test) => program.run_one(test, outputs, PROGRAM_TIME_MAX),
            None => program.run_all(outputs, PROGRAM_TIME_MAX),
        };
        let ended = ended.with_context(|| program.name.clone())?;
        if has_passed(&failure, &ended) {
            flaky.push(failure);
        } else {
            failed.push(failure);
        }
    }
    Ok((flaky, failed))
}

/// Whether the second run of a failure has run the test, and it passed. A program that finds no
/// test of the given name succeeds, too.
fn has_passed(failure: &Failure<'_>, ended: &Ended) -> bool {
    let is_counted = match failure.test {
        Some(_) => ended.summary.passed == 1,
        None => ended.summary.passed > 0,
    };
    ended.status.success() && ended.summary.failed == 0 && is_counted
}

/// Prints the first output of each flaky test, and what is known about it.
fn report_flaky(flaky: &[Failure<'_>]) -> Result<()> {
    let list = fs::read_to_string(repository().join(LIST)).unwrap_or_default();
    let known = parse_known(&list).context(LIST)?;
    for failure in flaky {
        println!(
            "samovar: flaky, failed beside others and passed alone: {}; its first output:\n{}",
            failure.name(),
            failure.output.trim_end()
        );
        let entry = known.iter().find(|entry| {
            entry.program == failure.program.name
                && Some(&*entry.test) == failure.test.as_deref().or(Some("*"))
        });
        match entry {
            Some(entry) => println!("samovar: known since {}: {}", entry.date, entry.cause),
            None => println!(
                "samovar: not in {}: its cause is to be found and removed",
                LIST
            ),
        }
    }
    Ok(())
}

fn slowest(mut times: Vec<(Duration, &str)>) -> String {
    times.sort_unstable();
    let slowest = times.iter().rev().take(SLOWEST_COUNT);
    let slowest: Vec<_> = slowest
        .map(|(time, name)| format!("{name} {:.0} s", time.as_secs_f64()))
        .collect();
    slowest.join(", ")
}

impl Failure<'_> {
    /// Returns the name of the program, and of the test.
    fn name(&self) -> String {
        let program = &self.program.name;
        match &self.test {
            Some(test) => format!("{program} {test}"),
            None => format!("{program} (the whole program)"),
        }
    }
}

#[cfg(test)]
mod tests;
