//! The page of keys in the book says what the table of keys says. With `UPDATE=1` it is written
//! anew.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use samovar_server::config::{KEYS, Key, Kind, Scope};

/// How the page is written anew.
const HOW: &str = "UPDATE=1 cargo test -p samovar-server --test reference";

/// What stands before the table of keys. How values are written was read from the parser.
const KEYS_HEAD: &str = include_str!("reference_head.md");

/// The page of keys.
fn keys() -> String {
    let mut text = KEYS_HEAD.to_owned();
    let of = |scope: Scope| KEYS.iter().filter(move |key| key.scope == scope);
    let mut section = |title: &str, scope| {
        let mut keys = of(scope).peekable();
        if keys.peek().is_some() {
            write!(text, "\n## {title}\n").unwrap();
            for key in keys {
                text.push_str(&entry(key));
            }
        }
    };
    section("Of the server", Scope::Start);
    section("Of a cache", Scope::Cache);
    write!(
        text,
        "\n---\n\nThis page is made from the table of keys: `{HOW}`.\n"
    )
    .unwrap();
    text
}

fn entry(key: &Key) -> String {
    let kind = match key.kind {
        Kind::Text => "text".to_owned(),
        Kind::Path => "path".to_owned(),
        Kind::Count => "number".to_owned(),
        Kind::Size => "size".to_owned(),
        Kind::Time => "time".to_owned(),
        Kind::Switch => "switch".to_owned(),
        Kind::Word(words) => format!("`{}`", words.join("` or `")),
        Kind::List => "list".to_owned(),
        Kind::Tables => "tables".to_owned(),
    };
    format!(
        "\n### `{}`\n\n{}\n\n| kind | default | option | variable |\n|---|---|---|---|\n\
         | {kind} | {} | `--{}` | `{}` |\n",
        key.name,
        plain(key.help),
        plain(key.default),
        key.option(),
        key.variable()
    )
}

/// What would be markup is a text here.
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
fn keys_are_in_the_book() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/reference.md");
    let made = keys();
    if env::var_os("UPDATE").is_some() {
        fs::write(&page, &made).unwrap();
    }
    let there = fs::read_to_string(&page).unwrap_or_default();
    assert!(
        there == made,
        "docs/book/reference.md is not what the table says: {HOW}"
    );
}
