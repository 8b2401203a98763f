//! The command line.

use std::num::NonZeroU64;
use std::path::PathBuf;

use clap::{Arg, ArgAction, Command, value_parser};
use clap_complete::Shell;
use samovar_nix::PublicKey;

use crate::{secrets, serve, status};

/// Public keys in one text, separated by white space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Keys(pub(crate) Vec<PublicKey>);

/// All commands: what is parsed, and what help, man pages and completions say.
pub fn command() -> Command {
    Command::new("samovar")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Serves Nix stores as binary caches, asks caches, and looks after both")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommand(serve::command())
        .subcommand(closure())
        .subcommand(query())
        .subcommand(doctor())
        .subcommand(status())
        .subcommand(config())
        .subcommand(secrets::password())
        .subcommand(secrets::token())
        .subcommand(
            Command::new("completions")
                .about("Prints what a shell has to know to complete this command line")
                .arg(
                    Arg::new("shell")
                        .value_name("SHELL")
                        .required(true)
                        .value_parser(value_parser!(Shell)),
                ),
        )
        .subcommand(
            Command::new("man")
                .about("Writes the man pages into a directory")
                .arg(
                    Arg::new("directory")
                        .value_name("DIRECTORY")
                        .required(true)
                        .value_parser(value_parser!(PathBuf)),
                ),
        )
}

fn closure() -> Command {
    Command::new("closure")
        .about("What paths and all they need would cost to download from a cache")
        .after_help(
            "Prints each path behind those it refers to, with its size, and a last line with the \
             sum. Exit code 0: everything is there; 1: something is missing or not signed by a \
             trusted key; 2: the command line cannot be understood; 3: the cache or the store \
             cannot be asked.",
        )
        .arg(json())
        .arg(
            Arg::new("store")
                .long("store")
                .value_name("URI")
                .help("Leave out what this store has; auto is the one of this machine"),
        )
        .arg(
            Arg::new("trusted-public-keys")
                .long("trusted-public-keys")
                .value_name("KEYS")
                .action(ArgAction::Append)
                .value_parser(keys)
                .help(
                    "Every path must be signed by one of these keys, separated by spaces, or be \
                     content-addressed",
                ),
        )
        .arg(url())
        .arg(paths().required(true))
}

fn query() -> Command {
    Command::new("query")
        .about("Which paths a cache has")
        .after_help(
            "Prints \"present\" or \"absent\" before each path, in the order asked. Exit code 0: \
             everything is there; 1: something is not; 2: the command line cannot be understood; \
             3: the cache cannot be asked.",
        )
        .arg(json())
        .arg(url())
        .arg(paths().required(true))
}

fn doctor() -> Command {
    let command = Command::new("doctor")
        .about("Whether a server can serve well and does, and whether a store is as registered")
        .after_help(
            "Without --verify: looks at keys, certificate, limits, sockets, directories, store and \
             daemon of the server that the options or --config describe, asks the running server \
             for a path, and says what is broken and what mends it. Exit code 0: nothing is \
             broken; 1: something is; 2: the configuration cannot be understood. With --verify: \
             prints \"damaged\" before each path that is, with what is wrong, and says on standard \
             error where it stands. Exit code 0: everything is right; 1: something is damaged; 2: \
             something cannot be verified, or not be asked.",
        )
        .arg(
            Arg::new("url")
                .long("url")
                .value_name("URL")
                .help("Where the server is reached; default: the first of what it listens on"),
        )
        .arg(
            Arg::new("client-config")
                .long("client-config")
                .value_name("NIX.CONF")
                .value_parser(value_parser!(PathBuf))
                .help("A client's nix.conf: will it use the server, and trust it?"),
        )
        .arg(
            Arg::new("verify")
                .long("verify")
                .action(ArgAction::SetTrue)
                .help(
                    "Read all files of PATHs, or of all paths, and compare the hash of their NAR",
                ),
        )
        .arg(
            Arg::new("rate")
                .long("rate")
                .value_name("BYTES")
                .requires("verify")
                .value_parser(rate)
                .help("Read at most so many bytes in a second"),
        )
        .arg(paths().requires("verify"));
    serve::with_options(command, "verify")
}

fn status() -> Command {
    Command::new("status")
        .about("How busy a server is: its status page in a terminal, live")
        .arg(json())
        .arg(
            Arg::new("once")
                .long("once")
                .action(ArgAction::SetTrue)
                .help("Print it once, also on a terminal"),
        )
        .arg(Arg::new("url").value_name("URL").help(format!(
            "The server's admin listener [default: {}]",
            status::URL_DEFAULT
        )))
}

fn config() -> Command {
    Command::new("config")
        .about("Configurations of other servers")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("import")
                .about("Prints what a configuration of harmonia says, as one of samovar")
                .arg(
                    Arg::new("file")
                        .value_name("HARMONIA.TOML")
                        .required(true)
                        .value_parser(value_parser!(PathBuf)),
                ),
        )
}

fn rate(text: &str) -> Result<NonZeroU64, &'static str> {
    let rate = text.parse();
    rate.map_err(|_error| "it is no number of bytes in a second, 1 or more")
}

fn json() -> Arg {
    Arg::new("json")
        .long("json")
        .action(ArgAction::SetTrue)
        .help("Print one JSON document")
}

fn url() -> Arg {
    Arg::new("url").value_name("URL").required(true).help(
        "A binary cache: Samovar, nix-serve, harmonia, or files behind a web server; \
         NIX_SSL_CERT_FILE names the certificates to trust, as for Nix",
    )
}

fn paths() -> Arg {
    Arg::new("paths")
        .value_name("PATH")
        .action(ArgAction::Append)
        .num_args(0..)
        .help(
            "A path in the store, a base name, a hash part, or a link to a path, such as \
             ./result; - reads them from standard input, one a line",
        )
}

fn keys(text: &str) -> Result<Keys, String> {
    let key = |text: &str| {
        PublicKey::parse(text)
            .map_err(|_error| format!("{text:?} is no public key: it has the form name:base-64"))
    };
    let keys: Result<Vec<_>, String> = text.split_ascii_whitespace().map(key).collect();
    keys.map(Keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_agree_with_each_other() {
        command().debug_assert();
    }

    #[track_caller]
    fn refused(words: &[&str], part: &str) {
        let words = ["samovar"].iter().chain(words);
        let error = command().try_get_matches_from(words).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
        assert_eq!(error.exit_code(), 2);
    }

    #[test]
    fn command_lines_that_say_nothing() {
        refused(&[], "Usage");
        refused(&["colsure"], "closure");
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
        refused(&["doctor", "--verify", "--rate", "0"], "--rate");
        refused(&["serve", "--priorty", "4"], "--priority");
    }
}
