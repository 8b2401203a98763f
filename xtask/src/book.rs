//! `book-links`: mdBook preprocessor for the links of the book's pages. `screenshots`: pictures of
//! the web interface for the book.
//!
//! The sources of the book link to documents that the rendered book does not contain. The
//! preprocessor replaces such a link by the name of the document.

use std::path::Path;
use std::process::Command;
use std::{fs, io};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::command::run;

/// Pages of the web interface that the book shows, by their names in the tests.
const SCREENSHOTS: [&str; 3] = ["landing", "path-built", "status"];

/// Runs the tests that open the web interface in a browser, and copies their screenshots.
pub(crate) fn take_screenshots(repository: &Path) -> Result<()> {
    let mut tests = Command::new("cargo");
    tests.args(["test", "--package", "nix-serve", "--test"]);
    run(tests.arg("pages_in_a_browser").current_dir(repository))?;
    for name in SCREENSHOTS {
        let from = repository.join(format!("target/tmp/book-{name}.png"));
        let to = repository.join(format!("docs/book/images/{name}.png"));
        fs::copy(&from, &to).with_context(|| format!("cannot copy {from:?} to {to:?}"))?;
    }
    Ok(())
}

/// Reads the book in mdBook's format (`[context, book]`) and writes the processed book. Fails if
/// the input has another format.
pub(crate) fn preprocess() -> Result<()> {
    let mut said: Value = serde_json::from_reader(io::stdin().lock())?;
    let book = said.get_mut(1).context("mdBook sends no book")?;
    name_sources(book);
    println!("{book}");
    Ok(())
}

/// Processes all chapters recursively.
fn name_sources(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(name_sources),
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == "content" => *text = without_sources(text),
                    other => name_sources(other),
                }
            }
        }
        _ => {}
    }
}

/// Replaces links to files outside the book by their names.
fn without_sources(page: &str) -> String {
    let mut text = String::new();
    let mut rest = page;
    while let Some(at) = rest.find("](../") {
        let (before, behind) = rest.split_at(at);
        let (Some(open), Some(close)) = (before.rfind('['), behind.find(')')) else {
            break;
        };
        let words = &before[open + 1..];
        let target = &behind["](../".len()..close];
        let path = target.split('#').next().unwrap_or_default();
        // Pages are in docs/book/.
        let path = match path.strip_prefix("../") {
            Some(path) => path.to_owned(),
            None => format!("docs/{path}"),
        };
        text.push_str(&before[..open]);
        text.push_str(words);
        if words != path {
            text.push_str(&format!(" (`{path}`)"));
        }
        rest = &behind[close + 1..];
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_files_outside_the_book_become_names() {
        let page = "a [b](c.md), [d](../e.md#f) and\n[COMPAT.md](../../COMPAT.md), [g](h.md#i).\n";
        let expected = "a [b](c.md), d (`docs/e.md`) and\nCOMPAT.md, [g](h.md#i).\n";
        let chapter = |content: &str| serde_json::json!([{"Chapter": {"content": content}}]);
        let mut book = serde_json::json!({"items": chapter(page)});
        name_sources(&mut book);
        assert_eq!(book, serde_json::json!({"items": chapter(expected)}));
    }
}
