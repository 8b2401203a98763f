//! `samovar token create`, `list` and `revoke`: manage the upload tokens of a storage.
//!
//! The commands write to the database of the storage, even while a server runs. A new token is
//! valid from the next request on. A revoked token can publish nothing once `revoke` has returned.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use clap::{Arg, ArgMatches, Command, value_parser};
use samovar_cache::access::new_token;
use samovar_server::config;
use samovar_storage::metadata::{Metadata, NewToken, Sqlite};
use samovar_storage::token::{PREFIX, Rights, Token, TokenHash, now};
use samovar_storage::{RootKind, open_database};
use time::OffsetDateTime;

/// Adds the subcommands to `samovar token`.
pub(crate) fn with_subcommands(command: Command) -> Command {
    let create = Command::new("create")
        .about("Makes a token for clients that push to a storage, and prints it")
        .after_help(
            "The token is printed once; the storage has its hash. Clients use it as the password \
             of any login, in netrc. Example: samovar token create --storage /srv/samovar \
             --name ci --rights read,push --expires 90d",
        )
        .arg(storage())
        .arg(name().help("Name for people: who or what uses the token"))
        .arg(
            Arg::new("rights")
                .long("rights")
                .value_name("RIGHTS")
                .default_value("read,push")
                .value_parser(|text: &str| text.parse::<Rights>())
                .help("Rights, separated by commas: read, push"),
        )
        .arg(
            Arg::new("cache")
                .long("cache")
                .value_name("NAME")
                .help("Cache that it is for; \"default\" is the one without a name [default: all]"),
        )
        .arg(
            Arg::new("expires")
                .long("expires")
                .value_name("TIME")
                .value_parser(lifetime)
                .help("Time until it expires, as 12h, 90d or 52w [default: never]"),
        );
    command
        .args_conflicts_with_subcommands(true)
        .subcommand_negates_reqs(true)
        .subcommand(create)
        .subcommand(
            Command::new("list")
                .about("Lists the tokens of a storage, the newest first")
                .arg(storage()),
        )
        .subcommand(
            Command::new("revoke")
                .about("Revokes all tokens of a name; uploads in progress are not published")
                .arg(storage())
                .arg(name().help("Name of the tokens")),
        )
}

pub(crate) fn storage() -> Arg {
    Arg::new("storage")
        .long("storage")
        .value_name("DIRECTORY")
        .required(true)
        .value_parser(value_parser!(PathBuf))
        .help("Directory of the storage, as in samovar serve --storage")
}

fn name() -> Arg {
    Arg::new("name")
        .long("name")
        .value_name("NAME")
        .required(true)
}

/// Runs one subcommand of `samovar token`.
///
/// # Errors
///
/// There is no such storage or no such token, or the database cannot be used.
pub(crate) fn run(name: &str, matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<()> {
    let directory: &PathBuf = matches.get_one("storage").context("a storage is missing")?;
    let metadata = open(directory, name == "create")?;
    match name {
        "create" => create(&metadata, matches, out),
        "revoke" => revoke(&metadata, matches, out),
        _ => list(&metadata, out),
    }
}

pub(crate) fn open(directory: &Path, may_create: bool) -> anyhow::Result<Sqlite> {
    let failed = || format!("cannot use the storage {directory:?}");
    if RootKind::of(directory).with_context(failed)? == RootKind::New {
        ensure!(
            may_create,
            "{directory:?} is not a storage: name the directory of samovar serve --storage"
        );
        // Ignore errors: standard error may be closed, and the token is created nevertheless.
        writeln!(
            io::stderr(),
            "making a new storage in {}",
            directory.display()
        )
        .ok();
    }
    open_database(directory).with_context(failed)
}

fn create(metadata: &Sqlite, matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<()> {
    let name: &String = matches.get_one("name").context("a name is missing")?;
    ensure!(
        !name.is_empty() && !name.chars().any(char::is_control),
        "the name must not be empty or contain a control character"
    );
    let cache: Option<&String> = matches.get_one("cache");
    let rights = matches.get_one::<Rights>("rights").copied();
    let lifetime: Option<&i64> = matches.get_one("expires");
    let (random, _line) = new_token(name)?;
    let token = format!("{PREFIX}{random}");
    let hash = TokenHash::of(token.as_bytes()).context("a token has its prefix")?;
    let new = NewToken {
        name: name.clone(),
        cache: cache.cloned(),
        rights: rights.unwrap_or_default(),
        expires_at: lifetime.map(|seconds| now().saturating_add(*seconds)),
    };
    metadata.add_token(&hash, &new)?;
    writeln!(out, "{token}")?;
    out.flush()?;
    // Ignore errors: standard error may be closed, and the token was already printed.
    writeln!(
        io::stderr(),
        "This token is not shown again. For nix copy, put it into the client's netrc file:\n  \
         machine HOST login {name} password TOKEN"
    )
    .ok();
    Ok(())
}

fn revoke(metadata: &Sqlite, matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<()> {
    let name: &String = matches.get_one("name").context("a name is missing")?;
    match metadata.revoke_tokens(name)? {
        0 => bail!("there is no valid token {name:?}; see samovar token list"),
        1 => Ok(writeln!(out, "1 token was revoked")?),
        count => Ok(writeln!(out, "{count} tokens were revoked")?),
    }
}

fn list(metadata: &Sqlite, out: &mut dyn Write) -> anyhow::Result<()> {
    let row = |out: &mut dyn Write, cells: [&str; 6]| {
        let [name, rights, cache, created, expires, state] = cells;
        writeln!(
            out,
            "{name:20} {rights:10} {cache:12} {created:10} {expires:10} {state}"
        )
    };
    row(
        out,
        ["NAME", "RIGHTS", "CACHE", "CREATED", "EXPIRES", "STATE"],
    )?;
    for token in metadata.tokens()? {
        let expires = token.expires_at.map_or_else(|| "never".to_owned(), date);
        row(
            out,
            [
                &token.name,
                &token.rights.to_string(),
                token.cache.as_deref().unwrap_or("all"),
                &date(token.created_at),
                &expires,
                state(&token),
            ],
        )?;
    }
    Ok(())
}

fn state(token: &Token) -> &'static str {
    match token.revoked_at {
        Some(_) => "revoked",
        None if token.is_valid(now()) => "valid",
        None => "expired",
    }
}

/// Formats the date of a Unix time in seconds.
pub(crate) fn date(seconds: i64) -> String {
    OffsetDateTime::from_unix_timestamp(seconds).map_or_else(
        |_out_of_range| "-".to_owned(),
        |time| {
            let month = u8::from(time.month());
            format!("{:04}-{month:02}-{:02}", time.year(), time.day())
        },
    )
}

/// Parses the lifetime of a token, such as `30d`. Returns it in seconds. A number without a unit is
/// refused: it could be meant as days or as seconds.
pub(crate) fn lifetime(text: &str) -> Result<i64, String> {
    let has_unit = text.ends_with(|last: char| last.is_ascii_alphabetic());
    config::time(text)
        .filter(|_| has_unit)
        .and_then(|time| i64::try_from(time.as_secs()).ok())
        .filter(|seconds| *seconds > 0)
        .ok_or_else(|| {
            format!("{text:?} is not a time of at least a second with its unit, such as 12h or 90d")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes() {
        assert_eq!(lifetime("12h"), Ok(43_200));
        assert_eq!(lifetime("1d"), Ok(86_400));
        assert_eq!(lifetime("52w"), Ok(31_449_600));
        assert_eq!(lifetime("10 min"), Ok(600));
        for wrong in ["", "d", "0d", "999ms", "-1d", "1.5d", "d1", "1ä", "90"] {
            assert!(lifetime(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(1_795_392_000), "2026-11-23");
        assert_eq!(date(i64::MAX), "-");
    }
}
