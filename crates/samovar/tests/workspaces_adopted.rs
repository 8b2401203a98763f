//! Adopting a directory reverts nothing that other machines have pushed: a file that they have
//! removed does not come back in silence.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;
mod support_workspaces;

use std::fs;
use std::path::{Path, PathBuf};

use support_workspaces::{Home, assert_has, read, write};
use testkit::process::output;

/// A workspace whose files are pushed, and another one that is equal to it.
fn two(home: &Home, files: &[&str]) -> [PathBuf; 2] {
    let one = home.open("app", "one");
    for name in files {
        write(&one, name, "1");
    }
    home.push(&one);
    [one, home.open("app", "two")]
}

/// Adopts the files of a workspace whose state is lost. Returns what the command prints.
#[track_caller]
fn adopt(home: &Home, directory: &Path, name: &str) -> String {
    if home.exits_with(directory, &["status", "--offline"]) != 2 {
        fs::remove_dir_all(home.state(directory)).unwrap();
    }
    output(home.command(&["open", "--adopt", name]).arg(directory))
}

#[test]
fn the_generation_is_found_that_makes_the_other_files_new() {
    let home = Home::new();
    let [one, two] = two(&home, &["a", "b"]);
    fs::remove_file(two.join("b")).unwrap();
    home.push(&two);
    write(&one, "x", "new");
    // Generation 2 fits, too, but b would be new.
    let text = adopt(&home, &one, "app");
    assert_has(
        &text,
        "app@1; compared with it: 1 added; generation 2 is newer",
    );
    home.run(&one, &["pull"]);
    assert!(!one.join("b").exists() && one.join("x").exists());
    assert_eq!(home.push(&one), 3);
    home.run(&two, &["pull"]);
    assert!(!two.join("b").exists());
}

#[test]
fn files_that_others_may_have_removed_are_conflicts() {
    let home = Home::new();
    let [one, two] = two(&home, &["a", "b", "d/e", "d/f"]);
    fs::remove_file(two.join("b")).unwrap();
    fs::remove_dir_all(two.join("d")).unwrap();
    home.push(&two);
    write(&one, "a", "changed here");
    write(&one, "x", "new");
    assert_has(&adopt(&home, &one, "app"), "each difference a conflict");
    let text = home.exits(&one, &["pull"], 1);
    for name in ["a", "b", "d"] {
        assert_has(&text, &format!("conflict: {name} stays as it is"));
    }
    assert_has(&text, "generation 1 of app has it");
    assert_eq!(text.matches("conflict: ").count(), 3, "{text}");
    assert_eq!(
        (read(&one, "b"), read(&one, "d/f")),
        ("1".into(), "1".into())
    );
    // They were named: now they are local changes.
    let text = home.exits(&one, &["diff"], 1);
    assert_has(&text, "added    b");
    home.push(&one);
}

#[test]
fn nothing_is_new_if_the_server_has_not_all_generations() {
    let home = Home::new();
    let [one, two] = two(&home, &["a", "old"]);
    fs::remove_file(two.join("old")).unwrap();
    for content in ["2", "3"] {
        write(&two, "a", content);
        home.run(&two, &["push", "--keep", "1"]);
    }
    write(&one, "a", "3");
    let text = adopt(&home, &one, "app");
    assert_has(&text, "it has the files of generation 3");
    assert_has(&text, "1 path, such as \"old\"");
    assert_has(&home.exits(&one, &["push"], 1), "workspace pull");
    let text = home.exits(&one, &["pull"], 1);
    assert_has(&text, "conflict: old stays as it is");
    // Who knows that it is new says so.
    let text = adopt(&home, &one, "app@3");
    assert_has(&text, "app@3; compared with it: 1 added");
    assert_eq!(home.push(&one), 4);
    // Without such files, the generation is known.
    home.run(&two, &["pull"]);
    assert_has(
        &adopt(&home, &two, "app"),
        "app@4; compared with it: no changes",
    );
}

#[test]
fn files_in_no_generation_are_new() {
    let home = Home::new();
    // Both machines begin with files of their own.
    let [one, two] = ["one", "two"].map(|name| {
        let directory = home.open("app", name);
        write(&directory, name, name);
        directory
    });
    home.push(&one);
    home.exits(&two, &["push"], 1);
    home.run(&two, &["pull"]);
    assert_eq!(home.push(&two), 2);
}
