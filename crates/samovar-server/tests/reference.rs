//! The reference page of the book lists the declared options. `UPDATE=1` updates the page.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use samovar_server::config::{Kind, OptionSpec, Scope};

/// The command that updates the page.
const HOW: &str = "UPDATE=1 cargo test -p samovar-server --test reference";

/// The text before the options.
const HEAD: &str = include_str!("reference_head.md");

/// When to change each option, after a heading with its name.
const NOTES: &str = include_str!("reference_notes.txt");

/// Generates the page.
fn page() -> String {
    let mut text = HEAD.to_owned();
    for (title, scope) in [
        ("Options of the server", Scope::Server),
        ("Options of a cache", Scope::Cache),
        ("Options of an upstream", Scope::Upstream),
        ("Options of an OIDC issuer", Scope::Oidc),
    ] {
        write!(text, "\n## {title}\n").unwrap();
        for spec in OptionSpec::of(scope) {
            text.push_str(&entry(spec));
        }
    }
    text.push_str(&names_table());
    write!(
        text,
        "\n---\n\nThis page is generated from the declarations of the options: `{HOW}`.\n"
    )
    .unwrap();
    text
}

fn entry(spec: &OptionSpec) -> String {
    let kind = match spec.kind {
        Kind::Text => "text".to_owned(),
        Kind::Path => "path".to_owned(),
        Kind::Count(min, u64::MAX) => format!("number from {min}"),
        Kind::Count(min, max) => format!("number from {min} to {max}"),
        Kind::Size(0, u64::MAX) => "size".to_owned(),
        Kind::Size(min, max) => format!("size from {min} to {max} bytes"),
        Kind::Time => "time".to_owned(),
        Kind::TimeWithin(min, max) => format!("time from {} to {}", time(min), time(max)),
        Kind::Url | Kind::UrlOf(_) => "URL".to_owned(),
        Kind::Urls => "list of URLs".to_owned(),
        Kind::Switch => "switch".to_owned(),
        Kind::Word(words) => format!("`{}`", words.join("` or `")),
        Kind::List => "list".to_owned(),
        Kind::Tables => "tables".to_owned(),
    };
    let option = match spec.is_of_one {
        true => format!("--set {}=", spec.full_name()),
        false => format!("--{}", spec.option()),
    };
    format!(
        "\n### `{}`\n\n{}\n\n{}\n\n| type | default | option | variable |\n|---|---|---|---|\n\
         | {kind} | {} | `{}` | `{}` |\n",
        spec.full_name(),
        plain(spec.help),
        note(&spec.full_name()),
        plain(&spec.default()),
        option,
        spec.variable()
    )
}

/// Formats a number of milliseconds.
fn time(milliseconds: u64) -> String {
    match (milliseconds % 60_000, milliseconds % 1000) {
        (0, _) if milliseconds > 60_000 => format!("{} min", milliseconds / 60_000),
        (_, 0) => format!("{} s", milliseconds / 1000),
        _ => format!("{milliseconds} ms"),
    }
}

/// Returns the note of an option.
fn note(name: &str) -> &'static str {
    let mut notes = NOTES.split("## ").filter_map(|note| note.split_once('\n'));
    let note = notes.find(|(title, _)| *title == name);
    assert!(note.is_some(), "reference_notes.txt has no note for {name}");
    note.unwrap().1.trim_end()
}

/// Generates the table of the names of options that both programs have.
fn names_table() -> String {
    let mut text = "\n## Names in both programs\n\nThese options of `samovar serve` are \
                    options of `nix-serve`, too, which has no configuration file. Both programs \
                    accept the *other names*, most of which come from nix-serve, starman and \
                    nix-serve-ng. The options in the last column set the same in another form, \
                    and are options of `nix-serve` alone.\n\n\
                    | `nix-serve` | `samovar serve` | configuration | other names | only \
                    `nix-serve` |\n|---|---|---|---|---|\n"
        .to_owned();
    for spec in OptionSpec::all().filter(|spec| spec.in_nix_serve) {
        let option = format!("`--{}`", spec.option());
        let list = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| format!("`--{name}`")).collect();
            names.join(", ")
        };
        let (aliases, replaces) = (list(spec.aliases), list(spec.replaces));
        let name = spec.name;
        writeln!(
            text,
            "| {option} | {option} | `{name}` | {aliases} | {replaces} |"
        )
        .unwrap();
    }
    text
}

/// Escapes markup.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    for letter in text.chars() {
        if matches!(letter, '<' | '>' | '[' | ']' | '|' | '*' | '_' | '`') {
            plain.push('\\');
        }
        plain.push(letter);
    }
    plain
}

#[test]
fn the_reference_matches_the_declarations() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/reference.md");
    let made = page();
    if env::var_os("UPDATE").is_some() {
        fs::write(&file, &made).unwrap();
    }
    let there = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        there == made,
        "docs/book/reference.md differs from the declarations: {HOW}"
    );
}

/// The table of limits names existing options of Samovar, each with the corresponding option of
/// nix-serve.
#[test]
fn the_table_of_limits_names_options_of_both_programs() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/limits.md");
    let text = fs::read_to_string(page).unwrap();
    let quoted = |cell: &str| -> Vec<String> {
        let parts = cell.split('`').skip(1).step_by(2);
        parts.map(str::to_owned).collect()
    };
    let mut count = 0;
    // The last two columns of the tables of servers.
    let is_of_servers = |table: &&str| table.contains("| `samovar serve` | `nix-serve` |\n");
    let tables = text.split("\n\n").filter(is_of_servers);
    for row in tables
        .flat_map(|table| table.lines())
        .filter(|line| line.starts_with("| "))
    {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let [_, _, .., own, nix_serve] = &*cells else {
            continue;
        };
        let (names, options) = (quoted(own), quoted(nix_serve));
        for (index, name) in names.iter().enumerate() {
            if name == "samovar serve" {
                continue;
            }
            let spec = OptionSpec::find(name).unwrap_or_else(|| panic!("{row}"));
            if !options.is_empty() {
                assert!(spec.in_nix_serve, "{row}");
                assert_eq!(
                    options.get(index),
                    Some(&format!("--{}", spec.option())),
                    "{row}"
                );
            }
            count += 1;
        }
    }
    assert!(count > 5, "{count} options");
}

/// The table of limits has the default times and counts of the options.
#[test]
fn the_table_of_limits_has_the_defaults() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/limits.md");
    let text = fs::read_to_string(page).unwrap();
    for name in [
        "backlog",
        "queue",
        "connections.head-size",
        "connections.head-time",
        "connections.idle-time",
        "connections.stall-time",
        "connections.streams",
    ] {
        let mut rows = text.lines().filter(|row| row.starts_with("| "));
        let row = rows.find(|row| row.contains(&format!("`{name}`"))).unwrap();
        let value = row.split('|').nth(2).unwrap().replace(',', "");
        let default = OptionSpec::find(name).unwrap().default();
        assert!(value.contains(&default), "{row}: {default}");
    }
}
