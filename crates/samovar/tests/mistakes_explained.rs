//! Commands with a wrong name or directory change nothing, and say what is wrong.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_push;
mod support_uploads;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::samovar;
use support_push::{Pusher, exits_with};
use support_uploads::{Running, Site};
use testkit::nix::{OwnStore, hash_part, local};
use testkit::process::{finish, output};

/// A private cache, a store with a path, and a directory with a file.
struct Home {
    site: Site,
    server: Running,
    _store: OwnStore,
    /// A path in the store, with the name `hello`.
    path: String,
    tree: PathBuf,
    pusher: Pusher,
}

impl Home {
    fn new() -> Self {
        Self::with("access.networks = [\"192.0.2.0/24\"]\n")
    }

    /// Starts a server with these options.
    fn with(options: &str) -> Self {
        let site = Site::new();
        site.configure_empty(options);
        let server = site.start();
        let token = site.token(&["--rights", "read,push,pin"]);
        let store = OwnStore::new();
        let path = store.add_file("hello", b"hello");
        let tree = site.dir().join("tree");
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("file"), "1").unwrap();
        let pusher = Pusher::new(&local(store.root()), &token);
        Self {
            site,
            server,
            _store: store,
            path,
            tree,
            pusher,
        }
    }

    /// Returns a command with the token, for the refs of the cache.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = samovar();
        command.args(words).env("SAMOVAR_CACHE", self.server.url());
        command.env("XDG_STATE_HOME", self.site.dir().join("state"));
        let token = self.pusher.home().join("token");
        command.env("SAMOVAR_TOKEN", fs::read_to_string(token).unwrap().trim());
        command
    }

    fn push_tree(&self, name: &str, more: &[&str]) -> Command {
        let words = ["push", self.tree.to_str().unwrap(), name];
        self.command(&[&words[..], more].concat())
    }

    fn push_path(&self, path: &str, more: &[&str]) -> Command {
        self.pusher
            .push(&self.server.url(), &[&[path], more].concat())
    }

    /// Returns `samovar pin add` on the machine of the server.
    fn add_pin(&self, name: &str, path: &str, more: &[&str]) -> Command {
        let mut command = samovar();
        command.args(["pin", "add", name, path]).args(more);
        command.arg("--storage").arg(self.site.storage());
        command
    }

    /// Returns the generations of a ref.
    fn generations(&self, name: &str) -> Vec<String> {
        let log = output(&mut self.command(&["ref", "log", name, "--json"]));
        let log: serde_json::Value = serde_json::from_str(&log).unwrap();
        let manifests = log["generations"].as_array().unwrap().iter();
        let manifests = manifests.map(|one| one["manifest"].as_str().unwrap().to_owned());
        manifests.collect()
    }
}

#[track_caller]
fn assert_parts(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

#[test]
fn pins_of_packages_and_refs_of_snapshots_do_not_replace_each_other() {
    let home = Home::new();
    output(&mut home.push_tree("app", &[]));
    let first = home.generations("app");
    let refused = ["app is a ref of snapshots", "use another name, or --force"];
    let text = exits_with(&mut home.push_path(&home.path, &["--pin", "app"]), 1);
    assert_parts(&text, &refused);
    let text = exits_with(&mut home.add_pin("app", &home.path, &[]), 1);
    assert_parts(&text, &refused);
    assert_eq!(home.generations("app"), first);
    // A manifest may be pinned under the name of a ref.
    output(&mut home.add_pin("app", &first[0], &[]));
    output(&mut home.add_pin("release", &first[0], &[]));
    output(&mut home.push_tree("release", &[]));

    output(&mut home.push_path(&home.path, &["--pin", "tool"]));
    let text = exits_with(&mut home.push_tree("tool", &[]), 1);
    let kept = format!(
        "tool is a pin of {}, not a ref of snapshots",
        &home.path[11..]
    );
    assert_parts(&text, &[&kept, "use another name, or --force"]);
    assert!(!text.contains("whole tree"), "{text}");
    assert_eq!(home.generations("tool"), [&home.path[11..]]);

    // A pin that has the name with which ref pin keeps a generation.
    output(&mut home.push_path(&home.path, &["--pin", "app@1"]));
    let text = exits_with(&mut home.command(&["ref", "pin", "app@1"]), 1);
    assert_parts(&text, &["app@1 is a pin of ", "remove that pin first"]);

    // By force, each of them replaces the other.
    output(&mut home.push_path(&home.path, &["--pin", "app", "--force"]));
    assert_eq!(home.generations("app")[0], home.path[11..]);
    let text = exits_with(&mut home.push_tree("app", &["--force"]), 0);
    assert!(!text.contains("whole tree"), "{text}");
    assert_eq!(home.generations("app")[0], first[0]);
    output(&mut home.add_pin("app", &home.path, &["--force"]));
    assert_eq!(home.generations("app").len(), 4);
}
#[test]
fn a_pin_is_no_workspace() {
    let home = Home::new();
    output(&mut home.push_path(&home.path, &["--pin", "tool"]));
    let (new, empty) = (
        home.site.dir().join("new/deep"),
        home.site.dir().join("empty"),
    );
    fs::create_dir(&empty).unwrap();
    let open = |directory: &Path, more: &[&str]| {
        let words = ["workspace", "open", "tool", directory.to_str().unwrap()];
        exits_with(&mut home.command(&[&words[..], more].concat()), 1)
    };
    for directory in [&new, &empty] {
        assert_parts(&open(directory, &[]), &["tool is a pin of ", "not a ref"]);
    }
    // A directory with files keeps them, and nothing else.
    open(&home.tree, &["--adopt"]);
    assert!(!home.site.dir().join("new").exists());
    let names = |directory: &Path| -> Vec<_> {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    };
    assert!(names(&empty).is_empty());
    assert_eq!(names(&home.tree), ["file"]);
    let list = output(&mut home.command(&["workspace", "list", "--json"]));
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert_eq!(
        list["workspaces"].as_array().map(Vec::len),
        Some(0),
        "{list}"
    );
}
#[test]
fn a_path_with_another_name_is_absent() {
    let home = Home::with("");
    let wrong = format!("/nix/store/{}-hallo", hash_part(&home.path));
    let text = exits_with(&mut home.push_path(&wrong, &["--pin", "tool"]), 1);
    let found = format!("is {}", home.path);
    assert_parts(&text, &[&wrong, &found]);
    output(&mut home.push_path(&home.path, &[]));
    let text = exits_with(&mut home.add_pin("tool", &wrong, &[]), 1);
    assert_parts(&text, &[&wrong, &home.path]);
    let url = home.server.url();
    let query = |path: &str| finish(samovar().args(["query", &url, path]));
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let found = query(&wrong);
    assert_eq!(found.status.code(), Some(1));
    assert_eq!(text(found.stdout), format!("absent {wrong}\n"));
    assert_parts(&text(found.stderr), &[&wrong, &home.path]);
    for right in [&*home.path, hash_part(&home.path)] {
        let found = query(right);
        let expected = format!("present {right}\n");
        assert_eq!(
            (found.status.code(), text(found.stdout)),
            (Some(0), expected)
        );
        assert_eq!(text(found.stderr), "");
    }
}
#[test]
fn a_push_without_a_store_names_the_option() {
    let home = tempfile::tempdir().unwrap();
    let absent = home.path().join("absent");
    let path = "/nix/store/vdszx2k8vwaxcpdpwhbwsgib5c6sf53k-app";
    let push = || {
        let mut command = samovar();
        command.args(["push", "http://127.0.0.1:1", path]);
        command.env("NIX_STATE_DIR", &absent);
        command
    };
    let text = exits_with(&mut push(), 3);
    assert_parts(&text, &["--store"]);
    let text = exits_with(push().arg("--store").arg(&absent), 3);
    assert_parts(&text, &["--store"]);
    assert!(!text.contains("set NIX_STATE_DIR"), "{text}");
}
#[test]
fn a_collector_without_a_retention_says_so() {
    let (site, _server, _token) = Site::serving();
    let mut gc = samovar();
    let gc = gc
        .args(["gc", "--dry-run", "--storage"])
        .arg(site.storage());
    let reason = "nothing is deleted, because no retention is set: set uploads.retention";
    assert_parts(&output(gc), &[reason, "--uploads-retention"]);
    let text = output(gc.args(["--uploads-retention", "30d"]));
    assert!(!text.contains("no retention"), "{text}");
}

#[test]
fn a_pull_into_a_directory_with_files_names_it_first() {
    let home = Home::new();
    output(&mut home.push_tree("app", &[]));
    let directory = home.site.dir().join("full");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("mine"), "mine").unwrap();
    let words = ["pull", "app", directory.to_str().unwrap()];
    let text = exits_with(&mut home.command(&words), 1);
    let start = format!("samovar: error: {directory:?} ");
    assert!(text.starts_with(&start), "{text}");
    assert_eq!(fs::read(directory.join("mine")).unwrap(), b"mine");
}
