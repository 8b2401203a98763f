//! `samovar pull` refuses what a hostile or damaged cache sends: its message names the file of the
//! cache, and it leaves no part of a tree and no download behind.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_files;
mod support_mount;
mod support_uploads;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use samovar_workspace::Manifest;
use support_files::{Files, no_rule};
use support_mount::{Snapshot, address, noise};
use support_uploads::{MadePath, nar_of_depth, nar_of_entry, nar_of_file};
use testkit::nar::Node;
use testkit::process::{finish, output};

/// Size of a file, in bytes, from which a download that was cut off is kept and continued.
const DOWNLOAD_KEPT: usize = 8 << 20;

/// A static web server with a Nix cache, and a client's directory.
struct Hostile {
    dir: tempfile::TempDir,
    url: String,
}

impl Hostile {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("cache");
        fs::create_dir_all(cache.join("nar")).unwrap();
        fs::create_dir(dir.path().join("client")).unwrap();
        fs::write(cache.join("nix-cache-info"), "StoreDir: /nix/store\n").unwrap();
        let (server, _) = Files::serve(&cache, no_rule());
        let url = format!("http://{server}");
        Self { dir, url }
    }

    /// Adds a path whose narinfo is this text.
    fn add(&self, path: &MadePath, narinfo: &str) {
        let cache = self.dir.path().join("cache");
        fs::write(cache.join(path.url()), &path.file).unwrap();
        fs::write(cache.join(&path.target()[1..]), narinfo).unwrap();
    }

    fn client(&self) -> PathBuf {
        self.dir.path().join("client")
    }

    fn pull(&self, path: &MadePath, name: &str) -> Command {
        let mut command = support::samovar();
        command.args(["pull", &format!("{}#{}", self.url, path.store_path)]);
        command.arg(self.client().join(name));
        command
    }

    /// Asserts that a pull of the path is refused with one sentence that contains `part` and the
    /// URL of the file, into a new directory, an empty one, and one with a file.
    #[track_caller]
    fn refuses(&self, path: &MadePath, part: &str) {
        let client = self.client();
        for prepare in [
            (|_| {}) as fn(&Path),
            |copy| fs::create_dir(copy).unwrap(),
            |copy| {
                fs::create_dir(copy).unwrap();
                fs::write(copy.join("mine"), "mine").unwrap();
            },
        ] {
            let copy = client.join("copy");
            prepare(&copy);
            let before = entries(&client);
            let is_full = copy.join("mine").exists();
            let failed = finish(&mut self.pull(path, "copy"));
            let text = String::from_utf8(failed.stderr).unwrap();
            assert!(matches!(failed.status.code(), Some(1 | 3)), "{text}");
            assert_eq!(text.lines().count(), 1, "{text}");
            let expected = if is_full { "copy" } else { part };
            assert!(text.contains(expected), "{expected:?} is not in {text:?}");
            assert!(is_full || text.contains(&path.url()), "{text}");
            assert_eq!(entries(&client), before, "{text}");
            fs::remove_dir_all(&copy).ok();
        }
    }

    /// Asserts that a pull of the manifest is refused with a sentence that contains these parts.
    #[track_caller]
    fn refuses_manifest(&self, manifest: &MadePath, parts: &[&str]) {
        let before = entries(&self.client());
        let failed = finish(&mut self.pull(manifest, "copy"));
        let text = String::from_utf8(failed.stderr).unwrap();
        assert_eq!(failed.status.code(), Some(1), "{text}");
        for part in parts {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
        assert_eq!(entries(&self.client()), before, "{text}");
    }
}

/// Returns the paths below a directory.
fn entries(dir: &Path) -> String {
    output(Command::new("find").arg(dir))
}

/// Returns a path with a tree of this form, compressed by zstd.
fn made(name: &str, nar: Vec<u8>) -> MadePath {
    let mut path = MadePath::new(name);
    path.store_path = address(&nar, &[], name);
    path.nar = nar;
    path.compressed("zstd")
}

fn tree() -> MadePath {
    let files: [(&str, Node<Vec<u8>>); 2] = [
        ("a", Node::file("first")),
        ("b", Node::file(noise(1, 3 << 20))),
    ];
    made("tree", Node::dir(files).nar())
}

#[test]
fn a_right_file_is_pulled() {
    let hostile = Hostile::new();
    let path = tree();
    hostile.add(&path, &path.narinfo());
    output(&mut hostile.pull(&path, "copy"));
    assert_eq!(fs::read(hostile.client().join("copy/a")).unwrap(), b"first");
}

#[test]
fn a_truncated_file_is_refused() {
    let path = tree();
    for len in [0, 1, path.file.len() / 2, path.file.len() - 1] {
        // With the size of the whole file, that of the part, and that of a download that is kept.
        for size in [path.file.len(), len, DOWNLOAD_KEPT] {
            let hostile = Hostile::new();
            let part = MadePath {
                file: path.file[..len].to_vec(),
                ..path.clone()
            };
            let narinfo = part.narinfo_with("FileSize", &size.to_string());
            hostile.add(&part, &narinfo);
            hostile.refuses(&part, "");
        }
    }
}

/// A file of a few kilobytes that decompresses to 8 GiB.
#[test]
fn a_file_that_decompresses_to_more_than_its_size_is_refused_early() {
    let hostile = Hostile::new();
    let path = tree();
    let mut bomb = path.nar[..100].to_vec();
    bomb.resize(1 << 30, 0);
    let frame = zstd::bulk::compress(&bomb, 1).unwrap();
    drop(bomb);
    let bomb = MadePath {
        file: frame.repeat(8),
        ..path
    };
    hostile.add(&bomb, &bomb.narinfo());
    hostile.refuses(&bomb, "");
    // A NAR that is right, and has more behind it.
    let path = tree();
    let mut file = path.file.clone();
    file.extend(frame);
    let long = MadePath { file, ..path };
    hostile.add(&long, &long.narinfo());
    hostile.refuses(&long, "");
}

#[test]
fn other_contents_than_those_of_the_hash_are_refused() {
    let hostile = Hostile::new();
    let mut path = tree();
    // A byte of a file, so that the archive is valid.
    let at = path.nar.len() / 2;
    path.nar[at] ^= 1;
    let path = path.compressed("zstd");
    let narinfo = path.narinfo_with("NarHash", &format!("sha256:{}", support_uploads::hash(b"")));
    hostile.add(&path, &narinfo);
    hostile.refuses(&path, "hash");
}

#[test]
fn a_false_size_of_the_archive_is_refused() {
    let path = tree();
    for size in [path.nar.len() - 1, path.nar.len() + 1, 1] {
        let hostile = Hostile::new();
        hostile.add(&path, &path.narinfo_with("NarSize", &size.to_string()));
        hostile.refuses(&path, "");
    }
}

/// No signature and no hash covers the size of the file. A false one changes nothing, also if it
/// is that of a download that can be continued.
#[test]
fn a_false_size_of_the_file_changes_nothing() {
    let path = tree();
    for size in [path.file.len() - 1, path.file.len() + 1, 1, DOWNLOAD_KEPT] {
        let hostile = Hostile::new();
        hostile.add(&path, &path.narinfo_with("FileSize", &size.to_string()));
        output(&mut hostile.pull(&path, "copy"));
        let copy = hostile.client().join("copy");
        assert_eq!(fs::read(copy.join("b")).unwrap(), noise(1, 3 << 20));
        assert_eq!(fs::read_dir(hostile.client()).unwrap().count(), 1);
    }
}

#[test]
fn names_that_lead_outside_and_deep_trees_are_refused() {
    for name in ["..", ".", "a/b", "/etc", "a\0b", ""] {
        let hostile = Hostile::new();
        let path = made("names", nar_of_entry(name.as_bytes()));
        hostile.add(&path, &path.narinfo());
        hostile.refuses(&path, "name");
    }
    let hostile = Hostile::new();
    // 64 components of a path are too many.
    for levels in [64, 65] {
        let deep = made("deep", nar_of_depth(levels));
        hostile.add(&deep, &deep.narinfo());
        hostile.refuses(&deep, "64");
    }
    let deepest = made("deep", nar_of_depth(63));
    hostile.add(&deepest, &deepest.narinfo());
    output(&mut hostile.pull(&deepest, "copy"));
    assert!(
        hostile
            .client()
            .join("copy")
            .join(["d"; 63].join("/"))
            .is_file()
    );
}

#[test]
fn the_greatest_window_is_that_of_servers() {
    let hostile = Hostile::new();
    for (log, is_accepted) in [(27, true), (28, false)] {
        let path = tree();
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(log).unwrap();
        encoder.write_all(&path.nar).unwrap();
        let file = encoder.finish().unwrap();
        let path = MadePath { file, ..path };
        hostile.add(&path, &path.narinfo());
        if is_accepted {
            output(&mut hostile.pull(&path, "copy"));
            fs::remove_dir_all(hostile.client().join("copy")).unwrap();
        } else {
            hostile.refuses(&path, "");
        }
    }
}

#[test]
fn a_manifest_that_is_too_long_is_refused_before_it_is_downloaded() {
    let hostile = Hostile::new();
    let manifest = made("app.manifest", nar_of_file(b""));
    let limit = 512_u64 << 20;
    for (size, is_too_long) in [(limit, false), (limit + 1, true)] {
        hostile.add(
            &manifest,
            &manifest.narinfo_with("NarSize", &size.to_string()),
        );
        let failed = finish(&mut hostile.pull(&manifest, "copy"));
        let text = String::from_utf8(failed.stderr).unwrap();
        assert_eq!(failed.status.code(), Some(1), "{text}");
        assert_eq!(text.contains(&size.to_string()), is_too_long, "{text}");
        assert!(!hostile.client().join("copy").exists());
    }
}

/// The hash of the tree is right, but not the digest of a file in the manifest.
#[test]
fn a_file_that_differs_from_the_manifest_is_refused() {
    let hostile = Hostile::new();
    let source = hostile.dir.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("a"), "first").unwrap();
    let right = Snapshot::of(&source, "zstd");
    fs::write(source.join("a"), "other").unwrap();
    let other = Snapshot::of(&source, "zstd");
    let mut manifest = Manifest::parse(&other.text).unwrap();
    let of_right = Manifest::parse(&right.text).unwrap();
    (manifest.tree, manifest.nar_hash) = (of_right.tree, of_right.nar_hash);
    let wrong = Snapshot::with_text(right.tree, manifest.text());
    for path in [&wrong.tree, &wrong.manifest] {
        hostile.add(path, &path.narinfo());
    }
    let difference = "\"a\" differs from the manifest";
    hostile.refuses_manifest(&wrong.manifest, &[&wrong.tree.url(), difference]);
}

/// Garbage collection keeps the tree of a manifest because the manifest refers to it.
#[test]
fn a_manifest_that_does_not_refer_to_its_tree_is_refused() {
    let hostile = Hostile::new();
    let source = hostile.dir.path().join("source");
    fs::create_dir(&source).unwrap();
    let Snapshot { tree, manifest, .. } = Snapshot::of(&source, "zstd");
    hostile.add(&tree, &tree.narinfo());
    let mut alone = manifest.clone();
    alone.references.clear();
    // This store path is that of a manifest with the reference.
    hostile.add(&alone, &alone.narinfo());
    hostile.refuses_manifest(&alone, &["is not the store path of its content"]);
    alone.store_path = address(&alone.nar, &[], "app.manifest");
    hostile.add(&alone, &alone.narinfo());
    hostile.refuses_manifest(
        &alone,
        &[&alone.store_path[11..], "does not refer to its tree"],
    );

    let mut damaged = manifest.clone();
    let middle = damaged.file.len() / 2;
    damaged.file[middle] ^= 1;
    hostile.add(&damaged, &damaged.narinfo());
    hostile.refuses_manifest(&damaged, &[&manifest.store_path[11..], "arrived damaged"]);
    hostile.add(&manifest, &manifest.narinfo());
    output(&mut hostile.pull(&manifest, "copy"));
}
