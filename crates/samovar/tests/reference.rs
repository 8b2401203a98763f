//! The book's page of commands describes the actual command lines. `UPDATE=1` rewrites the page.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use clap::{Arg, Command};
use samovar_server::config::OptionSpec;

/// The command that updates the page.
const HOW: &str = "UPDATE=1 cargo test -p samovar --test reference";

fn commands() -> String {
    let mut text =
        "# Commands\n\nThe output of `--help` for each command. `samovar man DIRECTORY` writes man \
         pages, and `samovar completions SHELL` prints completions for a shell.\n"
            .to_owned();
    let mut all = samovar::cli::command();
    // Propagate global settings to the subcommands.
    all.build();
    describe("samovar", all, &mut text);
    let of_nix_serve = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nix-serve/src/cli/help.txt");
    let of_nix_serve = fs::read_to_string(of_nix_serve).unwrap();
    write!(
        text,
        "\n## nix-serve\n\n```text\n{}\n```\n",
        of_nix_serve.trim_end()
    )
    .unwrap();
    write!(
        text,
        "\n---\n\nThis page is generated from the declarations of the commands: `{HOW}`.\n"
    )
    .unwrap();
    text
}

/// Appends the description of a command and its subcommands to `text`.
fn describe(name: &str, command: Command, text: &mut String) {
    let mut command = command.bin_name(name.to_owned());
    // A separate page describes the options of the server.
    let has_keys = command.get_arguments().any(|arg| arg.get_id() == "set");
    let is_server = name == "samovar serve";
    let is_key = |arg: &Arg| is_server && OptionSpec::find(arg.get_id().as_str()).is_some();
    let mut shown = command.clone().mut_args(|arg| {
        let is_hidden = is_key(&arg) || arg.is_hide_set();
        arg.hide(is_hidden)
    });
    let help = shown.render_help().to_string();
    write!(text, "\n## {name}\n\n```text\n{}\n```\n", help.trim_end()).unwrap();
    if has_keys {
        text.push_str("\nIt also accepts every [option](reference.md) of the configuration.\n");
    }
    let is_shown = |below: &&mut Command| below.get_name() != "help" && !below.is_hide_set();
    for below in command.get_subcommands_mut().filter(is_shown) {
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
    assert!(there == made, "docs/book/commands.md is out of date: {HOW}");
}
