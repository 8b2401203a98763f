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
fn another_generation_is_no_base_because_of_its_number() {
    let mut home = Home::new();
    let [one, two] = lose_a_generation(&mut home);
    write(&two, "of two", "two");
    // A number is left out, so that the next generation has another lineage.
    assert_eq!(home.push(&two), 3);
    write(&one, "of one", "one");
    let lost = "the server has lost generation 2";
    assert_has(&home.exits(&one, &["push"], 1), lost);
    // The other one is also noticed after further generations.
    write(&two, "of two", "again");
    home.run(&two, &["push", "--keep", "1"]);
    assert_has(&home.exits(&one, &["push"], 1), lost);
    assert_has(&home.exits(&one, &["pull"], 1), lost);
    assert_kept(&one, &[("changed", "after")], "changed", "before");
    assert_eq!(read(&one, "new"), "new");
    assert_eq!(read(&one, "of two"), "again");
    assert_eq!(home.push(&one), 5);
    home.run(&two, &["pull"]);
    assert_eq!(tree(&two), tree(&one));
}

/// Asserts that a workspace has these files, and one copy of another version of `name`.
#[track_caller]
fn assert_kept(workspace: &Path, files: &[(&str, &str)], name: &str, other: &str) {
    for (name, content) in files {
        assert_eq!(read(workspace, name), *content, "{name}");
    }
    let prefix = format!("{name}.conflict-");
    let entries = fs::read_dir(workspace).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let copies: Vec<String> = names.filter(|name| name.starts_with(&prefix)).collect();
    assert_eq!(copies.len(), 1, "{copies:?}");
    assert_eq!(read(workspace, &copies[0]), other);
}

#[test]
fn a_snapshot_that_was_pushed_again_is_a_base_whatever_its_number_was() {
    let home = Home::new();
    let one = home.open("app", "one");
    write(&one, "old", "old");
    for number in 1..=2 {
        write(&one, "changed", format!("{number}"));
        assert_eq!(home.push(&one), number);
    }
    let three = home.open("app", "three");
    let state = home.state(&three).join("workspace");
    let text = fs::read_to_string(&state).unwrap();
    fs::write(&state, text.replace("\nbase 2-", "\nbase 1-")).unwrap();
    write(&one, "of one", "again");
    assert_eq!(home.push(&one), 3);
    write(&three, "of three", "three");
    assert_has(
        &home.exits(&three, &["push"], 1),
        "run samovar workspace pull",
    );
    home.run(&three, &["pull"]);
    assert_eq!(home.push(&three), 4);
    assert_eq!(read(&three, "of one"), "again");
}

/// Two workspaces of the same generation. Then `lose` makes the server lose the ref, and the second
/// one creates it again, with other files and higher numbers than the lost ones.
fn create_again(home: &mut Home, lose: impl FnOnce(&mut Home)) -> [std::path::PathBuf; 2] {
    let one = home.open("app", "one");
    write(&one, "only", "copy");
    write(&one, "changed", "by one");
    assert_eq!(home.push(&one), 1);
    lose(home);
    let two = home.open("app", "two");
    for number in 1..=3 {
        write(&two, "changed", format!("by two {number}"));
        home.run(&two, &["push", "--keep", "1"]);
    }
    [one, two]
}

#[test]
fn a_ref_that_was_created_again_has_no_generation_of_the_one_before() {
    let mut home = Home::new();
    let [one, two] = create_again(&mut home, |home| home.remove_ref("app"));
    let lost = "the server has lost generation 1 of app";
    for words in [
        &["status"][..],
        &["push"],
        &["close", "--delete"],
        &["pull"],
    ] {
        assert_has(&home.exits(&one, words, 1), lost);
        assert_eq!(read(&one, "only"), "copy", "{words:?}");
    }
    assert_kept(&one, &[("changed", "by one")], "changed", "by two 3");
    home.run(&one, &["push"]);
    home.run(&two, &["pull"]);
    assert_eq!(tree(&two), tree(&one));
}

#[test]
fn a_cache_that_was_deleted_has_other_generations_with_the_same_numbers() {
    let mut home = Home::new();
    let [one, _] = create_again(&mut home, |home| {
        let mut delete = support::samovar();
        delete.args(["cache", "delete", "default", "--yes", "--storage"]);
        output(delete.arg(home.site.storage()));
    });
    assert_has(
        &home.exits(&one, &["pull"], 1),
        "the server has lost generation 1",
    );
    assert_eq!(read(&one, "only"), "copy");
    assert_kept(&one, &[("changed", "by one")], "changed", "by two 3");
}

#[test]
fn the_generations_of_a_rebuilt_database_are_others() {
    let mut home = Home::new();
    let one = home.open("app", "one");
    write(&one, "only", "copy");
    write(&one, "changed", "before");
    assert_eq!(home.push(&one), 1);
    let two = home.open("app", "two");
    // The backup that is written at the start has the first generation.
    restart(&mut home, &[&one, &two], |_, _| ());
    let backups = home.site.storage().join(".samovar/backup");
    testkit::wait::eventually("a backup is written", || backups.exists());
    write(&one, "changed", "by one");
    write(&one, "new", "new");
    assert_eq!(home.push(&one), 2);
    let config = home.site.config();
    restart(&mut home, &[&one, &two], |storage, _| {
        for suffix in ["", "-wal", "-shm"] {
            fs::remove_file(storage.join(format!(".samovar/db.sqlite{suffix}"))).ok();
        }
        let mut import = support::samovar();
        import.args(["import", "--rebuild", "--config"]);
        output(import.arg(&config));
    });
    // The other machine has the generation of the backup: it goes on without a conflict.
    for number in 1..=3 {
        write(&two, "changed", format!("by two {number}"));
        home.run(&two, &["push", "--keep", "1"]);
    }
    let lost = "the server has lost generation 2";
    assert_has(&home.exits(&one, &["push"], 1), lost);
    assert_has(&home.exits(&one, &["pull"], 1), lost);
    assert_eq!(read(&one, "new"), "new");
    assert_kept(&one, &[("changed", "by one")], "changed", "by two 3");
    home.run(&one, &["push"]);
}

#[test]
fn a_state_without_a_lineage_is_compared_by_number() {
    let home = Home::new();
    let [one, two] = ["one", "two"].map(|name| home.open("app", name));
    write(&one, "a", "1");
    assert_eq!(home.push(&one), 1);
    let state = home.state(&one).join("workspace");
    let forget = || {
        let text = fs::read_to_string(&state).unwrap();
        let at = text.find("\nbase ").unwrap();
        let (start, end) = (
            text[at..].find('-').unwrap(),
            text[at + 6..].find(' ').unwrap(),
        );
        fs::write(
            &state,
            format!("{}{}", &text[..at + start], &text[at + 6 + end..]),
        )
        .unwrap();
    };
    let has_lineage = || {
        let text = fs::read_to_string(&state).unwrap();
        let base = text
            .lines()
            .find(|line| line.starts_with("base "))
            .unwrap()
            .to_owned();
        base.split(' ').nth(1).unwrap().contains('-')
    };
    forget();
    assert!(!has_lineage());
    write(&one, "a", "2");
    assert_eq!(home.push(&one), 2);
    assert!(has_lineage());
    home.run(&two, &["pull"]);
    write(&two, "b", "of two");
    assert_eq!(home.push(&two), 3);
    forget();
    write(&one, "c", "of one");
    assert_has(&home.exits(&one, &["push"], 1), "was pushed");
    home.run(&one, &["pull"]);
    assert!(has_lineage());
    assert_eq!(home.push(&one), 4);
    // A pull learns it, too, if there is nothing else to pull.
    forget();
    home.run(&one, &["pull"]);
    assert!(has_lineage());
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
