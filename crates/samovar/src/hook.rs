//! `samovar hook`: stores the paths of a build in a spool directory, for `samovar push --spool`.
//!
//! Nix waits for its `post-build-hook`, so the hook does as little as possible: it writes one file
//! for each build and returns.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use clap::{ArgMatches, Command};
use samovar_client::push::spool::store;

use crate::arguments::spool;

/// Environment variable in which Nix passes the paths of a build, separated by spaces.
const VARIABLE: &str = "OUT_PATHS";

pub(crate) fn command() -> Command {
    Command::new("hook")
        .about("Records the paths of a build for a later push; for Nix's post-build-hook")
        .after_help(
            "Reads the paths from the variable OUT_PATHS, which Nix sets. post-build-hook in \
             nix.conf names a program without arguments, so write a script: exec samovar hook \
             --spool /var/spool/samovar. Then let samovar push --spool upload the paths.",
        )
        .arg(spool().required(true))
}

/// Writes the paths that Nix passes in `OUT_PATHS` into the spool directory.
///
/// # Errors
///
/// The variable is missing, or the file cannot be written.
pub(crate) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let dir: &PathBuf = matches.get_one("spool").context("a directory is missing")?;
    let paths = std::env::var(VARIABLE).with_context(|| {
        format!("cannot read the variable {VARIABLE}: this command is for Nix's post-build-hook")
    })?;
    let paths: Vec<&str> = paths.split_ascii_whitespace().collect();
    ensure!(
        paths.iter().all(|path| path.starts_with('/')),
        "{VARIABLE} must hold store paths, got {paths:?}"
    );
    if paths.is_empty() {
        return Ok(());
    }
    store(dir, &paths).with_context(|| {
        format!(
            "cannot store the paths in {dir:?}: create the directory for the user of the builds"
        )
    })
}
