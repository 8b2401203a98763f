//! `samovar token create`, `list` and `revoke`: manage the upload tokens of a storage.
//!
//! The commands write to the database of the storage, even while a server runs. A new token is
//! valid from the next request on. A revoked token can publish nothing once `revoke` has returned.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};
use clap::{Arg, ArgMatches, Command, value_parser};
use samovar_cache::access::new_token;
use samovar_nix::Glob;
use samovar_protocol::names::TOKEN_PREFIX;
use samovar_server::config;
use samovar_storage::metadata::{Database, NewToken, caches, tokens};
use samovar_storage::token::{OIDC_PREFIX, Rights, Token, TokenHash};
use samovar_storage::{Location, RootKind, open_database};
use time::OffsetDateTime;

use crate::arguments::{option, required};
use crate::outcome::Failed;
use crate::storage::{announce_new, become_owner, configured, make_for_user, note};
use crate::usage::misspelled;
use crate::{secrets, serve};

/// Defines `samovar token`.
pub(crate) fn command() -> Command {
    let create = Command::new("create")
        .about("Makes a token for clients that push to a storage, and prints it")
        .after_help(
            "The token is printed once; the storage has only its hash. Clients use the token as \
             the password of any login in their netrc file. If the directory is missing or empty, \
             it becomes a new storage. Several tokens may have the same name. In a GLOB, * matches \
             any characters and ? matches one. Example: samovar token create --storage \
             /srv/samovar --name ci --rights read,push --expires 90d",
        )
        .args(storage())
        .arg(name().help("Name without blanks that shows who or what uses the token"))
        .arg(option("cache", "GLOB").value_parser(cache_pattern).help(
            "Caches for which the token is valid; the cache without a name is default \
                       [default: all]",
        ))
        .arg(option("names", "GLOB").value_parser(name_pattern).help(
            "Names, without the hash, of paths that the token may push or pin [default: \
                       all]",
        ))
        .arg(
            Arg::new("rights")
                .long("rights")
                .value_name("RIGHTS")
                .default_value("read,push")
                .value_parser(|text: &str| text.parse::<Rights>())
                .help("Rights, separated by commas: read, push, pin"),
        )
        .arg(
            option("expires", "TIME")
                .value_parser(lifetime)
                .help("Time until the token expires, as 12h, 90d or 52w [default: never]"),
        );
    let line = Command::new("line")
        .about("Makes a token that may read, and prints its line for access.tokens-file")
        .after_help(
            "The token itself is written to standard error only. The token needs no storage, and \
             cannot push. Example: samovar token line ci >> tokens",
        )
        .arg(required("name", "NAME").help("Name of the token"));
    secrets::token()
        .args_conflicts_with_subcommands(true)
        .subcommand_negates_reqs(true)
        .subcommand(line)
        .subcommand(create)
        .subcommand(
            Command::new("list")
                .about("Lists the tokens of a storage, the newest first")
                .args(storage()),
        )
        .subcommand(
            Command::new("revoke")
                .about("Revokes all tokens of a name; uploads in progress are not published")
                .args(storage())
                .arg(name().help("Name of the tokens")),
        )
}

/// Defines the options that name a storage.
pub(crate) fn storage() -> [Arg; 3] {
    [
        Arg::new("storage")
            .long("storage")
            .value_name("DIRECTORY")
            .value_parser(value_parser!(PathBuf))
            .help("Directory of the storage [default: that of the configuration]"),
        serve::config(),
        serve::set(false).conflicts_with("storage"),
    ]
}

/// Returns the storage in the directory of `--storage`, or of the configuration of the server.
pub(crate) fn location(matches: &ArgMatches) -> anyhow::Result<Location> {
    match matches.get_one::<PathBuf>("storage") {
        Some(directory) => Ok(Location::new(directory)),
        None => Ok(configured(matches)?.1),
    }
}

fn name() -> Arg {
    Arg::new("name")
        .long("name")
        .value_name("NAME")
        .required(true)
}

/// Runs `samovar token`.
///
/// # Errors
///
/// There is no such storage or no such token, or the database cannot be used.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<()> {
    let (name, matches) = match matches.subcommand() {
        Some(("line", matches)) => return secrets::make(matches, out),
        Some(subcommand) => subcommand,
        None => {
            check_name(matches)?;
            return secrets::make(matches, out);
        }
    };
    let location = location(matches)?;
    if name == "create" && matches.get_one::<PathBuf>("storage").is_none() {
        let config = serve::configuration(&serve::settings(matches)?)?;
        make_for_user(location.directory(), &config, false)?;
    }
    let metadata = open(&location, name == "create")?;
    match name {
        "create" => create(&metadata, matches, out),
        "revoke" => revoke(&metadata, matches, out),
        _ => list(&metadata, out),
    }
}

/// Refuses a misspelled subcommand as the name of a token.
fn check_name(matches: &ArgMatches) -> anyhow::Result<()> {
    let name = matches.get_one::<String>("name").map_or("", String::as_str);
    match misspelled(name, &command()) {
        Some(text) => Err(Failed::Usage.because(anyhow::anyhow!(
            "{text} For a token of this name: samovar token line {name}"
        ))),
        None => Ok(()),
    }
}

/// Opens the database of a storage, as its owner if root runs the command. Creates it if
/// `may_create` is true and the directory is new.
pub(crate) fn open(location: &Location, may_create: bool) -> anyhow::Result<Database> {
    become_owner(location.directory())?;
    open_as_caller(location, may_create)
}

/// Like [`open`], but root stays root.
pub(crate) fn open_as_caller(location: &Location, may_create: bool) -> anyhow::Result<Database> {
    let directory = location.directory();
    let failed = || format!("cannot use the storage {location}");
    if RootKind::at(location).with_context(failed)? == RootKind::New {
        ensure!(
            may_create,
            "{directory:?} is not a storage: name the directory of samovar serve --storage"
        );
        announce_new(location)?;
    }
    open_database(location).with_context(failed)
}

fn create(metadata: &Database, matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<()> {
    let name: &String = matches.get_one("name").context("a name is missing")?;
    ensure!(
        !name.is_empty() && !name.chars().any(|c| c.is_control() || c.is_whitespace()),
        "the name must not be empty, or contain a blank or a control character: it may become the \
         login in a netrc file"
    );
    ensure!(
        !name.starts_with(OIDC_PREFIX),
        "names that begin with {OIDC_PREFIX} are those of tokens that CI jobs get for their ID \
         tokens: choose another name"
    );
    let pattern = |id| matches.get_one::<Glob>(id).cloned();
    let rights = matches.get_one::<Rights>("rights").copied();
    let lifetime: Option<&i64> = matches.get_one("expires");
    let (random, _line) = new_token(name)?;
    let token = format!("{TOKEN_PREFIX}{random}");
    let hash = TokenHash::of(token.as_bytes()).context("a token has its prefix")?;
    let new = NewToken {
        name: name.clone(),
        cache: pattern("cache"),
        names: pattern("names"),
        rights: rights.unwrap_or_default(),
        expires_at: lifetime.map(|seconds| metadata.now().saturating_add(*seconds)),
    };
    tokens::add(metadata, &hash, &new)?;
    writeln!(out, "{token}")?;
    out.flush()?;
    let expiry = match new.expires_at {
        Some(at) => format!("It expires on {}.", date(at)),
        None => "It never expires.".to_owned(),
    };
    note(&format!(
        "This token is not shown again. {expiry} To set up a client, run there:\n  \
         samovar use --token-file FILE URL\nOr, for nix copy without samovar, put it into the \
         client's netrc file:\n  machine HOST login {name} password TOKEN"
    ));
    let tokens = tokens::all(metadata)?;
    let of_name = tokens.iter().filter(|token| token.name == *name);
    let count = of_name
        .filter(|token| token.is_valid(metadata.now()))
        .count();
    if count > 1 {
        note(&format!(
            "There are {count} valid tokens named {name:?} now; samovar token revoke --name {name} \
             revokes all of them."
        ));
    }
    if let Some(cache) = &new.cache
        && !caches::names(metadata)?
            .iter()
            .any(|name| cache.matches(name))
    {
        note(&format!(
            "no cache of this storage has the name \"{cache}\" yet: compare it with the \
             [caches.NAME] of the configuration"
        ));
    }
    Ok(())
}

fn revoke(metadata: &Database, matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<()> {
    let name: &String = matches.get_one("name").context("a name is missing")?;
    match tokens::revoke(metadata, name)? {
        0 => bail!("there is no valid token {name:?}; see samovar token list"),
        1 => Ok(writeln!(out, "1 token was revoked")?),
        count => Ok(writeln!(out, "{count} tokens were revoked")?),
    }
}

fn list(metadata: &Database, out: &mut dyn Write) -> anyhow::Result<()> {
    let row = |out: &mut dyn Write, cells: [&str; 7]| {
        let [name, rights, cache, names, created, expires, state] = cells;
        writeln!(
            out,
            "{name:20} {rights:13} {cache:12} {names:12} {created:10} {expires:10} {state}"
        )
    };
    let pattern = |pattern: &Option<Glob>| {
        let pattern = pattern.as_ref().map(Glob::to_string);
        pattern.unwrap_or_else(|| "all".to_owned())
    };
    row(
        out,
        [
            "NAME", "RIGHTS", "CACHE", "NAMES", "CREATED", "EXPIRES", "STATE",
        ],
    )?;
    for token in tokens::all(metadata)? {
        let expires = token.expires_at.map_or_else(|| "never".to_owned(), date);
        row(
            out,
            [
                &token.name,
                &token.rights.to_string(),
                &pattern(&token.cache),
                &pattern(&token.names),
                &date(token.created_at),
                &expires,
                state(&token, metadata.now()),
            ],
        )?;
    }
    Ok(())
}

fn state(token: &Token, now: i64) -> &'static str {
    match token.revoked_at {
        Some(_) => "revoked",
        None if token.is_valid(now) => "valid",
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

/// Formats a time in seconds since 1970 as `2026-11-23T22:15:07Z`.
pub(crate) fn date_and_time(seconds: i64) -> String {
    OffsetDateTime::from_unix_timestamp(seconds).map_or_else(
        |_out_of_range| "-".to_owned(),
        |time| {
            let (hour, minute, second) = time.to_hms();
            format!("{}T{hour:02}:{minute:02}:{second:02}Z", date(seconds))
        },
    )
}

/// Parses a pattern for names of caches.
fn cache_pattern(text: &str) -> Result<Glob, String> {
    glob(text, "cache", |c| {
        c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'
    })
}

/// Parses a pattern for names of store paths.
fn name_pattern(text: &str) -> Result<Glob, String> {
    glob(text, "store path", |c| {
        c.is_ascii_alphanumeric() || "+-._=".contains(c)
    })
}

/// Parses a pattern. Refuses a pattern that can match no name, because of a character.
fn glob(text: &str, what: &str, is_of_name: impl Fn(char) -> bool) -> Result<Glob, String> {
    if text.is_empty() {
        return Err("the pattern is empty: leave out the option for all names".to_owned());
    }
    match text.chars().find(|c| !"*?".contains(*c) && !is_of_name(*c)) {
        Some(c) => Err(format!("the name of a {what} cannot contain {c:?}")),
        None => Ok(Glob::new(text)),
    }
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
    fn patterns() {
        for good in ["team-a", "team-*", "*", "?", "a1"] {
            assert_eq!(cache_pattern(good), Ok(Glob::new(good)));
            assert_eq!(name_pattern(good), Ok(Glob::new(good)));
        }
        assert!(name_pattern("App_1.0+b=c").is_ok());
        for wrong in ["", "Team", "a/b", "a b", "[ab]"] {
            assert!(cache_pattern(wrong).is_err(), "{wrong:?}");
        }
        for wrong in ["", "a/b", "a b", "[ab]", "\u{e4}"] {
            assert!(name_pattern(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(1_795_392_000), "2026-11-23");
        assert_eq!(date(i64::MAX), "-");
        assert_eq!(date_and_time(1_795_392_061), "2026-11-23T00:01:01Z");
        assert_eq!(date_and_time(i64::MAX), "-");
    }
}
