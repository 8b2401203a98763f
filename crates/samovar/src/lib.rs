//! The command line `samovar`. It runs the server with a configuration file (`samovar serve`),
//! queries Nix binary caches, pushes paths to them and sets up their clients, keeps trees of small
//! files as snapshots, workspaces and mounts, manages the storage of uploaded paths, verifies
//! stores, and diagnoses set-ups.
//!
//! [`cli::command`] defines the command line, also for help, man pages and completions. [`run`]
//! runs a command line. `Cache` is a client of a binary cache. It uses bulk queries
//! (`docs/bulk-queries.md`) if the server supports them, else it requests single narinfos over many
//! connections. [`Records`] parses the response to a bulk query, strictly.
//!
//! # Out of scope
//!
//! Writing to a Nix store, and formats: those of Nix are in `samovar-nix`, those of snapshots in
//! `samovar-workspace`.

#![forbid(unsafe_code)]

mod arguments;
mod cache;
mod caches;
pub mod cli;
mod client_certificate;
mod client_setup;
mod command;
mod credential;
mod credentials;
mod disk;
mod doctor;
mod export;
mod fault;
mod fsck;
mod gc;
mod hook;
mod http;
mod import;
mod mount;
mod mounts;
mod netrc;
mod notice;
mod outcome;
mod pace;
mod pin;
mod private;
mod profile;
mod progress;
mod pull;
mod push;
mod records;
mod refs;
mod remote;
mod roots;
mod secrets;
mod serve;
mod size;
mod snapshot;
mod status;
mod storage;
mod token;
mod trust;
mod user_dirs;
mod walk;
mod workspace;

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Command};
use clap_complete::Shell;
use samovar_server::config::{OptionSpec, import_harmonia, nearest};
pub use samovar_server::logins::without_logins;

use outcome::{Failed, Outcome};
pub use records::{Record, Records, RecordsError};

/// The error of [`is_exec_without_dashes`].
const EXEC_USAGE: &str =
    "write the command of --exec after --, as in: samovar push URL --exec -- nix build";

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
            return Err(Failure {
                error: anyhow::Error::msg(match is_exec_without_dashes(&words) {
                    true => EXEC_USAGE.to_owned(),
                    false => one_line(&error, &words),
                }),
                code: ExitCode::from(2),
            });
        }
        // Print help or version. Ignore errors: standard output may be closed.
        Err(error) => {
            error.print().unwrap_or_default();
            return Ok(ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2)));
        }
    };
    let Some((name, one)) = matches.subcommand() else {
        return Ok(ExitCode::from(2));
    };
    // The exit code of an error without a reason follows.
    let transferred = match name {
        "push" => Some((push::run(one, out), Failed::Unavailable)),
        "pull" => Some((pull::run(one, out), Failed::Unavailable)),
        "workspace" => Some((workspace::run(one, out), Failed::Unavailable)),
        "ref" => Some((refs::run(one, out), Failed::Unavailable)),
        "import" => Some((
            import::run(one, out).map(Outcome::code),
            Failed::Unavailable,
        )),
        "export" => Some((
            export::run(one, out).map(Outcome::code),
            Failed::Unavailable,
        )),
        "mount" => Some((
            mount::run(one, out).map(|()| ExitCode::SUCCESS),
            Failed::Unavailable,
        )),
        "use" => Some((
            client_setup::run(one, out).map(Outcome::code),
            Failed::Refused,
        )),
        _ => None,
    };
    if let Some((transferred, default)) = transferred {
        return transferred.map_err(|error| Failure {
            code: Failed::of(&error).unwrap_or(default).code(),
            error,
        });
    }
    let (outcome, error_code) = match name {
        "closure" => (command::closure(one, out), Some(3)),
        "query" => (command::query(one, out), Some(3)),
        "doctor" if one.get_flag("verify") => (doctor::verify_paths(one, out), Some(2)),
        "doctor" => (doctor::run(one, out), None),
        "fsck" => (fsck::run(one, out), Some(2)),
        "profile" => (profile::run(one, out), Some(2)),
        _ => (run_other(name, one, out).map(|()| Outcome::Complete), None),
    };
    outcome.map(Outcome::code).map_err(|error| Failure {
        code: match Failed::of(&error) {
            Some(Failed::Usage) => Failed::Usage.code(),
            _ => ExitCode::from(error_code.unwrap_or(1)),
        },
        error,
    })
}

/// Runs a command whose only exit codes are those of success and failure.
fn run_other(name: &str, one: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<()> {
    match name {
        "serve" => serve::run(one, out),
        "hook" => hook::run(one),
        "status" => status::run(one, out),
        "config" => config(one, out),
        "password" => secrets::hash(one, out),
        "token" => match one.subcommand() {
            Some(("line", matches)) => secrets::make(matches, out),
            Some((name, matches)) => token::run(name, matches, out),
            None => {
                check_token_name(one)?;
                secrets::make(one, out)
            }
        },
        "pin" => match one.subcommand() {
            Some((name, matches)) => pin::run(name, matches, out),
            None => Ok(()),
        },
        "cache" => match one.subcommand() {
            Some((name, matches)) => caches::run(name, matches, out),
            None => Ok(()),
        },
        "gc" => gc::run(one, out),
        "completions" => completions(one, out),
        _ => man(one),
    }
}

/// Refuses a misspelled subcommand as the name of a token.
fn check_token_name(matches: &ArgMatches) -> anyhow::Result<()> {
    let name = matches.get_one::<String>("name").map_or("", String::as_str);
    let command = cli::command();
    let token = command.find_subcommand("token");
    match token.and_then(|token| misspelled(name, token)) {
        Some(text) => Err(Failed::Usage.because(anyhow::anyhow!(
            "{text} For a token of this name: samovar token line {name}"
        ))),
        None => Ok(()),
    }
}

/// Returns a message about a word that is nearly a subcommand of a command.
fn misspelled(word: &str, command: &Command) -> Option<String> {
    let known = command.get_subcommands().map(Command::get_name);
    let near = nearest(word, known).filter(|near| *near != word)?;
    Some(format!("unknown command {word:?}; did you mean {near}?"))
}

/// Returns whether the command of `samovar push --exec` is not separated from the options. The
/// advice of the command-line parser is wrong in this case.
fn is_exec_without_dashes(words: &[OsString]) -> bool {
    let has = |wanted: &str| words.iter().any(|word| word == wanted);
    has("push") && has("--exec") && !has("--")
}

/// Formats an error of the command-line parser in one line, which names the help of the command.
fn one_line(error: &clap::Error, words: &[OsString]) -> String {
    let (mut command, mut name) = (&cli::command(), "samovar".to_owned());
    let mut is_misspelled = None;
    for word in words.iter().skip(1) {
        let Some(subcommand) = command.find_subcommand(word) else {
            // The name of a token may stand in the place of a subcommand.
            let word = word.to_str().filter(|_| command.get_name() == "token");
            is_misspelled = word.and_then(|word| misspelled(word, command));
            break;
        };
        command = subcommand;
        name = format!("{name} {}", command.get_name());
    }
    let text = is_misspelled
        .or_else(|| unknown(error, command))
        .unwrap_or_else(|| {
            let text = error.render().to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            let is_usage = |line: &&str| {
                line.starts_with("Usage:") || line.starts_with("For more information")
            };
            // The usage may have several lines.
            let lines = text
                .lines()
                .map(str::trim)
                .take_while(|line| !is_usage(line));
            let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
            lines.join(" ").replace(" tip: ", "; ")
        });
    let see = if text.ends_with('?') { " See" } else { "; see" };
    format!("{text}{see} {name} --help")
}

/// Formats the error for an unknown option or command, with the most similar name. Returns `None`
/// for other errors.
fn unknown(error: &clap::Error, command: &Command) -> Option<String> {
    let given = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text),
        _ => None,
    };
    let hint = |name: &str, known: &mut dyn Iterator<Item = &str>, dashes: &str| {
        let near = nearest(name, known);
        near.map_or_else(String::new, |near| {
            format!("; did you mean {dashes}{near}?")
        })
    };
    if let Some(word) = given(ContextKind::InvalidSubcommand) {
        let known = command.get_subcommands();
        let mut known = known
            .flat_map(Command::get_name_and_visible_aliases)
            .chain(["help"]);
        return Some(format!(
            "unknown command {word:?}{}",
            hint(word, &mut known, "")
        ));
    }
    let option = given(ContextKind::InvalidArg)?.strip_prefix("--")?;
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let options = command.get_arguments();
    let known: Vec<&str> = options
        .flat_map(|arg| {
            arg.get_long()
                .into_iter()
                .chain(arg.get_all_aliases().unwrap_or_default())
        })
        .chain(["help"])
        .collect();
    let of_nix_serve = OptionSpec::replacing(option).map(OptionSpec::option);
    let of_nix_serve = of_nix_serve.filter(|name| known.contains(&&**name));
    let hint = match of_nix_serve {
        Some(name) => format!("; did you mean --{name}?"),
        None => match known.iter().find(|name| begins(name, option)) {
            Some(longer) => format!("; did you mean --{longer}?"),
            None => hint(option, &mut known.iter().copied(), "--"),
        },
    };
    Some(format!("unknown option --{option}{hint}"))
}

/// Returns whether the first words of an option are this text.
fn begins(option: &str, text: &str) -> bool {
    let rest = option.strip_prefix(text);
    rest.is_some_and(|rest| rest.starts_with('-'))
}

fn config(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<()> {
    let import = matches.subcommand_matches("import");
    let file: Option<&PathBuf> = import.and_then(|import| import.get_one("file"));
    let file = file.context("a file is missing")?;
    let text = import_harmonia(file)?;
    Ok(out.write_all(text.as_bytes())?)
}

fn completions(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<()> {
    let shell: &Shell = matches.get_one("shell").context("a shell is missing")?;
    let mut text = Vec::new();
    let mut command = serve::with_words(cli::command());
    clap_complete::generate(*shell, &mut command, "samovar", &mut text);
    Ok(out.write_all(&text)?)
}

fn man(matches: &ArgMatches) -> anyhow::Result<()> {
    let directory: &PathBuf = matches
        .get_one("directory")
        .context("a directory is missing")?;
    fs::create_dir_all(directory).with_context(|| format!("cannot create {directory:?}"))?;
    clap_mangen::generate_to(cli::command(), directory)
        .with_context(|| format!("cannot write man pages into {directory:?}"))
}
