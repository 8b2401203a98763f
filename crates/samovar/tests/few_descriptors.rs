//! Commands work with few file descriptors, however many files a tree has. With too few, they fail
//! with a reason, and leave no half tree.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_mount;
mod support_uploads;
mod support_workspaces;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support_mount::{Fixture, Mount, can_mount, listed};
use support_workspaces::{Home, read, tree, write};
use testkit::process::{finish, output};

/// Returns a command with this maximum number of file descriptors.
fn limited(command: &Command, limit: u32) -> Command {
    let mut limited = Command::new("prlimit");
    limited.arg(format!("--nofile={limit}")).arg("--");
    limited.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        limited.current_dir(directory);
    }
    limited
}

/// Writes a tree with 400 files and directories of a depth of 60.
fn fill(directory: &Path) {
    let mut deep = PathBuf::new();
    for _ in 0..60 {
        deep.push("d");
        write(directory, deep.join("file").to_str().unwrap(), "deep");
    }
    for number in 0..340 {
        write(
            directory,
            &format!("{}/{number}", number % 100),
            number.to_string(),
        );
    }
}

#[test]
fn sixty_four_descriptors_are_enough_for_a_tree_of_any_size() {
    let home = Home::new();
    let one = home.dir("one");
    fill(&one);
    let run = |directory: &Path, arguments: &[&str]| {
        output(&mut limited(&home.command_in(directory, arguments), 64))
    };
    let open = |directory: &str| {
        let mut command = home.command(&["open", "app"]);
        output(&mut limited(command.arg(home.dir(directory)), 64));
        home.dir(directory)
    };
    open("one");
    run(&one, &["push"]);
    let two = open("two");
    assert_eq!(tree(&two), tree(&one));
    for number in 0..200 {
        write(
            &two,
            &format!("{}/{number}", number % 100),
            format!("two {number}"),
        );
    }
    write(&one, "mine", "mine");
    run(&two, &["push"]);
    run(&one, &["pull"]);
    run(&one, &["push"]);
    run(&two, &["pull"]);
    assert_eq!(tree(&one), tree(&two));
    assert_eq!(read(&one, "99/199"), "two 199");
    run(&two, &["restore", "@1"]);
    assert_eq!(read(&two, "99/199"), "199");
    // A directory that is not a workspace.
    let samovar = |arguments: &[&str]| {
        let mut command = support::samovar();
        command.args(arguments).current_dir(home.site.dir());
        command.env("SAMOVAR_CACHE", home.server.url());
        command.env("SAMOVAR_TOKEN", &home.token);
        limited(&command, 64)
    };
    output(&mut samovar(&["push", "one", "plain"]));
    output(&mut samovar(&["pull", "plain", "plain"]));
    assert_eq!(tree(&home.dir("plain")), tree(&one));
}

#[test]
fn too_few_descriptors_are_an_error_that_leaves_nothing() {
    let home = Home::new();
    let one = home.open("app", "one");
    fill(&one);
    home.push(&one);
    write(&one, "new", "new");
    let mut failed_count = 0;
    for limit in [6, 12] {
        let copy = home.dir("copy");
        let mut pull = support::samovar();
        pull.args(["pull", "app"]).arg(&copy);
        pull.env("SAMOVAR_CACHE", home.server.url());
        pull.env("SAMOVAR_TOKEN", &home.token);
        let push = home.command_in(&one, &["push", "--force"]);
        for (command, is_pull) in [(pull, true), (push, false)] {
            let found = finish(&mut limited(&command, limit));
            let text = String::from_utf8_lossy(&found.stderr).into_owned();
            if found.status.success() {
                if is_pull {
                    fs::remove_dir_all(&copy).unwrap();
                }
                continue;
            }
            failed_count += 1;
            assert!(
                matches!(found.status.code(), Some(1..=3)),
                "{limit}: {:?} {text}",
                found.status
            );
            assert!(
                text.contains("open files") || text.contains("descriptors"),
                "{text}"
            );
            assert!(!copy.exists(), "{limit}: {text}");
        }
        let left = fs::read_dir(home.site.dir()).unwrap();
        let names = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let left: Vec<String> = names.filter(|name| name.contains("tmp")).collect();
        assert!(left.is_empty(), "{limit}: {left:?}");
    }
    assert!(failed_count > 0);
    home.push(&one);
    home.assert_clean(&one);
}

#[test]
fn sixty_four_descriptors_are_enough_for_a_mount() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::new("zstd");
    let command = fixture.command(&fixture.server.url(), "app", "mnt");
    let mount = Mount::start(&mut limited(&command, 64), fixture.dir.path().join("mnt"));
    assert_eq!(listed(&mount.dir), listed(&fixture.tree()));
    // Many open files of the mounted tree need no descriptors of the process that serves them.
    let files: Vec<fs::File> = (0..300)
        .map(|number| fs::File::open(mount.dir.join(format!("many/file-{number}"))).unwrap())
        .collect();
    assert_eq!(listed(&mount.dir), listed(&fixture.tree()));
    drop(files);
}
