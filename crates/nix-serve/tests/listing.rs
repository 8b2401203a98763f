//! A listing describes the NAR: each file can be cut out of the NAR by its listed offset and size.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;
use support::client::{Client, succeeds};
use support::{ServerProcess, hash_part, sample, sample_list, sample_root};
use testkit::http1::Connection;

/// Start of the listing of a directory whose only entry is a directory `d`, as in deep trees.
const CHAIN_START: &str = "{\"type\":\"directory\",\"entries\":{\"d\":";
const CHAIN_END: &str = "}}";

/// Returns the name as a listing encodes it.
fn in_json(name: &OsString) -> String {
    name.to_string_lossy().into_owned()
}

fn members(node: &Value) -> Vec<&str> {
    let mut members: Vec<&str> = node
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    members.sort_unstable();
    members
}

/// Compares a node with the file system, and each file with its part of the NAR. Returns the number
/// of files.
fn check(node: &Value, real: &Path, nar: &[u8]) -> usize {
    let metadata = real.symlink_metadata().unwrap();
    if metadata.is_symlink() {
        assert_eq!(node["type"], "symlink", "{real:?}");
        assert_eq!(members(node), ["target", "type"]);
        let target = real.read_link().unwrap().into_os_string();
        assert_eq!(node["target"], in_json(&target));
        return 0;
    }
    if metadata.is_dir() {
        assert_eq!(node["type"], "directory", "{real:?}");
        assert_eq!(members(node), ["entries", "type"]);
        let entries: BTreeMap<OsString, _> = real
            .read_dir()
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name(), entry.path()))
            .collect();
        let listed = node["entries"].as_object().unwrap();
        assert_eq!(listed.len(), entries.len(), "{real:?}");
        let entries = entries.into_iter();
        return entries
            .map(|(name, path)| check(&listed[&in_json(&name)], &path, nar))
            .sum();
    }
    assert_eq!(node["type"], "regular", "{real:?}");
    if metadata.permissions().mode() & 0o100 == 0 {
        assert_eq!(members(node), ["narOffset", "size", "type"]);
    } else {
        assert_eq!(node["executable"], true, "{real:?}");
        assert_eq!(members(node), ["executable", "narOffset", "size", "type"]);
    }
    let size = node["size"].as_u64().unwrap();
    assert_eq!(size, metadata.len(), "{real:?}");
    let start = usize::try_from(node["narOffset"].as_u64().unwrap()).unwrap();
    let end = start + usize::try_from(size).unwrap();
    assert!(
        nar[start..end] == std::fs::read(real).unwrap(),
        "{real:?} is not at {start}"
    );
    1
}

#[test]
fn every_file_is_in_the_nar_at_its_listed_offset() {
    let server = ServerProcess::of_store(&sample_root());
    let mut connection = Connection::connect(server.addr);
    let mut file_count = 0;
    for path in sample_list("valid_paths") {
        let answer = connection.get(&format!("/{}.ls", hash_part(&path)));
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        let text = answer.text();
        let root = text.strip_prefix("{\"version\":1,\"root\":").unwrap();
        let mut root = root.strip_suffix('}').unwrap();
        let nar = connection.get(&format!("/nar/{}.nar", hash_part(&path)));
        let mut real = sample_root().join(path.trim_start_matches('/'));
        // Skip the outer directories: 64 nested ones exceed the recursion limit of serde_json.
        while let Some(child) = root.strip_prefix(CHAIN_START) {
            root = child.strip_suffix(CHAIN_END).unwrap();
            assert_eq!(real.read_dir().unwrap().count(), 1);
            real.push("d");
        }
        let root: Value = serde_json::from_str(root).unwrap();
        file_count += check(&root, &real, &nar.body);
    }
    assert!(file_count >= 1000, "{file_count}");
}

/// A client can fetch a single file as a range of the NAR, at its offset in the listing. Listings
/// exist for this.
#[test]
fn a_file_is_fetched_by_a_range() {
    let server = ServerProcess::of_store(&sample_root());
    let path = sample("kinds");
    let listing = server.get(&format!("/{}.ls", hash_part(&path)));
    let listing: Value = serde_json::from_slice(&listing.body).unwrap();
    let file = &listing["root"]["entries"]["nine-bytes"];
    let start = file["narOffset"].as_u64().unwrap();
    let end = start + file["size"].as_u64().unwrap() - 1;
    let range = format!("Range: bytes={start}-{end}");
    let answer = server.request("GET", &server.nar_url(&path), &[&range]);
    assert_eq!((answer.status, &*answer.text()), (206, "123456789"));
}

/// A listing has the same bytes as the one that Nix 2.8 writes beside each narinfo, except for
/// names and targets that are not UTF-8: Nix copies their bytes, which gives invalid JSON.
#[test]
fn listings_equal_those_of_nix() {
    let server = ServerProcess::of_store(&sample_root());
    let client = Client::new();
    let cache = client.dir().join("cache-of-nix");
    let to = format!(
        "file://{}?compression=none&write-nar-listing=true",
        cache.display()
    );
    // Leave out derivations: Nix would copy their outputs instead, and not all of them were built.
    let valid = sample_list("valid_paths").into_iter();
    let paths: Vec<String> = valid.filter(|path| !path.ends_with(".drv")).collect();
    let mut copy = client.command("nix");
    copy.args(["copy", "--no-check-sigs", "--from", &server.url()]);
    succeeds(copy.args(["--to", &to]).args(&paths));
    let mut connection = Connection::connect(server.addr);
    let mut not_utf8 = Vec::new();
    for path in &paths {
        let url = format!("/{}.ls", hash_part(path));
        let ours = connection.get(&url).body;
        let theirs = std::fs::read(cache.join(&url[1..])).unwrap();
        if std::str::from_utf8(&theirs).is_err() {
            not_utf8.push(path.clone());
            let readable = String::from_utf8_lossy(&theirs);
            assert!(ours == readable.as_bytes(), "{path} differs");
        } else {
            assert!(ours == theirs, "{path} differs");
        }
    }
    not_utf8.sort();
    let mut expected = [sample("odd"), sample("kinds")];
    expected.sort();
    assert_eq!(not_utf8, expected);
    assert!(paths.len() >= 300);
}

/// Files with unusual names are listed, too.
#[test]
fn files_with_unusual_names_are_listed() {
    let server = ServerProcess::of_store(&sample_root());
    let path = sample("odd");
    let answer = server.get(&format!("/{}.ls", hash_part(&path)));
    let listing: Value = serde_json::from_slice(&answer.body).unwrap();
    let entries = listing["root"]["entries"].as_object().unwrap();
    for name in [
        "\u{1}ctrl",
        "-dash",
        ".hidden",
        "Case",
        "case",
        "back\\slash",
        "latin1-\u{fffd}",
        "new\nline",
        "quote\"",
        "tab\t",
        "utf8-é",
        "with space",
        "~nix~case~hack~1",
        &"a".repeat(255),
    ] {
        assert_eq!(entries[name]["type"], "regular", "{name:?}");
    }
    let latin1 = OsString::from_vec(b"latin1-\xe9".to_vec());
    let real = sample_root().join(path.trim_start_matches('/'));
    let content = std::fs::read(real.join(latin1)).unwrap();
    assert_eq!(entries["latin1-\u{fffd}"]["size"], content.len());
}

/// An absent path has no listing.
#[test]
fn an_absent_path_has_no_listing() {
    let server = ServerProcess::of_store(&sample_root());
    for key in ["absent", "not_valid"] {
        let answer = server.get(&format!("/{}.ls", hash_part(&sample(key))));
        assert_eq!((answer.status, &*answer.text()), (404, "No such path.\n"));
    }
}
