//! `samovar push` pushes the paths of builds: those that the post-build-hook has spooled, those
//! that are added while a command runs, and those that are registered while it watches the store.

mod support;
mod support_push;
mod support_uploads;

use std::fs;
use std::path::Path;
use std::process::Command;

use support::samovar;
use support_push::{Pusher, count, exits_with};
use support_uploads::{Running, Site};
use testkit::nix::{OwnStore, local};
use testkit::process::{Process, fails, output};

fn hook(spool: &Path, paths: &str) -> Command {
    let mut command = samovar();
    command.arg("hook").arg("--spool").arg(spool);
    command.env("OUT_PATHS", paths);
    command
}

fn is_served(server: &Running, path: &str) -> bool {
    server.get(&format!("/{}.narinfo", &path[11..43])).status == 200
}

#[test]
fn paths_of_the_hook_are_pushed_and_removed_from_the_spool() {
    let site = Site::new();
    let server = site.start();
    let store = OwnStore::new();
    let paths: Vec<String> = (0..3)
        .map(|number| store.add_file(&format!("output-{number}"), b"text"))
        .collect();
    let spool = tempfile::tempdir().unwrap();
    let files = || fs::read_dir(spool.path()).unwrap().count();
    output(&mut hook(spool.path(), &paths[..2].join(" ")));
    output(&mut hook(spool.path(), &paths[2]));
    output(&mut hook(spool.path(), ""));
    // One of the spooled paths was deleted before the push.
    let deleted = "/nix/store/vdszx2k8vwaxcpdpwhbwsgib5c6sf53k-deleted";
    output(&mut hook(spool.path(), deleted));
    assert_eq!(files(), 3);

    let pusher = Pusher::new(&local(store.root()), &site.token(&[]));
    let spool_argument = spool.path().to_str().unwrap();
    let report = pusher.report(&server.url(), &["--spool", spool_argument]);
    assert_eq!(count(&report, "pushed"), 3);
    assert!(paths.iter().all(|path| is_served(&server, path)));
    assert_eq!(files(), 0);
    // An empty spool is no error.
    output(&mut pusher.push(&server.url(), &["--spool", spool_argument]));
}

#[test]
fn a_spool_file_that_cannot_be_understood_is_kept() {
    let site = Site::new();
    let server = site.start();
    let store = OwnStore::new();
    let path = store.add_file("output", b"text");
    let spool = tempfile::tempdir().unwrap();
    fs::write(spool.path().join("1.paths"), format!("{path}\nnonsense \n")).unwrap();
    fs::write(spool.path().join("2.paths"), [0xff, b'\n']).unwrap();
    let spool_argument = ["--spool", spool.path().to_str().unwrap()];
    // Without the right to push, nothing is moved.
    let reader = Pusher::new(&local(store.root()), &site.token(&["--rights", "read"]));
    let text = exits_with(&mut reader.push(&server.url(), &spool_argument), 1);
    assert!(!text.contains("was moved"), "{text}");
    assert!(!spool.path().join("failed").exists());
    let pusher = Pusher::new(&local(store.root()), &site.token(&[]));
    let text = exits_with(&mut pusher.push(&server.url(), &spool_argument), 1);
    for name in ["1.paths: \"nonsense \"", "2.paths: "] {
        assert!(text.contains(name), "{text}");
    }
    assert!(
        text.contains("the file was moved into failed") && text.contains("2 failed"),
        "{text}"
    );
    assert!(is_served(&server, &path), "the readable lines are pushed");
    for name in ["1.paths", "2.paths"] {
        assert!(spool.path().join("failed").join(name).exists(), "{name}");
    }
}

#[test]
fn the_hook_refuses_what_it_cannot_store() {
    let dir = tempfile::tempdir().unwrap();
    let text = fails(&mut hook(&dir.path().join("absent"), "/nix/store/a"));
    assert!(text.contains("create the directory"), "{text}");
    let text = fails(hook(dir.path(), "").env_remove("OUT_PATHS"));
    assert!(text.contains("post-build-hook"), "{text}");
    let text = fails(&mut hook(dir.path(), "relative"));
    assert!(text.contains("store paths"), "{text}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn paths_that_a_command_adds_are_pushed() {
    let site = Site::new();
    let server = site.start();
    let store = OwnStore::new();
    let before = store.add_file("before", b"before");
    let pusher = Pusher::new(&local(store.root()), &site.token(&[]));
    let file = pusher.home().join("added");
    fs::write(&file, b"added").unwrap();
    let root = local(store.root());
    let add = format!(
        "nix-store --store '{root}' --add {} && exit 7",
        file.display()
    );

    // Nix counts added paths as not built on this machine.
    let exec = ["--exec", "--", "sh", "-c", &add];
    let text = exits_with(&mut pusher.push(&server.url(), &exec), 7);
    assert!(text.contains("pushed 0 paths"), "{text}");

    fs::write(&file, b"added later").unwrap();
    let exec = [&["--substituted"], &exec[..]].concat();
    let text = exits_with(&mut pusher.push(&server.url(), &exec), 7);
    assert!(text.contains("pushed 1 path, "), "{text}");
    let added = text.lines().find(|line| line.ends_with("-added")).unwrap();
    assert!(is_served(&server, added), "{text}");
    assert!(!is_served(&server, &before));

    // Nor can the command read the token in the environment of its parents.
    let spy = "tr '\\0' '\\n' </proc/$PPID/environ; env";
    let spy = ["--exec", "--", "sh", "-c", spy];
    let mut pushing = pusher.without_token(&server.url());
    pushing.args(spy);
    let found = output(pushing.env("SAMOVAR_TOKEN", site.token(&["--name", "env"])));
    assert!(
        found.contains("PATH=") && !found.contains("smv1_"),
        "{found}"
    );

    let exec = ["--exec", "--", "true"];
    output(&mut pusher.push(&server.url(), &exec));
}

#[test]
fn a_command_does_not_run_if_its_paths_could_not_be_pushed() {
    let (site, server, _) = Site::serving();
    let store = OwnStore::new();
    let revoked = site.token(&["--name", "revoked"]);
    site.revoke("revoked");
    let reader = site.token(&["--rights", "read"]);
    for (token, reason) in [(&revoked, "was revoked"), (&reader, "may not push")] {
        let pusher = Pusher::new(&local(store.root()), token);
        let made = pusher.home().join("made");
        let touch = ["--exec", "--", "touch", made.to_str().unwrap()];
        let text = exits_with(&mut pusher.push(&server.url(), &touch), 1);
        assert!(text.contains(reason), "{text}");
        assert!(!made.exists(), "{text}");
    }
}

#[test]
fn registered_paths_are_pushed_by_a_watcher_and_after_its_restart() {
    let site = Site::new();
    let server = site.start();
    let store = OwnStore::new();
    let add = |name: &str| store.add_file(name, name.as_bytes());
    let pusher = Pusher::new(&local(store.root()), &site.token(&[]));
    let watch = |more: &[&str]| {
        // Added paths count as not built on this machine.
        let watch = [&["--watch", "--substituted"], more].concat();
        let process = Process::try_spawn(&mut pusher.push(&server.url(), &watch)).unwrap();
        process.wait_for("watching for new paths");
        process
    };
    let before = add("before");
    let watcher = watch(&[]);
    let first = add("first");
    watcher.wait_for("pushed 1 path, ");
    let second = add("second");
    watcher.wait_for("pushed 1 path, ");
    assert!(is_served(&server, &first) && is_served(&server, &second));
    drop(watcher);

    let meanwhile = add("meanwhile");
    let watcher = watch(&["--exclude", "no*"]);
    watcher.wait_for("pushed 1 path, ");
    let (excluded, last) = (add("not-this"), add("last"));
    watcher.wait_for("pushed 1 path, ");
    assert!(is_served(&server, &meanwhile) && is_served(&server, &last));
    assert!(!is_served(&server, &excluded) && !is_served(&server, &before));
}
