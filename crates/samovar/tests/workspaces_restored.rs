//! A server that has lost generations, because it was restored from a backup or a ref was removed,
//! costs no files: nothing is merged or deleted as if the server had all of them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;
mod support_workspaces;

use std::fs;
use std::path::Path;
use std::process::Command;

use support_workspaces::{Home, assert_has, read, tree, write};
use testkit::process::{finish, output};

/// Stops the server, runs `change` on its storage, and starts it again.
fn restart(home: &mut Home, workspaces: &[&Path], change: impl FnOnce(&Path, &Path)) {
    home.server.process.signal("TERM");
    home.server.process.wait();
    change(&home.site.storage(), &home.dir("backup"));
    let before = home.server.url();
    home.server = home.site.start();
    // The server has another port.
    for workspace in workspaces {
        let file = home.state(workspace).join("workspace");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace(&before, &home.server.url())).unwrap();
    }
}

fn copy(from: &Path, to: &Path) {
    output(Command::new("cp").arg("-a").arg(from).arg(to));
}

/// Makes two workspaces of the same generation, pushes the next one from the first workspace, and
/// restores the server to the state before that push.
fn lose_a_generation(home: &mut Home) -> [std::path::PathBuf; 2] {
    let one = home.open("app", "one");
    write(&one, "old", "old");
    write(&one, "changed", "before");
    assert_eq!(home.push(&one), 1);
    let two = home.open("app", "two");
    restart(home, &[&one, &two], copy);
    write(&one, "changed", "after");
    write(&one, "new", "new");
    assert_eq!(home.push(&one), 2);
    home.assert_clean(&one);
    restart(home, &[&one, &two], |storage, backup| {
        fs::remove_dir_all(storage).unwrap();
        copy(backup, storage);
    });
    [one, two]
}

#[test]
fn files_of_a_lost_generation_are_kept_and_can_be_pushed_again() {
    let mut home = Home::new();
    let [one, two] = lose_a_generation(&mut home);
    let before = tree(&one);
    let lost = "the server has lost generation 2 of app";
    let json = home.exits(&one, &["status", "--json"], 1);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["isBaseLost"], &json["isClean"]),
        (&true.into(), &false.into())
    );
    for words in [
        &["status"][..],
        &["pull"],
        &["push"],
        &["restore", "@1"],
        &["close", "--delete"],
    ] {
        assert_has(&home.exits(&one, words, 1), lost);
        assert_eq!(tree(&one), before, "{words:?}");
    }
    home.run(&one, &["push", "--force"]);
    home.exits(&one, &["status"], 0);
    home.run(&two, &["pull"]);
    assert_eq!(tree(&two), before);
}

#[test]
fn another_generation_with_the_same_number_is_no_base() {
    let mut home = Home::new();
    let [one, two] = lose_a_generation(&mut home);
    write(&two, "of two", "two");
    assert_eq!(home.push(&two), 2);
    let before = tree(&one);
    write(&one, "of one", "one");
    for words in [&["push"][..], &["pull"]] {
        assert_has(
            &home.exits(&one, words, 1),
            "the server has lost generation 2",
        );
    }
    assert_eq!(tree(&one).len(), before.len() + 1);
    // The other one is also noticed after further generations.
    write(&two, "of two", "again");
    assert_eq!(home.push(&two), 3);
    assert_has(
        &home.exits(&one, &["push"], 1),
        "the server has lost generation 2",
    );
    assert_eq!(read(&one, "new"), "new");
    // A snapshot that was pushed again is a base for a merge, whatever its number was.
    fs::remove_file(one.join("of one")).unwrap();
    home.run(&one, &["push", "--force"]);
    let three = home.open("app", "three");
    let state = home.state(&three).join("workspace");
    let text = fs::read_to_string(&state).unwrap();
    fs::write(&state, text.replace("\nbase 4 ", "\nbase 3 ")).unwrap();
    write(&one, "of one", "again");
    assert_eq!(home.push(&one), 5);
    write(&three, "of three", "three");
    assert_has(
        &home.exits(&three, &["push"], 1),
        "run samovar workspace pull",
    );
    home.run(&three, &["pull"]);
    assert_eq!(home.push(&three), 6);
    assert_eq!(read(&three, "of one"), "again");
}

#[test]
fn unchanged_files_of_a_removed_ref_are_no_success() {
    let home = Home::new();
    let one = home.open("app", "one");
    write(&one, "only", "copy");
    assert_eq!(home.push(&one), 1);
    home.run(&one, &["push"]);
    let mut unknown = home.command_in(&one, &["push"]);
    unknown.env("SAMOVAR_TOKEN", "unknown");
    support_workspaces::exits(&mut unknown, 1);
    home.remove_ref("app");
    for words in [&["status"][..], &["push"], &["close", "--delete"]] {
        let text = home.exits(&one, words, 1);
        assert_has(&text, "was removed");
        assert_eq!(read(&one, "only"), "copy", "{words:?}");
    }
    home.run(&one, &["push", "--force"]);
    home.exits(&one, &["status"], 0);
    home.run(&one, &["close", "--delete"]);
    assert!(!one.exists());
}

/// The layers of a mounted workspace may be the only copy of files that were pushed.
#[test]
fn closing_keeps_pushed_files_of_a_removed_ref() {
    let home = Home::new();
    let origin = home.open("app", "origin");
    write(&origin, "old", "old");
    assert_eq!(home.push(&origin), 1);
    let mounted = home.dir("mounted");
    let run = |words: &[&str], directory: &[&Path]| {
        let mut command = home.command(words);
        command.args(directory);
        finish(command.env("SAMOVAR_CACHE_DIR", home.dir("cache")))
    };
    let opened = run(&["open", "--mode", "overlay", "app"], &[&mounted]);
    if !opened.status.success() {
        let reason = String::from_utf8_lossy(&opened.stderr);
        println!("not tested: this machine cannot mount workspaces: {reason}");
        return;
    }
    let in_mounted = |words: &[&str], code: i32| {
        let done = run(words, &[Path::new("--dir"), &mounted]);
        let text = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
        assert_eq!(done.status.code(), Some(code), "{text}");
        text
    };
    write(&mounted, "new", "new");
    in_mounted(&["push"], 0);
    home.remove_ref("app");
    for words in [&["close"][..], &["close", "--delete"]] {
        assert_has(&in_mounted(words, 1), "was removed");
        assert_eq!(read(&mounted, "new"), "new");
    }
    let text = in_mounted(&["close", "--discard"], 0);
    assert_has(&text, "the unpushed changes are kept");
    let kept = text.split('"').nth(3).unwrap();
    assert_eq!(read(Path::new(kept), "upper/new"), "new");
}
