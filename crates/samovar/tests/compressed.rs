//! With `compression = "zstd"`, a cache compresses each NAR once, verifies it, and serves any range
//! of the result.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use support::{Server, hash, samovar};
use testkit::eventually;
use testkit::http1::{Connection, Response};
use testkit::nix::{Nix, OwnStore, local};
use testkit::process::output;
use testkit::random::SplitMix64;

/// Length of the file in the large path, whose NAR has three zstd frames.
const LEN: usize = 9 << 20;

struct Scene {
    store: OwnStore,
    _directory: tempfile::TempDir,
    _server: Server,
    address: String,
}

impl Scene {
    /// Starts a server whose NAR cache has this size.
    fn new(nar_cache_size: &str) -> Self {
        Self::with(nar_cache_size, "zstd")
    }

    fn with(nar_cache_size: &str, compression: &str) -> Self {
        let store = OwnStore::new();
        let directory = tempfile::tempdir().unwrap();
        let mut command = samovar();
        command.args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--compression",
            compression,
        ]);
        command.args(["--store", &local(store.root()), "--nar-cache-directory"]);
        command.arg(directory.path());
        let server = Server::spawn(command.args(["--nar-cache-size", nar_cache_size]));
        let address = server.wait_for_address().to_string();
        Self {
            store,
            _directory: directory,
            _server: server,
            address,
        }
    }

    /// Adds a path with a file of which every second byte is random, so that it compresses to half
    /// its length.
    fn add(&self, len: usize) -> Added {
        let mut contents = SplitMix64::new(len as u64).bytes(len);
        contents.iter_mut().step_by(2).for_each(|byte| *byte = b'x');
        let path = self.store.add_file("file", &contents);
        let nar = self.store.dump(&self.store.real(&path));
        let narinfo = self.get(&format!("/{}.narinfo", hash(&path)), &[]).text();
        Added { path, nar, narinfo }
    }

    fn get(&self, target: &str, fields: &[&str]) -> Response {
        Connection::connect(&*self.address).request("GET", target, fields)
    }

    /// Copies a path into a new store with a real client. Returns the contents of the path's file.
    fn copy(&self, nix: &Nix, path: &str) -> Vec<u8> {
        let home = tempfile::tempdir().unwrap();
        let store = home.path().join("store");
        let mut command = nix.command("nix", home.path());
        command.args(["copy", "--no-check-sigs", "--from"]);
        command.arg(format!("http://{}", self.address)).arg("--to");
        output(command.arg(local(&store)).arg(path));
        fs::read(store.join(&path[1..])).unwrap()
    }
}

struct Added {
    path: String,
    nar: Vec<u8>,
    narinfo: String,
}

impl Added {
    fn url(&self) -> String {
        let url = self
            .narinfo
            .lines()
            .find_map(|line| line.strip_prefix("URL: "));
        format!("/{}", url.unwrap())
    }
}

#[test]
fn a_nar_is_compressed_once_and_then_served_in_ranges() {
    let scene = Scene::new("1GiB");
    let added = scene.add(LEN);
    assert!(
        added.narinfo.contains(".nar.zst\nCompression: zstd\n"),
        "{}",
        added.narinfo
    );
    let first = scene.get(&added.url(), &[]);
    assert_eq!((first.status, first.header("content-length")), (200, None));
    assert_eq!(first.header("accept-ranges"), Some("bytes"));
    assert!(first.is_complete && zstd::decode_all(&*first.body).unwrap() == added.nar);
    assert!(first.body.len() < LEN * 7 / 10, "{}", first.body.len());
    // Each frame is independent, and a seek table for three frames ends the file.
    assert!(
        first
            .body
            .ends_with(&[3, 0, 0, 0, 0, 0xb1, 0xea, 0x92, 0x8f])
    );
    let again = scene.get(&added.url(), &[]);
    assert_eq!(again.content_length(), first.body.len() as u64);
    assert!(again.body == first.body);
    let end = first.body.len();
    for range in [0..1, 5..end, end - 1..end, 3_000_000..3_000_001] {
        let field = format!("Range: bytes={}-{}", range.start, range.end - 1);
        let part = scene.get(&added.url(), &[&field]);
        assert_eq!(part.status, 206, "{range:?}");
        assert!(part.body == first.body[range.clone()], "{range:?}");
    }
    let beyond = format!("Range: bytes={end}-");
    assert_eq!(scene.get(&added.url(), &[&beyond]).status, 416);
}

#[test]
fn an_interrupted_first_download_can_be_resumed() {
    let scene = Scene::new("1GiB");
    let added = scene.add(LEN);
    let mut connection = Connection::connect(&*scene.address);
    let head = connection.begin("GET", &added.url(), &[]);
    assert_eq!(head.header("accept-ranges"), Some("bytes"));
    let mut begun = connection.try_piece(100_000).unwrap().unwrap().to_vec();
    drop(connection);
    // The server answers 503 until it has noticed the end of the first download.
    let field = format!("Range: bytes={}-", begun.len());
    let mut rest = None;
    eventually("the rest is sent", || {
        let response = scene.get(&added.url(), &[&field]);
        assert!(matches!(response.status, 206 | 503), "{}", response.status);
        if response.status == 503 {
            assert_eq!(response.header("retry-after"), Some("1"));
            return false;
        }
        rest = Some(response.body);
        true
    });
    begun.extend(rest.unwrap());
    assert!(zstd::decode_all(&*begun).unwrap() == added.nar);
}

#[test]
fn real_clients_copy_compressed_and_small_paths() {
    let scene = Scene::new("1GiB");
    for len in [1, 60_000, 70_000, LEN] {
        let added = scene.add(len);
        let is_small = len < 64 * 1024;
        assert_eq!(
            added.narinfo.contains("Compression: none\n"),
            is_small,
            "{len}"
        );
        // The first download of a path is compressed while it is sent.
        for nix in [Nix::all(), Nix::all()].concat() {
            assert!(
                scene.copy(&nix, &added.path) == contents(&added.nar),
                "{len}"
            );
        }
    }
}

/// Returns the contents of the only file in a NAR. They follow 96 bytes, are padded to a multiple
/// of 8, and are followed by 16 bytes.
fn contents(nar: &[u8]) -> &[u8] {
    let len: [u8; 8] = nar[88..96].try_into().unwrap();
    &nar[96..][..usize::try_from(u64::from_le_bytes(len)).unwrap()]
}

#[test]
fn a_nar_that_cannot_be_cached_is_sent_whole() {
    let scene = Scene::new("1MiB");
    let added = scene.add(LEN);
    for fields in [&[][..], &["Range: bytes=5-"]] {
        let response = scene.get(&added.url(), fields);
        assert_eq!(
            (response.status, response.header("accept-ranges")),
            (200, None)
        );
        assert!(zstd::decode_all(&*response.body).unwrap() == added.nar);
    }
}

#[test]
fn a_damaged_path_is_never_sent_completely() {
    let scene = Scene::new("1GiB");
    let added = scene.add(LEN);
    damage(&scene.store.real(&added.path));
    let mut connection = Connection::connect(&*scene.address);
    connection.begin("GET", &added.url(), &[]);
    assert!(connection.body(|_| ()).is_err());
    eventually("the path is quarantined", || {
        scene.get(&added.url(), &[]).status == 404
    });
    // The server refuses a range of a damaged NAR before it sends the first byte.
    let scene = Scene::new("1GiB");
    let added = scene.add(LEN);
    damage(&scene.store.real(&added.path));
    let part = scene.get(&added.url(), &["Range: bytes=5-"]);
    assert!(matches!(part.status, 404 | 503), "{}", part.status);
}

/// Changes one byte of a file, as a failing disk would.
fn damage(file: &Path) {
    fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap();
    let mut contents = fs::read(file).unwrap();
    contents[LEN / 2] ^= 1;
    fs::write(file, contents).unwrap();
}

#[test]
fn urls_of_other_paths_are_not_found() {
    let scene = Scene::new("1GiB");
    let added = scene.add(LEN);
    let other = "0".repeat(52);
    let url = added.url();
    let (hash_part, _) = url.split_once('-').unwrap();
    for url in [
        format!("{hash_part}-{other}.nar.zst"),
        format!("/nar/{}-{other}.nar.zst", "0".repeat(32)),
    ] {
        assert_eq!(scene.get(&url, &[]).status, 404, "{url}");
    }
    // Clients that remember an earlier, uncompressed narinfo can still download the NAR.
    let plain = url.strip_suffix(".zst").unwrap();
    assert!(scene.get(plain, &[]).body == added.nar);
}

/// Clients keep narinfos for 30 days, and so the URLs in them.
#[test]
fn a_cache_without_compression_answers_the_urls_of_compressed_nars() {
    let scene = Scene::with("1GiB", "none");
    let added = scene.add(LEN);
    assert!(added.narinfo.contains(".nar\nCompression: none\n"));
    let response = scene.get(&format!("{}.zst", added.url()), &[]);
    assert!(zstd::decode_all(&*response.body).unwrap() == added.nar);
}
