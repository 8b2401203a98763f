//! No complete NAR of modified files is ever sent: the first full NAR of a path is hashed while it
//! is sent, and a damaged path is quarantined until it is repaired.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use support::client::finish;
use support::{OwnStore, ServerProcess, eventually, hash_part, local, nix, nix_serve};
use testkit::http1::Connection;

const FILE_LEN: usize = 3 << 20;

/// A store with a large file, a tree of small files and a tiny file.
struct Scene {
    store: OwnStore,
    dir: tempfile::TempDir,
    file: String,
    tree: String,
    tiny: String,
}

impl Scene {
    fn new() -> Self {
        let store = OwnStore::new();
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        for number in 0..150 {
            let folder = tree.join(format!("sub/{}", number % 7));
            fs::create_dir_all(&folder).unwrap();
            let name = folder.join(format!("{number:03}"));
            fs::write(name, noise(number, 5_000)).unwrap();
        }
        Self {
            file: store.add_file("file", &noise(1, FILE_LEN)),
            tree: store.add(&tree),
            tiny: store.add_file("tiny", b"what was registered"),
            store,
            dir,
        }
    }

    fn command(&self) -> Command {
        let mut command = nix_serve();
        command.args(["--store", &local(self.store.root())]);
        command
    }

    fn server(&self) -> ServerProcess {
        ServerProcess::start(&mut self.command())
    }

    /// Starts a server with a state file for verification records.
    fn remembering(&self) -> ServerProcess {
        let mut command = self.command();
        command.arg("--state-directory").arg(self.dir.path());
        ServerProcess::start(&mut command)
    }

    fn dump(&self, path: &str) -> Vec<u8> {
        let mut dump = nix("nix-store", self.store.root());
        dump.arg("--dump").arg(self.store.real(path));
        dump.output().unwrap().stdout
    }

    /// Returns the file of a path in which the test changes a byte.
    fn victim(&self, path: &str) -> PathBuf {
        let real = self.store.real(path);
        match path == self.tree {
            true => real.join("sub/3/101"),
            false => real,
        }
    }

    /// Flips a byte in the last third of the file. A second call restores it.
    fn flip(&self, path: &str) {
        let file = self.victim(path);
        let mut contents = fs::read(&file).unwrap();
        let at = contents.len() * 3 / 4;
        contents[at] ^= 1;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        fs::write(&file, contents).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).unwrap();
    }
}

fn noise(seed: usize, len: usize) -> Vec<u8> {
    let mut state = seed as u64 + 1;
    let words = (0..len.div_ceil(8)).map(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state ^ state >> 33).to_le_bytes()
    });
    let mut bytes: Vec<u8> = words.flatten().collect();
    bytes.truncate(len);
    bytes
}

fn url(path: &str) -> String {
    format!("/nar/{}.nar", hash_part(path))
}

/// Checks that requests of every kind report the path as absent.
#[track_caller]
fn is_kept_out(server: &ServerProcess, path: &str) {
    let part = hash_part(path);
    // The status is 503 until a second check has confirmed the damage.
    eventually("it is known to be damaged", || {
        let status = server.narinfo(path).status;
        assert!(matches!(status, 404 | 503), "{status}");
        status == 404
    });
    for (method, target) in [
        ("GET", format!("/{part}.narinfo")),
        ("HEAD", format!("/{part}.narinfo")),
        ("GET", url(path)),
        ("HEAD", url(path)),
        ("GET", format!("/{part}.ls")),
        ("GET", format!("/closure/{part}")),
    ] {
        let answer = server.request(method, &target, &[]);
        assert_eq!(answer.status, 404, "{method} {target}: {}", answer.text());
        assert_eq!(answer.header("Samovar-Miss"), Some("damaged"), "{target}");
        if method == "GET" {
            assert!(answer.text().contains("damaged"), "{}", answer.text());
        }
    }
    let range = server.request("GET", &url(path), &["Range: bytes=5-99"]);
    assert_eq!(range.status, 404);
    let body = format!("{part}\n");
    let request = format!(
        "POST /narinfos HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = support::raw(server.addr, request.as_bytes());
    assert_eq!(answer.status, 200);
    assert!(answer.text().contains(&format!("absent {part}\n")));
}

#[track_caller]
fn is_served(server: &ServerProcess, path: &str, nar: &[u8]) {
    let answer = server.get(&server.nar_url(path));
    assert_eq!(answer.status, 200);
    assert!(answer.is_complete && answer.body == nar, "{path}");
    let listing = server.get(&format!("/{}.ls", hash_part(path)));
    assert_eq!(listing.status, 200);
    let closure = server.get(&format!("/closure/{}", hash_part(path)));
    assert_eq!(closure.status, 200);
}

/// Checks that the first NAR is aborted.
#[track_caller]
fn breaks(server: &ServerProcess, path: &str) {
    let mut connection = Connection::connect(server.addr);
    let answer = connection.begin("GET", &url(path), &[]);
    assert_eq!(answer.status, 200);
    let mut len = 0;
    let result = connection.body(|piece| len += piece.len() as u64);
    assert!(result.is_err(), "it ended well");
    assert!(len < answer.content_length());
}

#[test]
fn a_changed_byte_aborts_the_first_nar_and_the_path_is_quarantined_until_repaired() {
    let scene = Scene::new();
    let server = scene.server();
    for path in [&scene.file, &scene.tree] {
        let nar = scene.dump(path);
        scene.flip(path);
        // The narinfo comes from memory, and the NAR is small enough for the I/O thread.
        assert_eq!(server.narinfo(path).status, 200);
        assert_eq!(server.narinfo(path).status, 200);
        breaks(&server, path);
        server.wait_for("does not match its registration");
        for _ in 0..2 {
            is_kept_out(&server, path);
        }
        scene.flip(path);
        server.wait_for_repair(path);
        is_served(&server, path, &nar);
        is_served(&server, path, &nar);
    }
    // A small NAR is hashed before any byte is sent.
    let nar = scene.dump(&scene.tiny);
    scene.flip(&scene.tiny);
    assert_eq!(server.narinfo(&scene.tiny).status, 200);
    // The second check of a small path may already be over.
    let status = server.get(&url(&scene.tiny)).status;
    assert!(matches!(status, 404 | 503), "{status}");
    is_kept_out(&server, &scene.tiny);
    scene.flip(&scene.tiny);
    server.wait_for_repair(&scene.tiny);
    is_served(&server, &scene.tiny, &nar);
    let log = server.whole_log().join("\n");
    assert!(log.contains("path_quarantined=3 path_verified="), "{log}");
    assert!(
        log.contains(" path_released=3 quarantined_requested="),
        "{log}"
    );
}

#[test]
fn a_changed_byte_aborts_the_first_nar_over_tls_and_http2_too() {
    let scene = Scene::new();
    let pair = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, key) = (scene.dir.path().join("crt"), scene.dir.path().join("key"));
    fs::write(&certificate, pair.cert.pem()).unwrap();
    fs::write(&key, pair.signing_key.serialize_pem()).unwrap();
    let mut command = scene.command();
    command.arg("--ssl-cert").arg(&certificate);
    command.arg("--ssl-key").arg(&key);
    let server = ServerProcess::start(&mut command);
    let plain = scene.server();
    let out = scene.dir.path().join("out");
    for (path, server, protocol) in [
        (&scene.file, &server, ["--http1.1", "--insecure"]),
        (&scene.tree, &server, ["--http2", "--insecure"]),
        (&scene.file, &plain, ["--http2-prior-knowledge", "--silent"]),
    ] {
        let scheme = match protocol[1] {
            "--insecure" => "https",
            _ => "http",
        };
        let curl = || {
            let mut curl = Command::new("curl");
            curl.args(["-sS", "--output"]).arg(&out).args(protocol);
            let port = server.addr.port();
            finish(curl.arg(format!("{scheme}://localhost:{port}{}", url(path))))
        };
        let nar = scene.dump(path);
        scene.flip(path);
        let ended = curl();
        assert!(!ended.status.success(), "{protocol:?}");
        let len = fs::metadata(&out).map_or(0, |metadata| metadata.len());
        assert!(len < nar.len() as u64, "{protocol:?}");
        scene.flip(path);
        // The status is 503 until the second check.
        eventually("it is served", || {
            curl();
            fs::read(&out).is_ok_and(|body| body == nar)
        });
        fs::remove_file(&out).unwrap();
    }
}

/// Ranges of a path that is not verified are sent without hashing them: a client that resumes a
/// download checks the hash of the whole. They do not change the state of the path.
#[test]
fn a_range_is_not_hashed() {
    let scene = Scene::new();
    scene.flip(&scene.file);
    let server = scene.server();
    let range = server.request("GET", &url(&scene.file), &["Range: bytes=100-200000"]);
    assert_eq!((range.status, range.body.len()), (206, 199_901));
    let head = server.request("HEAD", &url(&scene.file), &[]);
    assert_eq!(head.status, 200);
    breaks(&server, &scene.file);
}

/// With `--verify never`, modified files are sent without hashing them.
#[test]
fn verification_can_be_turned_off() {
    let scene = Scene::new();
    scene.flip(&scene.file);
    let mut command = scene.command();
    let server = ServerProcess::start(command.args(["--verify", "never"]));
    let changed = scene.dump(&scene.file);
    is_served(&server, &scene.file, &changed);
    let mut command = scene.command();
    let server = ServerProcess::start(command.env("NIX_SERVE_VERIFY", "never"));
    is_served(&server, &scene.file, &changed);
}

/// Verification records are kept across a restart.
#[test]
fn verification_records_survive_a_restart() {
    let scene = Scene::new();
    let nar = scene.dump(&scene.file);
    scene.flip(&scene.tree);
    let server = scene.remembering();
    is_served(&server, &scene.file, &nar);
    breaks(&server, &scene.tree);
    is_kept_out(&server, &scene.tree);
    let log = server.whole_log().join("\n");
    assert!(log.contains("path_verified=1"), "{log}");
    assert!(scene.dir.path().join("verified").is_file());

    let server = scene.remembering();
    is_kept_out(&server, &scene.tree);
    is_served(&server, &scene.file, &nar);
    let log = server.whole_log().join("\n");
    assert!(
        !log.contains("path_verified=") && !log.contains("path_quarantined="),
        "{log}"
    );

    // One path is repaired and another one damaged while no server runs.
    scene.flip(&scene.tree);
    let tree = scene.dump(&scene.tree);
    fs::remove_file(scene.store.real(&scene.file)).unwrap();
    fs::write(scene.store.real(&scene.file), noise(1, FILE_LEN)).unwrap();
    let server = scene.remembering();
    server.wait_for_repair(&scene.tree);
    is_served(&server, &scene.tree, &tree);
    scene.flip(&scene.file);
    breaks(&server, &scene.file);
    let log = server.whole_log().join("\n");
    assert!(
        log.contains("path_quarantined=1 path_verified=1 path_released=1"),
        "{log}"
    );
}

/// If the state file is invalid in any way, the server starts, logs one line, and verifies the
/// paths again.
#[test]
fn an_unusable_state_file_is_ignored_with_a_log_line() {
    let scene = Scene::new();
    let nar = scene.dump(&scene.file);
    let server = scene.remembering();
    is_served(&server, &scene.file, &nar);
    server.whole_log();
    let file = scene.dir.path().join("verified");
    let whole = fs::read(&file).unwrap();
    let mut later = whole.clone();
    later[16] = 9;
    let mut garbled = whole.clone();
    garbled[40] ^= 1;
    for contents in [
        &whole[..whole.len() - 1],
        &[],
        b"something else",
        &later,
        &garbled,
    ] {
        fs::write(&file, contents).unwrap();
        let server = scene.remembering();
        is_served(&server, &scene.file, &nar);
        let log = server.whole_log();
        let lines = log
            .iter()
            .filter(|line| line.contains("cannot use the state directory"));
        assert_eq!(lines.count(), 1, "{log:#?}");
        assert!(log.last().unwrap().contains("path_verified=1"), "{log:#?}");
        assert!(
            fs::read(&file).unwrap().len() == whole.len(),
            "written anew"
        );
    }
    fs::remove_file(&file).unwrap();
    let server = scene.remembering();
    is_served(&server, &scene.file, &nar);
    let log = server.whole_log();
    assert!(
        !log.iter()
            .any(|line| line.contains("cannot use the state directory"))
    );
    assert!(log.last().unwrap().contains("path_verified=1"), "{log:#?}");
}

#[test]
fn an_unwritable_state_directory_causes_one_log_line() {
    let scene = Scene::new();
    let nar = scene.dump(&scene.file);
    // A full disk in a mount namespace, and a directory that does not exist.
    let full = scene.dir.path().join("full");
    fs::create_dir(&full).unwrap();
    let script = "mount -t tmpfs -o size=4k,nr_inodes=1 none \"$1\" && shift && exec \"$@\"";
    let mut in_full = Command::new("unshare");
    in_full.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
    in_full
        .arg("sh")
        .arg(&full)
        .arg(env!("CARGO_BIN_EXE_nix-serve"));
    in_full.args(["--store", &local(scene.store.root())]);
    in_full.stderr(std::process::Stdio::piped());
    for (mut command, directory) in [(in_full, full), (scene.command(), "/nowhere".into())] {
        command.arg("--state-directory").arg(&directory);
        let server = ServerProcess::start(&mut command);
        is_served(&server, &scene.file, &nar);
        let log = server.whole_log();
        let lines = log
            .iter()
            .filter(|line| line.contains("cannot use the state directory"));
        assert_eq!(lines.count(), 1, "{log:#?}");
    }
}

/// A slow download that started before the damage does not count as a verification of the damaged
/// path: its bytes were right when they were read.
#[test]
fn a_slow_download_does_not_release_a_path_found_damaged_meanwhile() {
    let store = OwnStore::new();
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("first"), noise(1, 10_000)).unwrap();
    // Longer than all socket buffers.
    fs::write(tree.join("second"), noise(2, 48 << 20)).unwrap();
    let path = store.add(&tree);
    let mut command = nix_serve();
    command.args(["--store", &local(store.root()), "--nar-cache-size", "0"]);
    let mut server = ServerProcess::start(&mut command);
    let mut slow = Connection::connect(server.addr);
    let head = slow.begin("GET", &url(&path), &[]);
    let (mut is_begun, mut len) = (false, 0);
    let result = slow.body(|piece| {
        len += piece.len() as u64;
        if std::mem::replace(&mut is_begun, true) {
            return;
        }
        let first = store.real(&path).join("first");
        let mut contents = fs::read(&first).unwrap();
        contents[0] ^= 1;
        fs::set_permissions(&first, fs::Permissions::from_mode(0o644)).unwrap();
        fs::write(&first, contents).unwrap();
        breaks(&server, &path);
        eventually("it is known to be damaged", || {
            server.narinfo(&path).status == 404
        });
    });
    assert!(result.is_ok() && len == head.content_length(), "{result:?}");
    // The second check confirms the damage.
    eventually("the second look is over", || {
        let status = server.narinfo(&path).status;
        assert!(matches!(status, 404 | 503), "{status}");
        status == 404
    });
    is_kept_out(&server, &path);
    assert!(server.is_alive());
}
