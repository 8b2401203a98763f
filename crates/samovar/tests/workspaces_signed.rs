//! With `--trusted-public-keys`, a workspace gets only generations that are signed by one of the
//! keys, in all later commands, too.

mod support;
mod support_uploads;
mod support_workspaces;

use support_workspaces::{Home, assert_has, exits, tree, write};
use testkit::process::output;

const OPTION: &str = "--trusted-public-keys";
const UNSIGNED: &str = "the ref app is not signed by a key of --trusted-public-keys";

const REMEMBERED: &str = "the ref app is not signed by a key that the workspace remembers \
     (other-1): if the cache has a new key, run samovar workspace pull --trusted-public-keys with \
     the new key";

/// A key that has signed nothing.
fn other_key() -> String {
    format!("other-1:{}=", "A".repeat(43))
}

/// Stores a key in a workspace, as if the server had replaced its key since.
fn remember(home: &Home, workspace: &std::path::Path, key: &str) {
    let file = home.state(workspace).join("workspace");
    let state = std::fs::read_to_string(&file).expect("is read");
    let state = state.replace("\nbase ", &format!("\ntrust {key}\nbase "));
    std::fs::write(file, state).expect("is written");
}

#[test]
fn a_ref_without_the_trusted_signature_is_not_opened() {
    let home = Home::new();
    let one = home.open("app", "one");
    write(&one, "a", "a");
    home.push(&one);
    let two = home.dir("two");
    let open = |key: &str| {
        let mut command = home.command(&["open", "app", OPTION, key]);
        command.arg(&two);
        command
    };
    assert_has(&exits(&mut open(&other_key()), 1), UNSIGNED);
    assert!(!two.exists());
    // A list without keys would permit everything.
    assert_has(&exits(&mut open(" "), 2), "no public key");
    output(&mut open(&home.site.public_key));
    assert_eq!(tree(&two), tree(&one));
    // Opening again does not drop the keys, and can replace them.
    home.open("app", "two");
    write(&one, "a", "b");
    home.push(&one);
    assert_has(&exits(&mut open(&other_key()), 1), UNSIGNED);
    home.run(&two, &["pull"]);
    assert_eq!(tree(&two), tree(&one));
}

#[test]
fn every_later_command_checks_the_signature() {
    let home = Home::new();
    let (one, two) = (home.open("app", "one"), home.open("app", "two"));
    write(&one, "a", "a");
    home.push(&one);
    home.run(&two, &["pull"]);
    write(&one, "a", "b");
    home.push(&one);
    let before = tree(&two);
    // A key that has signed nothing is not stored.
    let pull = ["pull", OPTION, &other_key()];
    assert_has(&home.exits(&two, &pull, 1), UNSIGNED);
    home.run(&two, &["log"]);
    remember(&home, &two, &other_key());
    for words in [&["pull"][..], &["log"], &["restore", "@1"]] {
        assert_has(&home.exits(&two, words, 1), REMEMBERED);
    }
    let status = home.exits(&two, &["status"], 0);
    assert_has(&status, "the newest generation is not known: the ref app");
    // A push that is refused reads the newest generation.
    write(&two, "b", "b");
    assert_has(&home.exits(&two, &["push"], 1), REMEMBERED);
    write(&two, "a", "a");
    std::fs::remove_file(two.join("b")).expect("is removed");
    assert_eq!(tree(&two), before);
    home.run(&two, &["pull", OPTION, &home.site.public_key]);
    home.run(&two, &["restore", "@1"]);
    assert_eq!(tree(&two), before);
}
