//! Defines the arguments that several commands share.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, value_parser};
use samovar_nix::PublicKey;

use crate::credentials::{OidcOptions, Sources};
use crate::trust::keys;

/// Defines a positional argument that must be given.
pub(crate) fn required(id: &'static str, value_name: &'static str) -> Arg {
    Arg::new(id).value_name(value_name).required(true)
}

/// Defines an option `--id` that takes a value.
pub(crate) fn option(id: &'static str, value_name: &'static str) -> Arg {
    Arg::new(id).long(id).value_name(value_name)
}

/// Defines an option `--id` that takes no value.
pub(crate) fn switch(id: &'static str) -> Arg {
    Arg::new(id).long(id).action(ArgAction::SetTrue)
}

/// Defines `--json`.
pub(crate) fn json() -> Arg {
    switch("json").help("Print a JSON document")
}

/// Defines the positional arguments that name store paths.
pub(crate) fn paths() -> Arg {
    Arg::new("paths")
        .value_name("PATH")
        .action(ArgAction::Append)
        .num_args(0..)
        .help(
            "Store path, base name, hash part, or link to a store path such as ./result; - reads \
             paths from standard input, one per line",
        )
}

/// Defines the option `--spool`.
pub(crate) fn spool() -> Arg {
    option("spool", "DIRECTORY")
        .value_parser(value_parser!(PathBuf))
        .help("Directory with one file for each build")
}

/// Defines the options that name files with credentials.
pub(crate) fn credentials() -> [Arg; 2] {
    let file = |id, what| {
        option(id, "FILE")
            .value_parser(value_parser!(PathBuf))
            .help(what)
    };
    [
        file(
            "token-file",
            "File with a token in its first line; - for standard input",
        ),
        file(
            "netrc-file",
            "File with the token as the password for the host of the URL",
        ),
    ]
}

/// Defines the options of [`credentials`], and those of CI jobs, for the commands that such jobs
/// run.
pub(crate) fn job_credentials() -> [Arg; 4] {
    let [token_file, netrc_file] = credentials();
    let oidc = oidc().conflicts_with_all(["token-file", "netrc-file"]);
    [token_file, netrc_file, oidc, id_token_file()]
}

/// Defines `--oidc`.
pub(crate) fn oidc() -> Arg {
    option("oidc", "AUDIENCE")
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value("")
        .help(
            "Exchange the ID token of this CI job for a token, which is renewed; AUDIENCE: that of \
             the ID token [default: URL of the server without a path]",
        )
}

/// Defines `--id-token-file`.
pub(crate) fn id_token_file() -> Arg {
    option("id-token-file", "FILE")
        .requires("oidc")
        .value_parser(value_parser!(PathBuf))
        .help("File with the ID token [default: SAMOVAR_ID_TOKEN, or that of GitHub]")
}

/// Reads the options of [`oidc`] and [`id_token_file`].
pub(crate) fn oidc_options(matches: &ArgMatches) -> Option<OidcOptions> {
    // Not all commands have the option.
    let audience = matches.try_get_one::<String>("oidc").ok()??;
    Some(OidcOptions {
        id_token_file: matches.get_one::<PathBuf>("id-token-file").cloned(),
        audience: Some(audience.clone()).filter(|audience| !audience.is_empty()),
    })
}

/// Reads the options of [`credentials`] or [`job_credentials`].
pub(crate) fn sources(matches: &ArgMatches) -> Sources {
    let file = |id: &str| matches.get_one::<PathBuf>(id).cloned();
    Sources {
        oidc: oidc_options(matches),
        token_file: file("token-file"),
        netrc_file: file("netrc-file"),
        is_recorded: false,
    }
}

/// Defines `--trusted-public-keys`.
pub(crate) fn trusted_keys() -> Arg {
    option("trusted-public-keys", "KEYS")
        .action(ArgAction::Append)
        .value_parser(keys)
        .help("Require a signature by one of these keys, separated by spaces")
}

/// Returns the keys of [`trusted_keys`].
pub(crate) fn keys_of(matches: &ArgMatches) -> Vec<PublicKey> {
    let keys = matches.get_many::<Vec<PublicKey>>("trusted-public-keys");
    keys.into_iter().flatten().flatten().cloned().collect()
}
