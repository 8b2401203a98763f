//! `samovar config import`: prints the configuration of another server as one of Samovar.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{ArgMatches, Command, value_parser};
use samovar_server::config::import_harmonia;

use crate::arguments::required;

/// Defines `samovar config`.
pub(crate) fn command() -> Command {
    Command::new("config")
        .about("Converts configurations of other servers")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("import")
                .about("Prints a configuration of harmonia as one of Samovar")
                .arg(
                    required("file", "HARMONIA.TOML")
                        .help("Configuration file of harmonia")
                        .value_parser(value_parser!(PathBuf)),
                ),
        )
}

/// Runs `samovar config`.
///
/// # Errors
///
/// The file cannot be read, or is no configuration of harmonia.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<()> {
    let import = matches.subcommand_matches("import");
    let file: Option<&PathBuf> = import.and_then(|import| import.get_one("file"));
    let file = file.context("a file is missing")?;
    let text = import_harmonia(file)?;
    Ok(out.write_all(text.as_bytes())?)
}
