//! `fuzz`: runs every target in `fuzz/` for a given time.
//!
//! cargo-fuzz requires a nightly compiler for its sanitizers, but sanitizers find nothing in code
//! without `unsafe`. Coverage instrumentation suffices, and the stable compiler supports it. So the
//! targets are built with cargo-fuzz's flags, without sanitizers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::command::{in_pairs, output, progress, repository, run};

/// Compiler flags: coverage instrumentation for libFuzzer, `cfg(fuzzing)` and assertions.
const FLAGS: [&str; 8] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg=fuzzing",
    "-Cdebug-assertions",
    "-Ccodegen-units=1",
];

/// Runs the targets with these names; all if there are none. Fails if a target does not build, or
/// finds something.
pub(crate) fn run_targets(seconds: u64, names: &[&str]) -> Result<()> {
    let folder = repository().join("fuzz");
    let manifest = fs::read_to_string(folder.join("Cargo.toml"))?;
    let mut targets = targets(&manifest);
    targets.retain(|target| names.is_empty() || names.contains(&&**target));
    if targets.is_empty() {
        bail!("no such target; there are {:?}", self::targets(&manifest));
    }
    let programs = build(&folder)?;
    let started = Instant::now();
    let results = in_pairs(&targets, |target| {
        let result = run_target(&folder, &programs, target, seconds);
        match &result {
            Ok(said) => println!("{target}: {said}"),
            Err(error) => eprintln!("{target}: {error:#}"),
        }
        result
    });
    let results = targets.iter().zip(results);
    let failures: Vec<_> = results
        .filter_map(|(target, result)| result.err().map(|_| &**target))
        .collect();
    if !failures.is_empty() {
        bail!(
            "{} found something; see fuzz/artifacts/",
            failures.join(", ")
        );
    }
    let seconds = started.elapsed().as_secs();
    println!(
        "{} fuzz targets found nothing in {seconds} s",
        targets.len()
    );
    Ok(())
}

/// Returns the names of the fuzz targets: those of the `[[bin]]` sections in `fuzz/Cargo.toml`.
fn targets(manifest: &str) -> Vec<String> {
    let bins = manifest.split("[[bin]]").skip(1);
    let name = |bin: &str| {
        let line = bin.lines().find(|line| line.starts_with("name = "))?;
        Some(line.split('"').nth(1)?.to_owned())
    };
    bins.filter_map(name).collect()
}

/// Builds all targets; returns their folder. It is separate from the workspace's, because the flags
/// prevent reuse of artifacts.
fn build(folder: &Path) -> Result<PathBuf> {
    let said = output(Command::new("rustc").arg("-vV"))?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc does not say its host")?;
    progress("building the fuzz targets (the first time: some minutes)");
    let target = folder.join("target");
    // With `--target`, the flags do not apply to build scripts and macros.
    run(Command::new("cargo")
        .args([
            "build",
            "--release",
            "--bins",
            "--target",
            host,
            "--target-dir",
        ])
        .arg(&target)
        .env("RUSTFLAGS", FLAGS.join(" "))
        .current_dir(folder))?;
    Ok(target.join(host).join("release"))
}

/// Runs a target; returns how many inputs it executed.
fn run_target(folder: &Path, programs: &Path, target: &str, seconds: u64) -> Result<String> {
    let (corpus, artifacts) = (folder.join("corpus").join(target), folder.join("artifacts"));
    let seeds = folder.join("seeds").join(target);
    for folder in [&corpus, &artifacts, &seeds] {
        fs::create_dir_all(folder)?;
    }
    let done = Command::new(programs.join(target))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!(
            "-artifact_prefix={}/{target}-",
            artifacts.display()
        ))
        .args(["-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1"])
        .arg(&corpus)
        .arg(&seeds)
        .output()
        .context("cannot start it")?;
    let said = String::from_utf8_lossy(&done.stderr);
    if !done.status.success() {
        let last: Vec<&str> = said.lines().rev().take(40).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        bail!("{}\n{}", done.status, last.join("\n"));
    }
    let count = said
        .lines()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    Ok(format!("{} inputs", count.unwrap_or(" ?").trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_found() {
        let manifest = "[package]\nname = \"a\"\n[[bin]]\nname = \"b\"\npath = \"c\"\n[[bin]]\n\
                        name = \"d\"\n";
        assert_eq!(targets(manifest), ["b", "d"]);
    }
}
