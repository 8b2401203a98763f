//! npm works in a workspace as in any directory. It removes symbolic links and the state of a
//! workspace in place of `node_modules`; no file gets lost without a message.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "a test says what it has not tested")]

mod support;
mod support_uploads;
mod support_workspaces;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use support_workspaces::{Home, assert_has, exits, tree, write};
use testkit::process::{finish, output};

/// Number of files of the package.
const FILE_COUNT: usize = 50;

/// Returns `npm` with these arguments in a directory. It uses no network.
fn npm(home: &Home, directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("npm");
    command
        .args(arguments)
        .args(["--offline", "--no-audit", "--no-fund"]);
    command.arg("--cache").arg(home.dir("npm-cache"));
    command.current_dir(directory).env("HOME", home.site.dir());
    command
}

/// Creates a project that depends on a package with [`FILE_COUNT`] files and a program. Returns
/// `false`, after printing the reason, if npm is not installed.
fn create(home: &Home, project: &Path) -> bool {
    if Command::new("npm").arg("--version").output().is_err() {
        println!("not tested: npm is not installed");
        return false;
    }
    let package = home.dir("package");
    fs::create_dir_all(project).unwrap();
    let manifest = r#"{"name": "many", "version": "1.0.0", "bin": {"many": "cli.js"}}"#;
    write(&package, "package.json", manifest);
    write(&package, "cli.js", "#!/usr/bin/env node\n");
    for number in 2..FILE_COUNT {
        write(
            &package,
            &format!("lib/{}/{number}.js", number % 5),
            format!("{number}\n"),
        );
    }
    let mut pack = Command::new("tar");
    pack.arg("-czf").arg(project.join("many-1.0.0.tgz"));
    output(pack.arg("-C").arg(home.site.dir()).arg("package"));
    let manifest = r#"{"name": "app", "version": "1.0.0",
                       "dependencies": {"many": "file:many-1.0.0.tgz"}}"#;
    write(project, "package.json", manifest);
    true
}

/// Returns the number of files of the installed package.
fn installed(project: &Path) -> usize {
    let package = project.join("node_modules/many");
    tree(&package)
        .values()
        .filter(|value| *value != b"/")
        .count()
}

#[test]
fn a_project_with_node_modules_is_a_workspace() {
    let home = Home::new();
    let one = home.dir("one");
    if !create(&home, &one) {
        return;
    }
    home.open("app", "one");
    home.push(&one);
    output(&mut npm(&home, &one, &["install"]));
    assert_eq!(installed(&one), FILE_COUNT);
    assert_has(&home.exits(&one, &["status"], 1), "added");
    home.push(&one);
    let two = home.open("app", "two");
    assert_eq!(tree(&two), tree(&one));
    // npm removes everything, and makes the same files again.
    output(&mut npm(&home, &two, &["ci"]));
    assert_eq!(tree(&two), tree(&one));
    home.push(&two);
    home.run(&one, &["pull"]);
    assert_eq!(tree(&one), tree(&two));
    home.assert_clean(&one);
}

#[test]
fn a_symbolic_link_that_npm_has_replaced_is_pushed_as_a_directory() {
    let home = Home::new();
    let one = home.dir("one");
    if !create(&home, &one) {
        return;
    }
    let elsewhere = home.dir("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, one.join("node_modules")).unwrap();
    home.open("app", "one");
    home.push(&one);
    // `npm ci` needs the lock file.
    output(&mut npm(&home, &one, &["install", "--package-lock-only"]));
    output(&mut npm(&home, &one, &["ci"]));
    assert!(
        one.join("node_modules")
            .symlink_metadata()
            .unwrap()
            .is_dir()
    );
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    let text = home.exits(&one, &["diff"], 1);
    assert_has(&text, "replaced node_modules");
    assert_has(&text, "added    node_modules/many/cli.js");
    home.push(&one);
    let two = home.open("app", "two");
    assert_eq!(tree(&two), tree(&one));
    assert_eq!(installed(&two), FILE_COUNT);
    // Another machine has the link, and gets the directory.
    let old = home.open("app@1", "old");
    home.run(&old, &["pull"]);
    assert_eq!(tree(&old), tree(&one));
}

#[test]
fn a_mount_on_node_modules_survives() {
    let home = Home::new();
    let one = home.dir("one");
    if !create(&home, &one) {
        return;
    }
    home.open("app", "one");
    home.push(&one);
    // `npm ci` needs the lock file.
    output(&mut npm(&home, &one, &["install", "--package-lock-only"]));
    fs::create_dir(one.join("node_modules")).unwrap();
    let mounted = |command: &Command, after: &str| {
        let script = format!(
            "mount -t tmpfs none node_modules && shift && \"$@\" >&2 && \
             grep -c \" $PWD/node_modules \" /proc/mounts && {after}"
        );
        let mut mounted = Command::new("unshare");
        mounted.args([
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            &script,
            "sh",
            "",
        ]);
        mounted.arg(command.get_program()).args(command.get_args());
        mounted.current_dir(&one).env("HOME", home.site.dir());
        mounted
            .env("SAMOVAR_TOKEN", &home.token)
            .env("XDG_STATE_HOME", home.dir("state"))
            .env("SAMOVAR", env!("CARGO_BIN_EXE_samovar"));
        mounted
    };
    if !finish(&mut mounted(&Command::new("true"), "true"))
        .status
        .success()
    {
        println!("not tested: no file system can be mounted here");
        return;
    }
    // A mounted file system is another tree, which is left out with a message.
    let after = "find node_modules/many -type f | wc -l && \"$SAMOVAR\" workspace push";
    let text = exits(&mut mounted(&npm(&home, &one, &["ci"]), after), 0);
    assert_has(&text, &format!("1\n{FILE_COUNT}\n"));
    assert_has(&text, "left out 1 mounted file system: \"node_modules\"");
}

/// `npm ci` removes all entries of `node_modules`, also those that are not its own.
#[test]
fn a_workspace_in_node_modules_itself_is_reported() {
    let home = Home::new();
    let project = home.dir("project");
    if !create(&home, &project) {
        return;
    }
    output(&mut npm(&home, &project, &["install"]));
    let modules = project.join("node_modules");
    let mut open = home.command(&["open", "modules"]);
    assert_has(&exits(open.arg(&modules), 0), "npm ci removes");
    home.push(&modules);
    output(&mut npm(&home, &project, &["ci"]));
    // The state is not in the directory.
    assert_has(&home.exits(&modules, &["status"], 1), "touched");
    home.push(&modules);
    let copy = home.open("modules", "copy");
    assert_eq!(tree(&copy), tree(&modules));
}
