//! Kettles: their server, and what goes with it.

#![forbid(unsafe_code)]

use std::error::Error;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use kettles::log;
use kettles::serve::{Running, Serve, announce, ended};
use kettles::store::{SqliteStore, Store};

/// Twenty thousand kettles, and their server.
#[derive(Debug, Parser)]
#[command(name = "kettles", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve kettles: durable measurements, commands, statistics, a live page.
    Serve(Serve),
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::error(
                "cannot go on",
                <anyhow::Error as AsRef<dyn Error>>::as_ref(&error),
            );
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<()> {
    match arguments.command {
        Command::Serve(options) => serve(&options),
    }
}

fn serve(options: &Serve) -> Result<()> {
    let is_ended = ended().context("no signals")?;
    let running = Running::start(options, open(options)?)?;
    announce(&running);
    running.run_until(&is_ended)
}

fn open(options: &Serve) -> Result<Box<dyn Store>> {
    let path = &options.database;
    let store = SqliteStore::open(path).with_context(|| path.display().to_string())?;
    Ok(Box::new(store))
}
