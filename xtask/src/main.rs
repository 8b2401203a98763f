//! Tasks of the repository, run by the Makefile as `cargo run --package xtask -- TASK`.
//!
//! | task | what it does |
//! | --- | --- |
//! | `setup [--test]` | installs the packages that are missing |
//! | `sample-store [--bench] DIR` | makes a store to serve, with the real Nix |
//! | `sample-store --paths N DIR` | makes a store of N valid paths, nearly all without files |
//! | `serve [--port N]` | builds the server and serves this machine's store, or the sample |
//! | `example-lines [--port N]` | prints what a client needs to use that server |
//! | `bench [OPTION…]` | our server beside nginx, and beside others that are installed |
//! | `fuzz --seconds N [TARGET…]` | runs the fuzz targets, with the stable compiler |
//! | `suites [NAME…]` | runs conformance suites of other projects |
//! | `autobahn` | the Autobahn suite against the WebSocket echo server |
//! | `chaos --seconds N [--seed S]` | everything at once, and an oracle that checks every byte |
//! | `soak --requests N` | as many requests; what the server holds, as a chart in `docs/` |
//! | `leaks` | the server under valgrind: nothing is lost |
//! | `book-links` | mdBook asks for it, see `docs/book.toml` |
//! | `deb DIR` | builds a Debian package into `DIR` |
//! | `instructions [--renew]` | counts what a request costs, and fails if it is too much |
//! | `test` | runs all tests and says how many there were |
//! | `tidy` | holds the tree to the rules that no other tool knows |
//!
//! Each task is a module of that name, or one that begins with it.

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
mod deb;
mod fuzz;
mod instructions;
mod sample;
mod serve;
mod setup;
mod suites;
mod test_run;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

const USAGE: &str = "usage: xtask setup [--test] | sample-store [--bench | --paths N] DIR | \
                     serve [--port N] | example-lines [--port N] | bench [OPTION…] | \
                     fuzz --seconds N [TARGET…] | suites [NAME…] | autobahn [--quick | --update] | \
                     instructions [--renew] | chaos --seconds N [--seed S] | soak --requests N | \
                     leaks | book-links | deb DIR | test | tidy";

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
    match words.as_slice() {
        ["setup"] => setup::install(setup::For::Serving),
        ["setup", "--test"] => setup::install(setup::For::Testing),
        ["sample-store", "--bench", dir] => sample::make(Path::new(dir), sample::Kind::Bench),
        ["sample-store", "--paths", count, dir] => {
            let count = count.parse().context("--paths")?;
            sample::make(Path::new(dir), sample::Kind::Rows(count))
        }
        ["sample-store", dir] => sample::make(Path::new(dir), sample::Kind::Test),
        ["serve", rest @ ..] => serve::serve(port(rest)?),
        ["example-lines", rest @ ..] => serve::print_example_lines(port(rest)?),
        ["bench", options @ ..] => bench::measure(options),
        ["fuzz", "--seconds", seconds, rest @ ..] => {
            let seconds = seconds.parse().context("--seconds")?;
            fuzz::run_targets(seconds, rest)
        }
        ["autobahn", rest @ ..] => autobahn::run_autobahn(rest),
        ["chaos", "--seconds", seconds] => chaos::run_chaos(seconds, None),
        ["chaos", "--seconds", seconds, "--seed", seed] => chaos::run_chaos(seconds, Some(seed)),
        ["soak", "--requests", requests] => chaos::run_soak(requests),
        // mdBook asks first whether a renderer is known; any is.
        ["book-links", "supports", _] => Ok(()),
        ["book-links"] => book::preprocess(),
        ["deb", out] => deb::make(Path::new(out)),
        ["leaks"] => chaos::find_leaks(),
        ["instructions", rest @ ..] => instructions::run_gates(rest),
        ["suites", rest @ ..] => suites::run_suites(rest),
        ["test"] => test_run::run(),
        ["tidy"] => tidy::check(&repository()),
        _ => bail!(USAGE),
    }
}

/// The port in `--port N`; what nix-serve listens on without it.
fn port(words: &[&str]) -> Result<u16> {
    match words {
        [] => Ok(5000),
        ["--port", port] => port
            .parse()
            .with_context(|| format!("{port:?} is not a port")),
        _ => bail!(USAGE),
    }
}

/// The top folder of the repository, wherever the task was started.
fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}
