//! The command line of kettles.

#![forbid(unsafe_code)]

use std::error::Error;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use kettles::check::Check;
use kettles::demo::{Demo, demo};
use kettles::log;
use kettles::measure::Measure;
use kettles::processes;
use kettles::replay::Replay;
use kettles::seeding::Seed;
use kettles::serve::{Running, Serve, announce, ended};
use kettles::store;

/// A server for twenty thousand smart kettles: an example and load test of samovar-http.
#[derive(Debug, Parser)]
#[command(name = "kettles", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a demonstration: a year of history, a thousand kettles, a live page. Installs nothing
    /// and leaves nothing behind.
    Demo(Demo),
    /// Run the server: durable measurements, commands, statistics, a live page.
    Serve(Serve),
    /// Fill a store with generated history.
    Seed(Seed),
    /// Recompute the statistics from all measurements and compare them bit for bit.
    Check(Check),
    /// Store prepared measurements and print the cost of one.
    Measure(Measure),
    /// Run the original server of 2017 with PostgreSQL, to watch it saturate.
    #[command(name = "replay-2017")]
    Replay(Replay),
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::error(
                "kettles cannot continue",
                <anyhow::Error as AsRef<dyn Error>>::as_ref(&error),
            );
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<()> {
    match arguments.command {
        Command::Demo(options) => demo(&options),
        Command::Serve(options) => serve(&options),
        Command::Seed(options) => options.run(),
        Command::Check(options) => options.run(),
        Command::Measure(options) => options.run(),
        Command::Replay(options) => options.run(),
    }
}

fn serve(options: &Serve) -> Result<()> {
    let is_ended = ended().context("no signals")?;
    if options.processes > 1 && options.member.is_none() {
        return processes::run(options, &is_ended);
    }
    let running = Running::start(options, store::open(&options.database)?)?;
    announce(&running);
    if options.member.is_some() {
        processes::end_with_parent(&is_ended);
    }
    running.run_until(&is_ended)
}
