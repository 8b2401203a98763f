//! The NAR cache stores the NAR of a tree of many small files in an unlinked file. Its entries are
//! bit-exact, do not outlive the registration, and leave nothing on the disk.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use support::{OwnStore, ServerProcess, eventually, hash_part, local, nix, nix_serve};
use testkit::http1::Connection;
use testkit::sqlite;

/// Number of files of a tree that is worth caching: small files, but a NAR too long for memory.
const FILE_COUNT: usize = 120;
const FILE_LEN: usize = 4000;

struct Scene {
    store: OwnStore,
    directory: tempfile::TempDir,
    server: ServerProcess,
}

impl Scene {
    /// Starts a server with a NAR cache of `len_max` bytes.
    fn new(len_max: u64) -> Self {
        let store = OwnStore::new();
        let directory = tempfile::tempdir().unwrap();
        let server = start(&store, directory.path(), len_max);
        Self {
            store,
            directory,
            server,
        }
    }

    fn add(&self, name: &str, file_count: usize, file_len: usize) -> (String, Vec<u8>) {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join(name);
        fs::create_dir(&dir).unwrap();
        for number in 0..file_count {
            let mut contents = format!("{name} {number}\n").into_bytes();
            contents.resize(file_len, b'x');
            fs::write(dir.join(format!("{number:04}")), contents).unwrap();
        }
        let path = self.store.add(&dir);
        let nar = dump(&self.store, &path);
        (path, nar)
    }

    /// Stops the server, and starts one that keeps verification records. Also returns the log of
    /// the first one.
    fn restart(self) -> (Self, String) {
        let Self {
            store,
            directory,
            server,
        } = self;
        let log = server.whole_log().join("\n");
        let server = start_remembering(&store, directory.path());
        let scene = Self {
            store,
            directory,
            server,
        };
        (scene, log)
    }

    /// Counts the cache entries, including unfinished ones.
    fn held_count(&self) -> usize {
        self.copies().len()
    }

    /// Returns the paths of the entries through the descriptors of the server, as they have no
    /// names.
    fn copies(&self) -> Vec<PathBuf> {
        let fds = format!("/proc/{}/fd", self.server.child.id());
        let links = fs::read_dir(fds).unwrap().filter_map(Result::ok);
        let is_copy = |link: &PathBuf| {
            fs::read_link(link).is_ok_and(|target| {
                target.starts_with(self.directory.path())
                    && target.to_string_lossy().ends_with(" (deleted)")
            })
        };
        links.map(|link| link.path()).filter(is_copy).collect()
    }

    /// Truncates the files of all entries to half their length.
    fn cut_copies(&self) {
        for copy in self.copies() {
            let file = fs::OpenOptions::new().write(true).open(copy).unwrap();
            let len = file.metadata().unwrap().len();
            file.set_len(len / 2).unwrap();
        }
    }

    /// Changes a file without Nix, so that only a cache entry still contains the old bytes.
    fn damage(&self, path: &str) {
        let file = self.store.real(path).join("0007");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let len = usize::try_from(fs::metadata(&file).unwrap().len()).unwrap();
        fs::write(&file, vec![b'!'; len]).unwrap();
    }
}

fn start(store: &OwnStore, directory: &Path, len_max: u64) -> ServerProcess {
    let mut command = nix_serve();
    command.args(["--store", &local(store.root()), "--nar-cache"]);
    command.arg(directory);
    ServerProcess::start(command.args(["--nar-cache-size", &len_max.to_string()]))
}

/// Starts a server with a NAR cache, which keeps its verification records in the same directory.
fn start_remembering(store: &OwnStore, directory: &Path) -> ServerProcess {
    let mut command = nix_serve();
    command.args(["--store", &local(store.root()), "--nar-cache"]);
    command.arg(directory).arg("--state-directory");
    ServerProcess::start(command.arg(directory))
}

fn dump(store: &OwnStore, path: &str) -> Vec<u8> {
    let mut dump = nix("nix-store", store.root());
    dump.arg("--dump").arg(store.real(path));
    dump.output().unwrap().stdout
}

fn url(path: &str) -> String {
    format!("/nar/{}.nar", hash_part(path))
}

#[test]
fn a_nar_sent_once_is_sent_from_its_copy_and_ranges_too() {
    let scene = Scene::new(1 << 30);
    let (path, nar) = scene.add("tree", FILE_COUNT, FILE_LEN);
    let mut connection = Connection::connect(scene.server.addr);
    assert_eq!(scene.held_count(), 0);
    assert!(connection.get(&url(&path)).body == nar);
    scene.damage(&path);
    // Wait: an entry is verified before it is used.
    eventually("it is kept", || connection.get(&url(&path)).body == nar);
    assert_eq!(scene.held_count(), 1);
    let head = connection.request("HEAD", &url(&path), &[]);
    assert_eq!(head.header("content-length"), Some(&*nar.len().to_string()));
    let end = nar.len();
    for range in [
        0..1,
        5..end,
        end - 1..end,
        300_000..300_001,
        100_000..400_000,
    ] {
        let field = format!("Range: bytes={}-{}", range.start, range.end - 1);
        let answer = connection.request("GET", &url(&path), &[&field]);
        assert_eq!(answer.status, 206, "{range:?}");
        assert!(answer.body == nar[range.clone()], "{range:?}");
    }
}

/// After a path was deleted or registered again, its cache entry is not used.
#[test]
fn a_copy_is_used_only_while_its_registration_is_current() {
    let scene = Scene::new(1 << 30);
    let (path, nar) = scene.add("tree", FILE_COUNT, FILE_LEN);
    let mut connection = Connection::connect(scene.server.addr);
    let old_url = scene.server.nar_url(&path);
    assert!(connection.get(&old_url).body == nar);
    eventually("it is kept", || scene.held_count() == 1);
    // Register the path again under the same name, with the changed files.
    let database = scene.store.database();
    let delete = format!("delete from ValidPaths where path = '{path}'");
    scene.damage(&path);
    sqlite::run(&database, &delete);
    for url in [&old_url, &url(&path)] {
        assert_eq!(connection.get(url).status, 404, "{url}");
    }
    scene.store.register(&path);
    let new = dump(&scene.store, &path);
    assert!(new != nar && new.len() == nar.len());
    assert_eq!(connection.get(&old_url).status, 404);
    for _ in 0..3 {
        assert!(connection.get(&url(&path)).body == new);
    }
    eventually("both are kept", || scene.held_count() == 2);
    assert!(connection.get(&url(&path)).body == new);
    scene.store.run("nix-store", &["--delete", &path]);
    assert_eq!(connection.get(&url(&path)).status, 404);
}

#[test]
fn damaged_files_are_not_copied_and_are_reported() {
    let scene = Scene::new(1 << 30);
    let (path, nar) = scene.add("tree", FILE_COUNT, FILE_LEN);
    scene.damage(&path);
    // The size is right, so only the hash, which is computed while sending, reveals the damage.
    let mut connection = Connection::connect(scene.server.addr);
    connection.begin("GET", &url(&path), &[]);
    let mut body = Vec::new();
    let result = connection.body(|piece| body.extend_from_slice(piece));
    assert!(result.is_err() && body.len() < nar.len());
    scene.server.wait_for("does not match its registration");
    eventually("the copy is gone", || scene.held_count() == 0);
}

#[test]
fn an_aborted_download_leaves_no_copy() {
    let scene = Scene::new(1 << 30);
    let (path, nar) = scene.add("tree", 1500, 16_000);
    for _ in 0..3 {
        let mut connection = Connection::connect(scene.server.addr);
        // A new entry is written only after the previous one is gone.
        eventually("it is at it", || {
            connection = Connection::connect(scene.server.addr);
            assert_eq!(connection.begin("GET", &url(&path), &[]).status, 200);
            scene.held_count() == 1
        });
        // Meanwhile other clients are served, without writing a second entry.
        let field = "Range: bytes=7-70000";
        let mut other = Connection::connect(scene.server.addr);
        let answer = other.request("GET", &url(&path), &[field]);
        assert!(answer.body == nar[7..=70_000]);
        assert_eq!(scene.held_count(), 1);
        drop(connection);
        eventually("the copy is gone", || scene.held_count() == 0);
    }
}

/// One entry takes at most half of the cache, and the least recently used entry is evicted.
#[test]
fn an_entry_takes_at_most_half_of_the_cache_and_the_least_recently_used_is_evicted() {
    let mut scene = Scene::new(0);
    let (first, nar) = scene.add("first", FILE_COUNT, FILE_LEN);
    let (second, second_nar) = scene.add("second", FILE_COUNT, FILE_LEN);
    let (third, _) = scene.add("third", FILE_COUNT, FILE_LEN);
    let len = nar.len() as u64;
    for (len_max, count) in [(0, 0), (2 * len - 1, 0), (2 * len, 1)] {
        scene.server = start(&scene.store, scene.directory.path(), len_max);
        assert!(scene.server.get(&url(&first)).body == nar);
        eventually("as many as allowed", || scene.held_count() == count);
    }
    scene.server.get(&url(&second));
    eventually("there is room for two", || scene.held_count() == 2);
    for (path, nar) in [(&second, &second_nar), (&first, &nar)] {
        scene.damage(path);
        eventually("it is kept", || scene.server.get(&url(path)).body == *nar);
    }
    // The first entry was used last, so the second one is evicted.
    scene.server.get(&url(&third));
    eventually("two again", || scene.held_count() == 2);
    assert!(scene.server.get(&url(&first)).body == nar);
}

/// Aborted downloads do not evict entries for bytes that were requested but not read.
#[test]
fn an_aborted_download_evicts_nothing() {
    let mut scene = Scene::new(0);
    let (small, small_nar) = scene.add("small", FILE_COUNT, FILE_LEN);
    let (large, large_nar) = scene.add("large", 1500, 16_000);
    let len_max = 2 * large_nar.len() as u64;
    scene.server = start(&scene.store, scene.directory.path(), len_max);
    let (second, second_nar) = scene.add("second", 1500, 16_000);
    for (path, nar) in [(&second, &second_nar), (&small, &small_nar)] {
        assert!(scene.server.get(&url(path)).body == *nar);
        scene.damage(path);
        eventually("it is kept", || scene.server.get(&url(path)).body == *nar);
    }
    let mut taken = 0;
    // The cache has capacity for the part of the large NAR that these clients read.
    while taken < 5 {
        let mut connection = Connection::connect(scene.server.addr);
        assert_eq!(connection.begin("GET", &url(&large), &[]).status, 200);
        taken += u32::from(scene.held_count() == 3);
        drop(connection);
        eventually("its copy is gone", || scene.held_count() == 2);
    }
    for (path, nar) in [(&second, &second_nar), (&small, &small_nar)] {
        assert!(scene.server.get(&url(path)).body == *nar);
    }
    // A complete download evicts the entry that was used least recently.
    assert!(scene.server.get(&url(&large)).body == large_nar);
    scene.damage(&large);
    eventually("it is kept", || {
        scene.server.get(&url(&large)).body == large_nar
    });
    assert!(scene.server.get(&url(&small)).body == small_nar);
}

/// A truncated entry is dropped, without effect on writing other entries.
#[test]
fn an_unreadable_copy_does_not_affect_others() {
    let scene = Scene::new(1 << 30);
    let (first, nar) = scene.add("first", FILE_COUNT, FILE_LEN);
    let (second, second_nar) = scene.add("second", FILE_COUNT, FILE_LEN);
    assert!(scene.server.get(&url(&first)).body == nar);
    eventually("it is kept", || scene.held_count() == 1);
    scene.cut_copies();
    let mut connection = Connection::connect(scene.server.addr);
    connection.begin("GET", &url(&first), &[]);
    assert!(connection.body(|_| ()).is_err());
    scene.server.wait_for("an entry cannot be read");
    eventually("it is given up", || scene.held_count() == 0);
    assert!(scene.server.get(&url(&first)).body == nar);
    assert!(scene.server.get(&url(&second)).body == second_nar);
    eventually("the other is kept", || scene.held_count() == 1);
    scene.damage(&second);
    assert!(scene.server.get(&url(&second)).body == second_nar);
}

/// NARs of a few large files, and short NARs, get no cache entry.
#[test]
fn nars_of_large_files_and_short_nars_are_not_copied() {
    let scene = Scene::new(1 << 30);
    let mut connection = Connection::connect(scene.server.addr);
    for (name, file_count, file_len) in [("large", 8, 200_000), ("short", 30, 8_000)] {
        let (path, nar) = scene.add(name, file_count, file_len);
        for _ in 0..2 {
            assert!(connection.get(&url(&path)).body == nar);
            assert_eq!(scene.held_count(), 0, "{name}");
        }
    }
}

#[test]
fn no_file_is_left_behind_even_by_a_killed_server() {
    let mut scene = Scene::new(1 << 30);
    let (path, nar) = scene.add("tree", FILE_COUNT, FILE_LEN);
    assert!(
        !scene
            .server
            .lines()
            .into_iter()
            .any(|line| line.contains("warning"))
    );
    assert!(scene.server.get(&url(&path)).body == nar);
    eventually("it is kept", || scene.held_count() == 1);
    let is_empty = || {
        fs::read_dir(scene.directory.path())
            .unwrap()
            .next()
            .is_none()
    };
    assert!(is_empty());
    scene.server.signal("KILL");
    scene.server.child.wait().unwrap();
    assert!(is_empty());
}

#[test]
fn a_missing_directory_is_reported_before_a_port_is_taken() {
    let store = OwnStore::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = nix_serve();
    command.args(["--listen", &taken.local_addr().unwrap().to_string()]);
    command.args(["--store", &local(store.root())]);
    command.args(["--nar-cache", "/nowhere/at/all"]);
    let output = command.output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("--nar-cache"), "{text}");
}

/// If the disk of the NAR cache is full, responses are complete nevertheless. The server runs in
/// its own mount namespace, with a small file system.
#[test]
fn a_full_disk_does_not_fail_the_response() {
    let store = OwnStore::new();
    let directory = tempfile::tempdir().unwrap();
    let scene_dir = directory.path().to_str().unwrap();
    let script = "mount -t tmpfs -o size=300k none \"$1\" && shift && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
    command.args(["sh", scene_dir, env!("CARGO_BIN_EXE_nix-serve")]);
    command.args(["--store", &local(store.root()), "--nar-cache", scene_dir]);
    command.args(["--nar-cache-size", "1000000000"]);
    command.stderr(std::process::Stdio::piped());
    let server = ServerProcess::start(&mut command);
    let scene = Scene {
        store,
        directory,
        server,
    };
    let (path, nar) = scene.add("tree", FILE_COUNT, FILE_LEN);
    let said = scene.server.lines().join("\n");
    assert!(said.contains("--nar-cache-size is 1000000000, more than the size of the disk"));
    for _ in 0..2 {
        assert!(scene.server.get(&url(&path)).body == nar);
    }
    scene.server.wait_for("the NAR cache cannot be used");
    assert_eq!(scene.held_count(), 0);
}

/// A path whose row has a wrong size counts as damaged, even if the NAR cache has an entry for it.
#[test]
fn a_nar_of_another_size_than_registered_is_aborted() {
    let scene = Scene::new(1 << 30);
    let (path, nar) = scene.add("tree", FILE_COUNT, FILE_LEN);
    assert!(scene.server.get(&url(&path)).body == nar);
    scene.damage(&path);
    eventually("it is kept", || scene.server.get(&url(&path)).body == nar);
    for size in [nar.len() - 8, nar.len() + 8] {
        let update = format!("update ValidPaths set narSize = {size} where path = '{path}'");
        sqlite::run(&scene.store.database(), &update);
        let mut connection = Connection::connect(scene.server.addr);
        let answer = connection.begin("GET", &url(&path), &[]);
        let body = connection.body(|_| ());
        assert!(
            matches!(answer.status, 404 | 503) || body.is_err(),
            "{size}"
        );
    }
}

/// After a restart, the files of a verified path are copied without being hashed. If one of them
/// has changed since the verification, the copy is dropped, and the next download is hashed.
#[test]
fn files_changed_since_their_verification_are_not_kept() {
    let scene = Scene::new(1 << 30);
    // The clock of change times may be 20 ms behind, and the files must be older.
    let (path, nar) = scene.add("tree", FILE_COUNT, FILE_LEN);
    let file = scene.store.real(&path).join("0007");
    let changed_at = fs::metadata(file).unwrap();
    eventually("the verification begins later", || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let age = Duration::new(
            changed_at.ctime().cast_unsigned(),
            u32::try_from(changed_at.ctime_nsec()).unwrap(),
        );
        now.saturating_sub(age) > Duration::from_millis(50)
    });
    let (scene, _) = scene.restart();
    assert!(scene.server.get(&url(&path)).body == nar);
    let (scene, log) = scene.restart();
    assert!(log.contains("path_verified=1"), "{log}");
    assert!(scene.server.get(&url(&path)).body == nar);
    eventually("it is kept without being hashed", || {
        scene.held_count() == 1
    });
    let (scene, log) = scene.restart();
    assert!(!log.contains("path_verified="), "{log}");
    scene.damage(&path);
    // The bytes are wrong, and the client finds that.
    assert!(scene.server.get(&url(&path)).body != nar);
    eventually("the copy is dropped", || scene.held_count() == 0);
    assert!(!scene.server.get(&url(&path)).is_complete);
    scene.server.wait_for("does not match its registration");
}
