//! A workspace is an ordinary directory: a push makes its files the next generation of a ref, and
//! another machine that opens the ref has the same files.

mod support;
mod support_uploads;
mod support_workspaces;

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use serde_json::Value;
use support_workspaces::{Home, assert_has, exits, read, tree, write};
use testkit::closed_port::ClosedPort;
use testkit::process::output;

#[test]
fn a_new_ref_is_pushed_and_opened_elsewhere() {
    let home = Home::new();
    let one = home.dir("one");
    write(&one, "src/main.js", "console.log(1)\n");
    write(&one, "empty", "");
    fs::write(one.join(OsStr::from_bytes(b"new\nline \xff")), "a").unwrap();
    write(&one, &"n".repeat(255), "b");
    write(&one, "run", "#!/bin/sh\n");
    fs::set_permissions(one.join("run"), Permissions::from_mode(0o750)).unwrap();
    symlink("/nowhere", one.join("broken")).unwrap();
    // The ref does not exist, so the files are its first content.
    let text = output(home.command(&["open", "mr/app"]).arg(&one));
    assert_has(&text, "does not exist yet");
    let text = home.exits(&one, &["status"], 1);
    assert_has(&text, "mr/app@0");
    assert_has(&text, "7 added");
    let text = home.run(&one, &["push", "--message", "first"]);
    assert_has(&text, "mr/app@1 is /nix/store/");
    home.assert_clean(&one);
    assert_has(&home.exits(&one, &["status"], 0), "no changes");
    assert_has(&home.run(&one, &["push"]), "nothing to push");
    let two = home.open("mr/app", "two");
    assert_eq!(tree(&two), tree(&one));
    let mode = fs::metadata(two.join("run")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o750);
    home.assert_clean(&two);
    // Opening again has no effect.
    assert_has(
        &output(home.command(&["open", "mr/app"]).arg(&two)),
        "already",
    );
    write(&two, "src/main.js", "console.log(2)\n");
    write(&two, "src/new", "x");
    fs::remove_file(two.join("empty")).unwrap();
    let text = home.exits(&two, &["diff"], 1);
    for line in ["removed  empty", "modified src/main.js", "added    src/new"] {
        assert_has(&text, line);
    }
    // Commands work in every directory of the workspace.
    assert_eq!(home.push(&two.join("src")), 2);
    home.assert_clean(&two);
    let text = home.exits(&one, &["status"], 0);
    assert_has(&text, "the server has generation 2");
    let text = home.run(&one, &["log"]);
    assert_has(&text, "first");
    let marked: Vec<&str> = text.lines().filter(|line| line.starts_with('*')).collect();
    assert!(marked.len() == 1 && marked[0].contains(" 1 "), "{text}");
    let report: Value = serde_json::from_str(&home.exits(&two, &["status", "--json"], 0)).unwrap();
    assert_eq!(report["generation"], 2);
    assert_eq!(report["newestGeneration"], 2);
    assert_eq!(report["isClean"], true);
    // An older generation can be opened, too.
    let old = home.open("mr/app@1", "old");
    assert_eq!(tree(&old), tree(&one));
    write(&old, "y", "y");
    let text = home.exits(&old, &["push"], 1);
    assert_has(&text, "generation 2 of mr/app was pushed by");
    assert_has(&text, "run samovar workspace pull");
}

#[test]
fn one_of_two_pushes_wins_and_nothing_is_lost() {
    let home = Home::new();
    let one = home.dir("one");
    write(&one, "a", "a");
    home.open("app", "one");
    home.push(&one);
    let two = home.open("app", "two");
    write(&one, "one", "one");
    write(&two, "two", "two");
    let mut pushes = [&one, &two].map(|directory| {
        let mut command = home.command_in(directory, &["push"]);
        command.stderr(std::process::Stdio::piped());
        command
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    });
    let codes = pushes.each_mut().map(|push| push.wait().unwrap().code());
    assert!(
        codes == [Some(0), Some(1)] || codes == [Some(1), Some(0)],
        "{codes:?}"
    );
    let loser = if codes[0] == Some(1) { &one } else { &two };
    let text = home.exits(loser, &["push"], 1);
    assert_has(&text, "generation 2 of app was pushed by");
    assert_eq!(
        (read(&one, "one"), read(&two, "two")),
        ("one".into(), "two".into())
    );
    home.exits(loser, &["status"], 1);
    let text = home.run(loser, &["push", "--force", "--keep", "2"]);
    assert_has(&text, "app@3");
    assert_eq!(home.run(loser, &["log"]).lines().count(), 3);
}

#[test]
fn directories_that_cannot_be_workspaces_are_refused() {
    let home = Home::new();
    let one = home.dir("one");
    write(&one, "a", "a");
    home.open("app", "one");
    home.push(&one);
    let open = |name: &str, directory: &str, more: &[&str]| {
        let mut command = home.command(&["open", name]);
        command.arg(home.dir(directory)).args(more);
        command
    };
    write(&home.dir("full"), "b", "b");
    let text = exits(&mut open("app", "full", &[]), 1);
    assert_has(&text, "--adopt");
    let text = exits(&mut open("app", "one/below", &[]), 1);
    assert_has(&text, "inside the workspace");
    let text = exits(&mut open("other", "one", &[]), 1);
    assert_has(&text, "is a workspace of app@1");
    exits(&mut open("app", "full/b", &[]), 1);
    let text = exits(&mut open("app@7", "seven", &[]), 1);
    assert_has(&text, "no generation 7");
    assert!(!home.dir("seven").exists());
    let text = output(&mut open("app", "full", &["--adopt"]));
    assert_has(
        &text,
        "it is unknown which of them were changed on this machine",
    );
    assert_eq!(read(&home.dir("full"), "b"), "b");
    let text = exits(&mut home.command_in(&home.dir("state"), &["status"]), 2);
    assert_has(&text, "is not in a workspace");
}

#[test]
fn closing_refuses_to_lose_changes() {
    let home = Home::new();
    let one = home.open("app", "one");
    write(&one, "a", "a");
    let text = home.exits(&one, &["close"], 1);
    assert_has(&text, "1 added");
    home.push(&one);
    home.run(&one, &["close"]);
    assert_eq!(read(&one, "a"), "a");
    assert!(!one.join(".samovar").exists());
    home.exits(&one, &["status"], 2);
    let two = home.open("app", "two");
    write(&two, "b", "b");
    home.exits(&two, &["close", "--delete"], 1);
    let text = output(&mut home.command(&["list"]));
    assert_has(&text, "two  app@1");
    assert_has(&text, "1 added");
    assert!(!text.contains("one"), "{text}");
    let close = ["close", "--delete", "--discard", "--dir"];
    output(home.command(&close).arg(&two));
    assert!(!two.exists());
    assert_eq!(output(&mut home.command(&["list"])), "");
    let three = home.open("app", "three");
    fs::rename(&three, home.dir("four")).unwrap();
    assert_has(&output(&mut home.command(&["list"])), "vanished");
}

#[test]
fn status_works_without_a_server() {
    let home = Home::new();
    let one = home.open("app", "one");
    write(&one, "a", "a");
    home.push(&one);
    let Home {
        server,
        token,
        site,
    } = home;
    let url = server.url();
    let _closed = ClosedPort::of_server(server.address);
    server.process.terminate();
    let command = |arguments: &[&str]| {
        let mut command = support::samovar();
        command.arg("workspace").args(arguments).current_dir(&one);
        command
            .env("SAMOVAR_TOKEN", &token)
            .env("SAMOVAR_CACHE", &url);
        command.env("XDG_STATE_HOME", site.dir().join("state"));
        command
    };
    let text = exits(&mut command(&["status"]), 0);
    assert_has(&text, "the newest generation is not known");
    write(&one, "b", "b");
    exits(&mut command(&["status", "--offline"]), 1);
    exits(&mut command(&["diff"]), 1);
}

/// The state of another workspace could name the server of an attacker, who would get the token.
#[test]
fn a_foreign_state_is_neither_pushed_nor_used() {
    let home = Home::new();
    let one = home.open("mr/app", "one");
    write(&one, "file", "x");
    write(&one, "package/.samovar/workspace", "foreign");
    write(&one, "package/x", "x");
    home.push(&one);
    let two = home.open("mr/app", "two");
    assert!(two.join("package/x").exists() && !two.join("package/.samovar").exists());
    // A link instead of the lock does not change the file behind it.
    let precious = home.dir("precious");
    fs::write(&precious, "precious").unwrap();
    let lock = home.state(&two).join("lock");
    fs::remove_file(&lock).unwrap();
    symlink(&precious, &lock).unwrap();
    write(&two, "file", "y");
    home.exits(&two, &["push"], 3);
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
}

#[test]
fn mistyped_names_create_no_ref() {
    let home = Home::new();
    let directory = home.dir("one");
    for name in [
        "mr/app@x", "mr/app@0", "a@", "a@-1", "..", "..@1", "a//b", "/a", "#a",
    ] {
        let text = exits(home.command(&["open", name]).arg(&directory), 2);
        assert_has(&text, "new");
        assert!(!directory.exists(), "{name}");
    }
}

#[test]
fn a_removed_ref_is_created_again_by_a_forced_push_only() {
    let home = Home::new();
    let one = home.open("app", "one");
    for words in [["log"], ["pull"]] {
        assert_has(
            &home.exits(&one, &words, 1),
            "app does not exist: samovar workspace push creates",
        );
    }
    write(&one, "a", "a");
    home.push(&one);
    home.remove_ref("app");
    write(&one, "b", "b");
    for words in [["log"], ["pull"], ["push"]] {
        let text = home.exits(&one, &words, 1);
        assert_has(&text, "removed");
        assert_has(&text, "samovar workspace push --force creates it again");
    }
    home.run(&one, &["push", "--force"]);
    home.run(&one, &["log"]);
}

/// New files are in no generation: another one must not be told that a program has made them.
#[test]
fn a_restore_names_new_files_that_are_in_the_way() {
    let home = Home::new();
    let dir = home.open("app", "dir");
    for name in ["f1", "d/g", "d/h"] {
        write(&dir, name, "old");
    }
    home.push(&dir);
    fs::remove_file(dir.join("f1")).unwrap();
    fs::remove_dir_all(dir.join("d")).unwrap();
    write(&dir, "other", "other");
    home.push(&dir);
    write(&dir, "f1/x", "mine");
    write(&dir, "d", "mine");
    write(&dir, "new", "mine");
    let before = tree(&dir);
    let text = home.exits(&dir, &["restore", "@1"], 1);
    assert_has(
        &text,
        "unpushed changes of 2 paths would be overwritten (d, f1/x)",
    );
    assert_eq!(tree(&dir), before);
    let text = home.exits(&dir, &["restore", "@1", "d"], 1);
    assert_has(&text, "unpushed changes of 1 path would be overwritten (d)");
    home.run(&dir, &["restore", "@1", "--force"]);
    let found = ["f1", "d/g", "d/h", "new"].map(|name| read(&dir, name));
    assert_eq!(found, ["old", "old", "old", "mine"]);
}
