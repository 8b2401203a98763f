//! The table of all commands of `samovar`. Each entry has the definition of the command, from which
//! help, man pages and completions are made, its function, and its exit codes.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{ArgMatches, Command, value_parser};
use clap_complete::Shell;

use crate::arguments::required;
use crate::outcome::{Failed, Outcome, reason};
use crate::{
    caches, client_setup, command, convert, copy, doctor, export, fsck, gc, hook, import, mount,
    nodes, pin, prefetch, profile, pull, push, refs, secrets, serve, status, token, workspace,
};

/// A command.
#[derive(Debug)]
pub(crate) struct Entry {
    define: fn() -> Command,
    pub(crate) run: fn(&ArgMatches, &mut dyn Write) -> anyhow::Result<ExitCode>,
    pub(crate) failure: FailureCode,
}

/// The exit code of a command that failed. The code is 2 if the command line or the configuration
/// is invalid.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FailureCode {
    /// The code of the error's reason; if the error has none, the code of this reason.
    OfReason(Failed),
    /// This code, whatever the reason is.
    Always(u8),
    /// The code 2 with this option, because 1 tells what was found; otherwise 1.
    TwoWith(&'static str),
}

impl FailureCode {
    pub(crate) fn code(self, matches: &ArgMatches, error: &anyhow::Error) -> ExitCode {
        match (self, reason(error)) {
            (_, Some(Failed::Usage)) => Failed::Usage.code(),
            (Self::OfReason(default), reason) => reason.unwrap_or(default).code(),
            (Self::Always(code), _) => ExitCode::from(code),
            (Self::TwoWith(option), _) => ExitCode::from(1 + u8::from(matches.get_flag(option))),
        }
    }
}

/// All commands, in the order of the help.
static COMMANDS: &[Entry] = &[
    Entry {
        define: serve::command,
        run: |one, out| serve::run(one, out).map(success),
        failure: FailureCode::Always(1),
    },
    Entry {
        define: client_setup::command,
        run: |one, out| client_setup::run(one, out).map(Outcome::code),
        failure: FailureCode::OfReason(Failed::Refused),
    },
    Entry {
        define: command::closure_command,
        run: |one, out| command::closure(one, out).map(Outcome::code),
        failure: FailureCode::Always(3),
    },
    Entry {
        define: command::query_command,
        run: |one, out| command::query(one, out).map(Outcome::code),
        failure: FailureCode::Always(3),
    },
    Entry {
        define: push::command,
        run: push::run,
        failure: FailureCode::OfReason(Failed::Unavailable),
    },
    Entry {
        define: pull::command,
        run: pull::run,
        failure: FailureCode::OfReason(Failed::Unavailable),
    },
    Entry {
        define: prefetch::command,
        run: |one, out| prefetch::run(one, out).map(Outcome::code),
        failure: FailureCode::OfReason(Failed::Unavailable),
    },
    Entry {
        define: mount::command,
        run: |one, out| mount::run(one, out).map(success),
        failure: FailureCode::OfReason(Failed::Unavailable),
    },
    Entry {
        define: hook::command,
        run: |one, _out| hook::run(one).map(success),
        failure: FailureCode::Always(1),
    },
    Entry {
        define: doctor::command,
        run: |one, out| doctor::run(one, out).map(Outcome::code),
        failure: FailureCode::TwoWith("verify"),
    },
    Entry {
        define: status::command,
        run: |one, out| status::run(one, out).map(success),
        failure: FailureCode::Always(1),
    },
    Entry {
        define: convert::command,
        run: |one, out| convert::run(one, out).map(success),
        failure: FailureCode::Always(1),
    },
    Entry {
        define: secrets::password,
        run: |one, out| secrets::hash(one, out).map(success),
        failure: FailureCode::Always(1),
    },
    Entry {
        define: token::command,
        run: |one, out| token::run(one, out).map(success),
        failure: FailureCode::Always(1),
    },
    Entry {
        define: pin::command,
        run: |one, out| pin::run(one, out).map(success),
        failure: FailureCode::Always(1),
    },
    Entry {
        define: refs::command,
        run: refs::run,
        failure: FailureCode::OfReason(Failed::Unavailable),
    },
    Entry {
        define: workspace::command,
        run: workspace::run,
        failure: FailureCode::OfReason(Failed::Unavailable),
    },
    Entry {
        define: caches::command,
        run: |one, out| caches::run(one, out).map(success),
        failure: FailureCode::Always(1),
    },
    Entry {
        define: nodes::command,
        run: |one, out| nodes::run(one, out).map(success),
        failure: FailureCode::Always(1),
    },
    Entry {
        define: gc::command,
        run: |one, out| gc::run(one, out).map(success),
        failure: FailureCode::Always(1),
    },
    Entry {
        define: fsck::command,
        run: |one, out| fsck::run(one, out).map(Outcome::code),
        failure: FailureCode::Always(2),
    },
    Entry {
        define: import::command,
        run: |one, out| import::run(one, out).map(Outcome::code),
        failure: FailureCode::OfReason(Failed::Unavailable),
    },
    Entry {
        define: export::command,
        run: |one, out| export::run(one, out).map(Outcome::code),
        failure: FailureCode::OfReason(Failed::Unavailable),
    },
    Entry {
        define: copy::command,
        run: |one, out| copy::run(one, out).map(Outcome::code),
        failure: FailureCode::OfReason(Failed::Unavailable),
    },
    Entry {
        define: profile::command,
        run: |one, out| profile::run(one, out).map(Outcome::code),
        failure: FailureCode::Always(2),
    },
    Entry {
        define: completions_command,
        run: |one, out| completions(one, out).map(success),
        failure: FailureCode::Always(1),
    },
    Entry {
        define: man_command,
        run: |one, _out| man(one).map(success),
        failure: FailureCode::Always(1),
    },
];

fn success((): ()) -> ExitCode {
    ExitCode::SUCCESS
}

/// Defines all commands, for parsing, help, man pages and completions.
pub fn command() -> Command {
    Command::new("samovar")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Serves Nix stores as binary caches, queries caches, and diagnoses both")
        // The same text in every terminal, in the book and in tests.
        .term_width(80)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(COMMANDS.iter().map(|entry| (entry.define)()))
}

/// Returns the entry of a command.
pub(crate) fn entry(name: &str) -> Option<&'static Entry> {
    let mut entries = COMMANDS.iter();
    entries.find(|entry| (entry.define)().get_name() == name)
}

fn completions_command() -> Command {
    Command::new("completions")
        .about("Prints a shell completion script")
        .arg(required("shell", "SHELL").value_parser(value_parser!(Shell)))
}

fn completions(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<()> {
    let shell: &Shell = matches.get_one("shell").context("a shell is missing")?;
    let mut text = Vec::new();
    let mut command = serve::with_words(command());
    clap_complete::generate(*shell, &mut command, "samovar", &mut text);
    Ok(out.write_all(&text)?)
}

fn man_command() -> Command {
    Command::new("man")
        .about("Writes man pages into a directory")
        .arg(required("directory", "DIRECTORY").value_parser(value_parser!(PathBuf)))
}

fn man(matches: &ArgMatches) -> anyhow::Result<()> {
    let directory: &PathBuf = matches
        .get_one("directory")
        .context("a directory is missing")?;
    fs::create_dir_all(directory).with_context(|| format!("cannot create {directory:?}"))?;
    clap_mangen::generate_to(command(), directory)
        .with_context(|| format!("cannot write man pages into {directory:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_consistent() {
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
