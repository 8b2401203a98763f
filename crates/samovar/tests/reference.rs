//! The page of commands in the book says what the command lines say. With `UPDATE=1` it is written
//! anew.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use clap::{Arg, Command};
use samovar_server::config::Key;

/// How the page is written anew.
const HOW: &str = "UPDATE=1 cargo test -p samovar --test reference";

fn commands() -> String {
    let mut text =
        "# Commands\n\nWhat `--help` says. `samovar man DIRECTORY` writes it as man pages, \
                    `samovar completions SHELL` tells a shell.\n"
            .to_owned();
    let mut all = samovar::cli::command();
    // What holds for all commands is handed down to them.
    all.build();
    describe("samovar", all, &mut text);
    let of_nix_serve = include_str!("../../nix-serve/src/cli/help.txt");
    write!(
        text,
        "\n## nix-serve\n\n```text\n{}\n```\n",
        of_nix_serve.trim_end()
    )
    .unwrap();
    write!(
        text,
        "\n---\n\nThis page is made from the command lines: `{HOW}`.\n"
    )
    .unwrap();
    text
}

/// A command and those below it.
fn describe(name: &str, command: Command, text: &mut String) {
    let mut command = command.bin_name(name.to_owned()).term_width(96);
    // Then it has an option for each key, and they have a page of their own.
    let has_keys = command.get_arguments().any(|arg| arg.get_id() == "set");
    let is_key = |arg: &Arg| has_keys && Key::find(arg.get_id().as_str()).is_some();
    let mut shown = command.clone().mut_args(|arg| {
        let is_hidden = is_key(&arg);
        arg.hide(is_hidden)
    });
    let help = shown.render_help().to_string();
    write!(text, "\n## {name}\n\n```text\n{}\n```\n", help.trim_end()).unwrap();
    if has_keys {
        text.push_str("\nAnd an option for each [key](reference.md).\n");
    }
    for below in command.get_subcommands_mut() {
        let name = format!("{name} {}", below.get_name());
        describe(&name, below.clone(), text);
    }
}

#[test]
fn commands_are_in_the_book() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/commands.md");
    let made = commands();
    if env::var_os("UPDATE").is_some() {
        fs::write(&page, &made).unwrap();
    }
    let there = fs::read_to_string(&page).unwrap_or_default();
    assert!(
        there == made,
        "docs/book/commands.md is not what the definitions say: {HOW}"
    );
}
