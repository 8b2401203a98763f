//! Every MUST of the RFC is cited in a test or listed as an exception. The module is shared; the
//! folder with the tests has the name of the test target.

use std::fs;
use std::path::Path;

/// Returns the text of a file without line breaks and comment signs, so that a quotation may span
/// lines.
fn words(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let words = text.split_whitespace();
    words
        .filter(|word| *word != "//")
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn every_must_is_cited_or_excused() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = root.join(env!("CARGO_CRATE_NAME"));
    let mut sources: Vec<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| words(&path))
        .collect();
    let exceptions = fs::read_to_string(root.join("exceptions.toml")).unwrap();
    assert_eq!(
        exceptions.matches("[[exception]]").count(),
        exceptions.matches("\nreason = \"").count(),
        "an exception without a reason"
    );
    sources.push(words(&root.join("exceptions.toml")));
    let list = fs::read_to_string(folder.join("musts.txt")).unwrap();
    let musts = list
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let missing: Vec<&str> = musts
        .filter(|must| {
            let (_, quote) = must.split_once(' ').unwrap();
            !sources.iter().any(|text| text.contains(quote))
        })
        .collect();
    assert!(
        missing.is_empty(),
        "neither cited nor excused:\n{}",
        missing.join("\n")
    );
}
