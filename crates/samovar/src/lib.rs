//! The command line `samovar`. It runs the server with a configuration file (`samovar serve`),
//! queries Nix binary caches, pushes paths to them and sets up their clients, keeps trees of small
//! files as snapshots, workspaces and mounts, manages the storage of uploaded paths, verifies
//! stores, and diagnoses set-ups.
//!
//! [`cli`] has the table of all commands, from which help, man pages and completions are made, too.
//! [`run`] runs a command line. The client side of binary
//! caches is in `samovar-client`.
//!
//! # Out of scope
//!
//! Writing to a Nix store, and formats: `samovar-nix` has the formats of Nix, `samovar-workspace`
//! the format of snapshots.

#![forbid(unsafe_code)]

mod arguments;
mod caches;
pub mod cli;
mod client_certificate;
mod client_setup;
mod command;
mod convert;
mod copy;
mod doctor;
mod export;
mod fsck;
mod gc;
mod hook;
mod import;
mod mount;
mod nodes;
mod outcome;
mod pin;
mod prefetch;
mod profile;
mod pull;
mod push;
mod refs;
mod secrets;
mod serve;
mod size;
mod status;
mod storage;
mod token;
mod usage;
mod workspace;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use samovar_client::{
    cache, credential, credentials, hashing, http, netrc, notice, private, progress, remote, roots,
    snapshot, trust, user_dirs, walk,
};
pub use samovar_text::without_logins;
use samovar_workspace::{disk, mounts};

use outcome::Failed;

/// A failed command.
#[derive(Debug)]
pub struct Failure {
    /// The error, whose message has one line.
    pub error: anyhow::Error,
    /// The exit code of the process after this failure.
    pub code: ExitCode,
}

/// Runs a command line and prints its results to `out`.
///
/// # Errors
///
/// [`Failure`]. Help and version are printed by this function and are not failures.
pub fn run(
    words: impl IntoIterator<Item = OsString>,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let words: Vec<OsString> = words.into_iter().collect();
    let matches = match cli::command().try_get_matches_from(&words) {
        Ok(matches) => matches,
        Err(error)
            if error.use_stderr()
                && error.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand =>
        {
            let message = usage::message(&error, &words, &cli::command());
            return Err(Failure {
                error: anyhow::Error::msg(message),
                code: Failed::Usage.code(),
            });
        }
        // Print help or version. Ignore errors: standard output may be closed.
        Err(error) => {
            error.print().unwrap_or_default();
            return Ok(ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2)));
        }
    };
    let command = matches.subcommand();
    let Some((entry, matches)) = command.and_then(|(name, it)| Some((cli::entry(name)?, it)))
    else {
        return Ok(ExitCode::from(2));
    };
    (entry.run)(matches, out).map_err(|error| Failure {
        code: entry.failure.code(matches, &error),
        error,
    })
}
