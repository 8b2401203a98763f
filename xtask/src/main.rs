//! Repository tasks, run by the Makefile as `cargo run --package xtask -- TASK`.
//!
//! `xtask --help` lists the tasks. Each task is in a module with its name, or with a name that
//! starts with the task's, such as `test_run` for `test`.

#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a task runner talks to its terminal: results to stdout, progress to stderr"
)]

mod autobahn;
mod bench;
mod book;
mod chaos;
mod command;
mod crates;
mod deb;
mod demo_workspaces;
mod fuzz;
mod instructions;
mod macos;
mod newer_nix;
mod nodes;
mod quick;
mod s3;
mod sample;
mod serve;
mod setup;
mod suites;
mod test_run;
mod tidy;

use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use command::repository;

const USAGE: &str = "\
usage: xtask TASK [ARGUMENT...]

  setup [--test]                   install missing packages; --test: those of the tests too
  sample-store [--bench] DIR       make a store with Nix; --bench: with the benchmarks' paths
  sample-store --paths N DIR       make a store of N valid paths, nearly all without files
  small-files [--shrink N] DIR     generate a tree of 42,246 small files, or an Nth of them
  serve [--port N]                 build the server and serve this machine's store, or the sample
  nodes                            run two servers with one PostgreSQL and one bucket behind nginx
  demo-workspaces                  show workspaces: two directories play two workstations
  bench [OPTION...]                measure the server beside nginx and other installed caches
  fuzz --seconds N [TARGET...]     run the fuzz targets, N seconds each
  suites [--update] [--address HOST:PORT] [NAME...]
                                   run conformance suites
  test-s3 NAME                     run the tests of the S3 client against an engine: s3s-fs,
                                   versitygw, seaweedfs or garage
  autobahn [--update]              run the Autobahn suite against the WebSocket echo server
  instructions [--renew]           count instructions and system calls of requests; fail above the
                                   budget, or write a new one with --renew
  chaos --seconds N [--seed S]     run clients and faults at once and check every byte
  soak --requests N                send N requests; record memory and descriptors in docs/
  leaks                            run the server under valgrind; fail if memory is lost
  screenshots                      renew the screenshots of the web interface in the book
  book-links                       preprocessor that mdBook calls, see docs/book.toml
  deb DIR                          build a Debian package into DIR
  deb --try                        install a package of debug programs under a real systemd, in
                                   namespaces, and test the service
  macos                            check that packages compile for macOS
  test [NAME...]                   run all tests, or those of the programs whose names contain a
                                   NAME; run what failed once more, alone; count them
  quick [BASE]                     check what has changed since a Git revision, by default the
                                   upstream branch: formatting, rules, clippy, unit tests of the
                                   changed packages and of those above them, changed test programs
  crates                           compile the engine with each set of its features, and package it
                                   as for a registry
  tidy                             check the rules that no other tool checks
  rooms                            count the modules at the top level of each crate, and the imports
                                   between them

  --help                           show this help";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    run_task(&words)
}

/// Runs the task that the arguments name, or prints the help.
fn run_task(words: &[&str]) -> Result<()> {
    if words.iter().any(|word| matches!(*word, "--help" | "-h")) {
        println!("{USAGE}");
        return Ok(());
    }
    match words {
        ["setup"] => setup::install(setup::For::Serving),
        ["setup", "--test"] => setup::install(setup::For::Testing),
        ["sample-store", "--bench", dir] => sample::make(directory(dir)?, sample::Kind::Bench),
        ["sample-store", "--paths", count, dir] => {
            let count = count.parse().context("--paths must be a number")?;
            sample::make(directory(dir)?, sample::Kind::Rows(count))
        }
        ["sample-store", dir] => sample::make(directory(dir)?, sample::Kind::Test),
        ["small-files", dir] => small_files(1, dir),
        ["small-files", "--shrink", shrink, dir] => {
            let shrink: NonZeroUsize = shrink.parse().context("--shrink must be a number")?;
            small_files(shrink.get(), dir)
        }
        ["demo-workspaces"] => demo_workspaces::demonstrate(),
        ["serve", rest @ ..] => serve::serve(port(rest)?),
        ["nodes"] => nodes::run(),
        ["bench", options @ ..] => bench::measure(options),
        ["fuzz", "--seconds", seconds, rest @ ..] => {
            let seconds = seconds.parse().context("--seconds must be a number")?;
            fuzz::run_targets(seconds, rest)
        }
        ["autobahn", rest @ ..] => autobahn::run_autobahn(rest),
        ["chaos", "--seconds", seconds] => chaos::run_chaos(seconds, None),
        ["chaos", "--seconds", seconds, "--seed", seed] => chaos::run_chaos(seconds, Some(seed)),
        ["soak", "--requests", requests] => chaos::run_soak(requests),
        ["screenshots"] => book::take_screenshots(&repository()),
        // mdBook first asks whether the preprocessor supports a certain renderer. It supports all.
        ["book-links", "supports", _] => Ok(()),
        ["book-links"] => book::preprocess(),
        ["deb", "--try"] => deb::try_package(),
        ["deb", out] => deb::make(directory(out)?),
        ["macos"] => macos::check(),
        ["leaks"] => chaos::find_leaks(),
        ["instructions", rest @ ..] => instructions::run_gates(rest),
        ["suites", rest @ ..] => suites::run_suites(rest),
        ["test-s3", server] => s3::test(server),
        ["test", names @ ..] => test_run::run(names),
        ["quick"] => quick::run(None),
        ["quick", base] if !base.starts_with('-') => quick::run(Some(base)),
        ["crates"] => crates::check(),
        ["tidy"] => tidy::check(&repository()),
        ["rooms"] => tidy::print_rooms(&repository()),
        [] => bail!("no task given\n\n{USAGE}"),
        [task, ..] => bail!("unknown task or wrong arguments: {task}\n\n{USAGE}"),
    }
}

/// Returns an argument that names a directory. Fails if it is an unknown option.
fn directory(word: &str) -> Result<&Path> {
    if word.starts_with('-') {
        bail!("unknown option {word}; write ./{word} for a directory with this name\n\n{USAGE}");
    }
    Ok(Path::new(word))
}

/// Generates the tree of small files at `dir`, which must not exist.
fn small_files(shrink: usize, dir: &str) -> Result<()> {
    let tree = testkit::small_files::small_files(shrink);
    tree.write_tree(directory(dir)?)
        .with_context(|| format!("cannot write the tree {dir:?}"))
}

/// Parses `--port N`; the default is that of nix-serve.
fn port(words: &[&str]) -> Result<u16> {
    match words {
        [] => Ok(5000),
        ["--port", port] => port
            .parse()
            .with_context(|| format!("--port must be a number up to 65535, got {port:?}")),
        _ => bail!("only --port N is allowed here\n\n{USAGE}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A task with an unknown option does nothing. Most tasks need minutes, so this would be
    /// noticed.
    #[test]
    fn unknown_options_are_refused() {
        for task in [
            &["sample-store", "--foo"][..],
            &["sample-store", "--bench", "--foo"],
            &["sample-store", "--paths", "1", "-f"],
            &["sample-store", "--foo", "dir"],
            &["small-files", "--foo"],
            &["small-files", "--shrink", "1000", "--foo"],
            &["deb", "--foo"],
            &["setup", "--foo"],
            &["serve", "--foo"],
            &["nodes", "--foo"],
            &["demo-workspaces", "--foo"],
            &["fuzz", "--seconds", "1", "--foo"],
            &["suites", "--foo"],
            &["autobahn", "--foo"],
            &["instructions", "--foo"],
            &["chaos", "--seconds", "1", "--foo"],
            &["test", "--foo"],
            &["quick", "--foo"],
            &["tidy", "--foo"],
            &["rooms", "--foo"],
        ] {
            let error = run_task(task).unwrap_err().to_string();
            let said = ["usage: xtask", "no such target", "--foo"];
            assert!(
                said.iter().any(|part| error.contains(part)),
                "{task:?}: {error}"
            );
            let created = task.last().map(Path::new).filter(|path| path.exists());
            assert_eq!(created, None, "{task:?}");
        }
        assert_eq!(directory("./--foo").unwrap(), Path::new("./--foo"));
        assert_eq!(directory("dir").unwrap(), Path::new("dir"));
    }

    /// Every task prints the help instead of running.
    #[test]
    fn each_task_knows_help() {
        let tasks = USAGE.lines().filter_map(|line| line.strip_prefix("  "));
        let tasks = tasks.filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase()));
        let tasks: Vec<&str> = tasks.filter_map(|line| line.split(' ').next()).collect();
        assert!(tasks.len() > 15, "{tasks:?}");
        for task in tasks {
            for help in ["--help", "-h"] {
                run_task(&[task, help]).unwrap();
                assert!(!Path::new(help).exists(), "{task}");
            }
        }
    }
}
