//! The man page and the fish completions in `contrib/nix-serve/` have the options of `--help`.
//! `UPDATE=1` writes them.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use nix_serve::cli::help;

#[track_caller]
fn check(name: &str, text: &str) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = here.join("../../contrib/nix-serve").join(name);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&file, text).unwrap();
    }
    assert_eq!(fs::read_to_string(file).unwrap(), text);
}

#[test]
fn the_man_page_is_the_help_by_sections() {
    let escaped = help().replace('\\', "\\e").replace('-', "\\-");
    let (name, rest) = escaped.split_once("\n\n").unwrap();
    let (usage, rest) = rest.split_once("\n\n").unwrap();
    let usage = usage.strip_prefix("Usage: ").unwrap();
    let mut page = format!(
        ".\\\" Generated from nix-serve \\-\\-help by a test.\n.TH NIX\\-SERVE 1\n.SH NAME\n\
         {name}\n.SH SYNOPSIS\n{usage}\n"
    );
    for line in rest.lines() {
        let is_heading = line.starts_with(|c: char| c.is_ascii_uppercase())
            && line.chars().all(|c| c.is_alphabetic() || c == ' ');
        let is_verbatim = line.starts_with(' ');
        page.push_str(&match (is_heading, is_verbatim) {
            // The lines have up to 79 columns, so they are not indented.
            (true, _) => format!(".SH {}\n.nf\n.in 0\n", line.to_uppercase()),
            (_, true) => format!("{line}\n"),
            _ if line.is_empty() => "\n".to_owned(),
            _ => format!("\\&{line}\n"),
        });
    }
    check("nix-serve.1", &page);
}

#[test]
fn fish_completes_every_option() {
    let options = help().split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    let mut names: Vec<&str> = options.filter_map(|word| word.strip_prefix("--")).collect();
    // This is an option of nix-store.
    names.retain(|name| *name != "generate-binary-cache-key");
    names.sort_unstable();
    names.dedup();
    let lines = names
        .iter()
        .map(|name| format!("complete -c nix-serve -l {name}\n"));
    check("nix-serve.fish", &lines.collect::<String>());
}
