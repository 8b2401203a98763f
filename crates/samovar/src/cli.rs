//! Defines the command line of `samovar` with all its commands.

use std::num::NonZeroU64;
use std::path::PathBuf;

use clap::{Arg, ArgAction, Command, value_parser};
use clap_complete::Shell;
use samovar_server::config;

use crate::arguments::{json, option, paths, required, switch};
use crate::client_certificate;
use crate::trust::keys;
use crate::{
    caches, client_setup, export, fsck, gc, hook, import, mount, pin, profile, pull, push, refs,
    secrets, serve, status, token, workspace,
};

/// Defines all commands, for parsing, help, man pages and completions.
pub fn command() -> Command {
    Command::new("samovar")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Serves Nix stores as binary caches, queries caches, and diagnoses both")
        // The same text in every terminal, in the book and in tests.
        .term_width(80)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(serve::command())
        .subcommand(client_setup::command())
        .subcommand(closure())
        .subcommand(query())
        .subcommand(push::command())
        .subcommand(pull::command())
        .subcommand(mount::command())
        .subcommand(hook::command())
        .subcommand(doctor())
        .subcommand(status())
        .subcommand(config())
        .subcommand(secrets::password())
        .subcommand(token::with_subcommands(secrets::token()))
        .subcommand(pin::command())
        .subcommand(refs::command())
        .subcommand(workspace::command())
        .subcommand(caches::command())
        .subcommand(gc::command())
        .subcommand(fsck::command())
        .subcommand(import::command())
        .subcommand(export::command())
        .subcommand(profile::command())
        .subcommand(
            Command::new("completions")
                .about("Prints a shell completion script")
                .arg(required("shell", "SHELL").value_parser(value_parser!(Shell))),
        )
        .subcommand(
            Command::new("man")
                .about("Writes man pages into a directory")
                .arg(required("directory", "DIRECTORY").value_parser(value_parser!(PathBuf))),
        )
}

fn closure() -> Command {
    Command::new("closure")
        .about("Shows what the closures of paths would cost to download from a cache")
        .after_help(
            "Prints each path after its references, with its download size, and a summary line. \
             With --json, the fields of a path have the names that nix path-info --json gives \
             them; narHash is in the form of narinfos. \
             Exit code 0: all paths are available; 1: a path is missing or not signed by a \
             trusted key; 2: the command line is invalid; 3: the cache or the store is \
             unavailable.",
        )
        .arg(json())
        .arg(
            option("store", "URI")
                .help("Leave out paths that this store has; auto is the local store"),
        )
        .arg(
            option("trusted-public-keys", "KEYS")
                .action(ArgAction::Append)
                .value_parser(keys)
                .help(
                    "Require each path to be signed by one of these keys, separated by spaces, or \
                     to be content-addressed",
                ),
        )
        .arg(url())
        .arg(paths().required(true))
}

fn query() -> Command {
    Command::new("query")
        .about("Shows which paths a cache has")
        .after_help(
            "Prints \"present\" or \"absent\" before each path, in the given order. Exit code 0: \
             all paths are present; 1: a path is absent; 2: the command line is invalid; 3: the \
             cache is unavailable.",
        )
        .arg(json())
        .arg(url())
        .arg(paths().required(true))
}

fn doctor() -> Command {
    let command = Command::new("doctor")
        .about("Diagnoses the set-up of a server, or verifies the files of a store")
        .after_help(
            "Without --verify: checks keys, certificate, limits, sockets, directories, store and \
             daemon of the server that the options or --config describe, requests a path from \
             each cache of the running server, and prints errors and warnings with their fixes. \
             Exit code 0: no errors; 1: errors; 2: the command line or the configuration is \
             invalid. With --verify: prints \"damaged\" before each damaged path, with the \
             reason, and progress on standard error. Exit code 0: no path is damaged; 1: a path \
             is damaged; 2: a path cannot be verified, or the store is unavailable.",
        )
        .arg(option("url", "URL").help(
            "URL of the running server or of one of its caches [default: its first TCP listener]",
        ))
        .arg(
            option("client-config", "NIX.CONF")
                .value_parser(value_parser!(PathBuf))
                .help("Also check whether a client with this nix.conf uses and trusts the server"),
        )
        .args(client_certificate::options())
        .arg(switch("verify").help("Verify the NAR hashes of PATHs, or of all paths of the store"))
        .arg(
            option("rate", "BYTES")
                .requires("verify")
                .value_parser(rate)
                .help("Maximum read rate, in bytes per second, such as 64MiB; off for no limit"),
        )
        .arg(paths().requires("verify"));
    serve::with_options(command, |_| false)
}

fn status() -> Command {
    Command::new("status")
        .about("Shows the status of a server; for a live view run it under watch")
        .arg(json())
        .arg(hook::spool().help(
            "Show the backlog of this spool of samovar hook; without URL, no server is queried",
        ))
        .arg(Arg::new("url").value_name("URL").help(format!(
            "The server's admin listener [default: {}]",
            status::URL_DEFAULT
        )))
        // Other commands have an option for their URL.
        .arg(
            Arg::new("url-option")
                .long("url")
                .hide(true)
                .conflicts_with("url"),
        )
}

fn config() -> Command {
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

/// Parses a rate in bytes per second; `None` for no limit.
fn rate(text: &str) -> Result<Option<NonZeroU64>, &'static str> {
    let rate = config::size(text).map(NonZeroU64::new);
    rate.ok_or("expected a number of bytes per second, such as 4096 or 64MiB, or off")
}

fn url() -> Arg {
    required("url", "URL").help(
        "URL of a binary cache: Samovar, nix-serve, harmonia or static files; NIX_SSL_CERT_FILE \
         names the trusted certificates, as for Nix",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_consistent() {
        command().debug_assert();
    }

    #[test]
    fn rates_have_units() {
        for (text, expected) in [("4096", 4096), ("10 MiB", 10 << 20), ("0", 0), ("off", 0)] {
            assert_eq!(rate(text), Ok(NonZeroU64::new(expected)), "{text}");
        }
    }

    #[track_caller]
    fn refused(words: &[&str], part: &str) {
        let words = ["samovar"].iter().chain(words);
        let error = command().try_get_matches_from(words).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
        assert_eq!(error.exit_code(), 2);
    }

    #[test]
    fn invalid_command_lines_are_refused() {
        refused(&[], "Usage");
        refused(&["colsure"], "colsure");
        refused(&["closure"], "URL");
        refused(&["query", "http://a"], "PATH");
        refused(&["closure", "--nonsense"], "--nonsense");
        refused(&["closure", "--store"], "--store");
        refused(&["query", "http://a", "b", "--store", "auto"], "--store");
        refused(
            &["closure", "u", "p", "--trusted-public-keys", "x"],
            "public key",
        );
        refused(&["doctor", "--rate", "1"], "--verify");
        refused(&["doctor", "path"], "--verify");
        refused(&["doctor", "--verify", "--rate", "fast"], "--rate");
        refused(&["serve", "--priorty", "4"], "--priorty");
    }
}
