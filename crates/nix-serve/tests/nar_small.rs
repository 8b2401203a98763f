//! Small NARs are sent from memory, but only while they match the current registration.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use support::{OwnStore, ServerProcess, eventually, hash_part, nix};
use testkit::http1::Connection;
use testkit::sqlite;

/// Maximum length of a NAR in memory, and length of the framing of a single file's NAR, bytes.
const LEN_MAX: usize = 64 * 1024;
const FRAMING_LEN: usize = 112;
/// Maximum length of a response that the I/O thread sends itself, bytes.
const INLINE_LEN_MAX: usize = 16 * 1024;

fn dump(store: &OwnStore, path: &str) -> Vec<u8> {
    let mut dump = nix("nix-store", store.root());
    dump.arg("--dump").arg(store.real(path));
    dump.output().unwrap().stdout
}

/// Replaces a read-only file by contents of the same length, which show whether the file is read
/// again.
fn overwrite(file: &Path, contents: &[u8]) {
    fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(file, contents).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o444)).unwrap();
}

fn urls(server: &ServerProcess, path: &str) -> [String; 3] {
    let url = server.nar_url(path);
    let (part, rest) = (hash_part(path), url.rsplit('-').next().unwrap());
    [
        url.clone(),
        format!("/nar/{part}.nar"),
        format!("/nar/{rest}?hash={part}"),
    ]
}

#[test]
fn responses_before_and_after_a_nar_is_in_memory_are_equal() {
    let store = OwnStore::new();
    let server = ServerProcess::of_store(store.root());
    let mut connection = Connection::connect(server.addr);
    for len in [
        0,
        1,
        INLINE_LEN_MAX - FRAMING_LEN,
        INLINE_LEN_MAX - FRAMING_LEN + 1,
        LEN_MAX - FRAMING_LEN,
        LEN_MAX - FRAMING_LEN + 1,
    ] {
        let path = store.add_file(&format!("file-{len}"), &vec![b'x'; len]);
        let expected = dump(&store, &path);
        for round in 0..3 {
            for url in &urls(&server, &path) {
                let head = connection.request("HEAD", url, &[]);
                let answer = connection.get(url);
                assert_eq!((head.status, answer.status), (200, 200), "{url}");
                for name in ["content-type", "accept-ranges", "content-length"] {
                    assert_eq!(head.header(name), answer.header(name), "{name}");
                }
                assert_eq!(answer.header("content-type"), Some("application/x-nix-nar"));
                assert_eq!(answer.header("accept-ranges"), Some("bytes"));
                assert!(answer.body == expected, "{round}: {url}");
                let end = expected.len();
                for (range, part) in [
                    ("0-0", 0..1),
                    ("7-", 7..end),
                    ("-9", end - 9..end),
                    ("100-110", 100..111),
                ] {
                    let answer =
                        connection.request("GET", url, &[&format!("Range: bytes={range}")]);
                    assert_eq!(answer.status, 206, "{range}");
                    let of = format!("bytes {}-{}/{end}", part.start, part.end - 1);
                    assert_eq!(answer.header("content-range"), Some(&*of));
                    assert!(answer.body == expected[part], "{range}");
                }
                let beyond = connection.request("GET", url, &[&format!("Range: bytes={end}-")]);
                assert_eq!(beyond.status, 416);
            }
        }
        let wrong = server
            .nar_url(&path)
            .replace(".nar", "")
            .replace("/nar/", "");
        let (part, hash) = wrong.split_once('-').unwrap();
        let other = hash.chars().rev().collect::<String>();
        let status = connection.get(&format!("/nar/{part}-{other}.nar")).status;
        assert_eq!(status, 404);
    }
}

/// A small NAR comes from memory. It was verified, so it is right whatever happens to the files. A
/// longer NAR is read from the files again.
#[test]
fn nars_up_to_the_limit_are_sent_from_memory_and_longer_ones_from_files() {
    let store = OwnStore::new();
    let server = ServerProcess::of_store(store.root());
    let mut connection = Connection::connect(server.addr);
    for (len, is_kept) in [
        (100, true),
        (LEN_MAX - FRAMING_LEN, true),
        (LEN_MAX - FRAMING_LEN + 8, false),
    ] {
        let path = store.add_file(&format!("file-{len}"), &vec![b'x'; len]);
        let expected = dump(&store, &path);
        let url = server.nar_url(&path);
        assert!(connection.get(&url).body == expected);
        overwrite(&store.real(&path), &vec![b'y'; len]);
        assert_eq!(connection.get(&url).body == expected, is_kept, "{len}");
    }
}

/// Contents that do not match the registration are neither sent nor cached. After a repair the path
/// is served.
#[test]
fn damaged_contents_are_reported_and_not_served() {
    let store = OwnStore::new();
    let path = store.add_file("damaged", b"what was registered");
    let expected = dump(&store, &path);
    overwrite(&store.real(&path), b"something different");
    let server = ServerProcess::of_store(store.root());
    let url = server.nar_url(&path);
    eventually("it is kept out", || {
        let answer = server.get(&url);
        assert!(matches!(answer.status, 404 | 503), "{answer:?}");
        answer.text().contains("damaged")
    });
    server.wait_for("does not match its registration");
    overwrite(&store.real(&path), b"what was registered");
    server.wait_for_repair(&path);
    let answer = server.get(&url);
    assert_eq!((answer.status, answer.body == expected), (200, true));
}

/// After a path was deleted or registered again, its NAR in memory is not used.
#[test]
fn a_nar_in_memory_is_used_only_while_its_registration_is_current() {
    let store = OwnStore::new();
    let server = ServerProcess::of_store(store.root());
    let mut connection = Connection::connect(server.addr);
    let path = store.add_file("changing", b"first");
    let by_part = format!("/nar/{}.nar", hash_part(&path));
    for round in 0..5 {
        let old_url = server.nar_url(&path);
        let old = dump(&store, &path);
        for _ in 0..3 {
            assert!(connection.get(&old_url).body == old);
            assert!(connection.get(&by_part).body == old);
        }
        // Adding another path changes the freshness token, but not this path.
        store.add_file(&format!("other-{round}"), b"other");
        assert!(connection.get(&old_url).body == old);
        store.run("nix-store", &["--delete", &path]);
        for url in [&old_url, &by_part] {
            assert_eq!(connection.get(url).status, 404, "{url}");
        }
        fs::write(store.real(&path), format!("next{round}")).unwrap();
        store.register(&path);
        assert_eq!(connection.get(&old_url).status, 404);
        let new = dump(&store, &path);
        assert_ne!(new, old);
        assert!(connection.get(&by_part).body == new);
        assert!(connection.get(&server.nar_url(&path)).body == new);
    }
}

/// A path whose row has a wrong size counts as damaged, even if the small-NAR cache has its NAR.
#[test]
fn a_nar_of_another_size_than_registered_is_reported_and_not_served() {
    let store = OwnStore::new();
    let path = store.add_file("file", b"contents");
    let expected = dump(&store, &path);
    let server = ServerProcess::of_store(store.root());
    let url = format!("/nar/{}.nar", hash_part(&path));
    let mut connection = Connection::connect(server.addr);
    for size in [expected.len() - 8, expected.len() + 8] {
        set_nar_size(&store, &path, expected.len());
        assert!(connection.get(&url).body == expected);
        set_nar_size(&store, &path, size);
        eventually("it is kept out", || {
            let whole = connection.get(&url).status;
            let ranged = connection.request("GET", &url, &["Range: bytes=8-"]).status;
            assert!(matches!((whole, ranged), (404 | 503, 404 | 503)), "{size}");
            ranged == 404
        });
    }
    server.wait_for("does not match its registration");
}

fn set_nar_size(store: &OwnStore, path: &str, size: usize) {
    let update = format!("update ValidPaths set narSize = {size} where path = '{path}'");
    sqlite::run(&store.database(), &update);
}
