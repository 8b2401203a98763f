//! Messages about invalid command lines.

use std::ffi::OsString;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use samovar_server::config::{OptionSpec, nearest};

/// The error of [`is_exec_without_dashes`].
const EXEC_USAGE: &str =
    "write the command of --exec after --, as in: samovar push URL --exec -- nix build";

/// Formats the error of an invalid command line of `program` in one line.
pub(crate) fn message(error: &clap::Error, words: &[OsString], program: &Command) -> String {
    match is_exec_without_dashes(words) {
        true => EXEC_USAGE.to_owned(),
        false => one_line(error, words, program),
    }
}

/// Returns a message about a word that is nearly a subcommand of a command.
pub(crate) fn misspelled(word: &str, command: &Command) -> Option<String> {
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
fn one_line(error: &clap::Error, words: &[OsString], program: &Command) -> String {
    let (mut command, mut name) = (program, "samovar".to_owned());
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
