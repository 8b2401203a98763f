//! If the disk of the store's files hangs or is slow, requests that do not read from it are not
//! delayed. The database is on another disk.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/slow_disk.rs"]
mod slow_disk_support;
mod support;
mod support_process;

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use slow_disk_support::SlowDisk;
use support::{
    Response, ServerProcess, eventually, hash_part, local, nix, nix_serve, sample, sample_list,
    sample_root,
};
use support_process::Shell;
use testkit::http1::Connection;
use testkit::limit;
use testkit::sqlite::run as sqlite;

/// Number of downloads, far more than there are workers.
const DOWNLOADS: usize = 200;
/// Time of each read from the slow disk.
const DELAY: Duration = Duration::from_millis(100);
/// While downloads hang, the 99th percentile of other response times may grow by this factor, plus
/// a constant: other processes run too. The constant is shorter than one read from the slow disk.
const FACTOR: u32 = 5;
const SLACK: Duration = Duration::from_millis(90);

/// A store whose files are on a separate disk.
struct Store {
    /// Declared first, so that it is dropped before the directory it is mounted in.
    disk: SlowDisk,
    dir: tempfile::TempDir,
}

impl Store {
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (sample_root(), dir.path());
        for folder in ["nix/store", "nix/var/nix/db"] {
            std::fs::create_dir_all(to.join(folder)).unwrap();
        }
        std::fs::copy(
            from.join("nix/var/nix/db/db.sqlite"),
            to.join("nix/var/nix/db/db.sqlite"),
        )
        .unwrap();
        let disk = SlowDisk::mount(&from.join("nix/store"), &to.join("nix/store"))?;
        Some(Self { disk, dir })
    }

    fn root(&self) -> &Path {
        self.dir.path()
    }

    /// Starts a server that aborts no download that makes no progress during the test.
    fn serve(&self) -> ServerProcess {
        let store = local(self.root());
        ServerProcess::start(nix_serve().args(["--timeout", "600", "--store", &store]))
    }
}

/// Requests three narinfos in turn: one in memory, one never requested before, and an absent one.
/// Returns the time of each response, sorted.
fn ask_for_narinfos(addr: SocketAddr, warm: &str, cold: &[String]) -> Vec<Duration> {
    let mut connection = Connection::connect(addr);
    let absent = sample("absent");
    let mut times = Vec::new();
    for path in cold {
        for (path, status) in [(path.as_str(), 200), (warm, 200), (&absent, 404)] {
            let start = Instant::now();
            let answer = connection.get(&format!("/{}.narinfo", hash_part(path)));
            times.push(start.elapsed());
            assert_eq!(answer.status, status, "{path}");
        }
    }
    times.sort();
    times
}

fn p99(times: &[Duration]) -> Duration {
    times[times.len() * 99 / 100]
}

/// Returns the hash of the output of `nix-store --dump`.
fn nar(path: &str) -> [u8; 32] {
    let mut dump = nix("nix-store", &sample_root());
    let real = sample_root().join(path.trim_start_matches('/'));
    let dump = dump.arg("--dump").arg(real).stderr(Stdio::inherit());
    Sha256::digest(dump.output().unwrap().stdout).into()
}

struct Download {
    connection: Connection,
    url: String,
    hash: [u8; 32],
}

impl Download {
    /// Reads the response. If it is a 503 because the database was locked, retries.
    fn finish_or_ask_again(mut self, addr: SocketAddr) {
        let answer = self.connection.begin_reading(false);
        if answer.status == 503 {
            self.connection = Connection::connect(addr);
            self.connection.send(request(&self.url));
            return self.finish();
        }
        self.read(&answer);
    }

    /// Reads the response, which may not have started.
    fn finish(mut self) {
        let answer = self.connection.begin_reading(false);
        self.read(&answer);
    }

    fn read(&mut self, answer: &Response) {
        assert_eq!(answer.status, 200, "{}: {answer:?}", self.url);
        let mut hash = Sha256::new();
        self.connection.body(|piece| hash.update(piece)).unwrap();
        assert_eq!(<[u8; 32]>::from(hash.finalize()), self.hash, "{}", self.url);
    }
}

fn request(url: &str) -> String {
    format!("GET {url} HTTP/1.1\r\nHost: a\r\n\r\n")
}

/// Requests the large file, the tree and small NARs, but does not read the responses.
fn begin_downloads(server: &ServerProcess) -> Vec<Download> {
    let mut paths = vec![sample("big"), sample("tree"), sample("kinds")];
    paths.extend(sample_list("graph").into_iter().take(7));
    let sources: Vec<_> = paths
        .iter()
        .map(|path| (server.nar_url(path), nar(path)))
        .collect();
    let downloads = sources.iter().cycle().take(DOWNLOADS);
    downloads
        .map(|(url, hash)| {
            let mut connection = Connection::connect(server.addr);
            connection.send(request(url));
            Download {
                connection,
                url: url.clone(),
                hash: *hash,
            }
        })
        .collect()
}

/// Returns paths whose narinfo was never requested, in two halves.
fn cold_paths() -> (Vec<String>, Vec<String>) {
    let mut paths = sample_list("graph").split_off(10);
    let second = paths.split_off(paths.len() / 2);
    (paths, second)
}

#[test]
fn narinfos_do_not_wait_for_a_disk_that_hangs() {
    let Some(store) = Store::new() else { return };
    let server = store.serve();
    let warm = sample("top");
    assert_eq!(server.narinfo(&warm).status, 200);
    let (first, second) = cold_paths();
    let before = ask_for_narinfos(server.addr, &warm, &first);

    let trouble = store.disk.hang();
    let downloads = begin_downloads(&server);
    eventually("the disk hangs", || store.disk.hung_count() > 0);
    let during = ask_for_narinfos(server.addr, &warm, &second);
    let (before, during) = (p99(&before), p99(&during));
    eprintln!("p99 {before:?}, and {during:?} beside {DOWNLOADS} downloads that hang");
    assert!(during < before * FACTOR + SLACK, "{before:?}, {during:?}");
    assert!(store.disk.hung_count() > 0);

    drop(trouble);
    downloads.into_iter().for_each(Download::finish);
}

/// While the disk hangs and the database is locked, cached responses are sent and all others are
/// 503. The server recovers when lock and disk are free.
#[test]
fn a_disk_that_hangs_and_a_database_that_is_locked() {
    let Some(store) = Store::new() else { return };
    let database = store.root().join("nix/var/nix/db/db.sqlite");
    // Do not use WAL mode, in which a writer does not block readers.
    sqlite(&database, "pragma journal_mode = truncate");
    let server = store.serve();
    let (warm, absent) = (sample("top"), sample("absent"));
    assert_eq!(server.narinfo(&warm).status, 200);
    let (first, cold) = cold_paths();
    ask_for_narinfos(server.addr, &warm, &first);

    let trouble = store.disk.hang();
    let downloads = begin_downloads(&server);
    eventually("the disk hangs", || store.disk.hung_count() > 0);
    let holder = Shell::open(&database, "begin exclusive;");
    let mut connection = Connection::connect(server.addr);
    let unknown = format!("/closure/{}", hash_part(&cold[0]));
    let mut times = Vec::new();
    for _ in 0..50 {
        for (url, status) in [
            ("/nix-cache-info".to_owned(), 200),
            (format!("/{}.narinfo", hash_part(&warm)), 200),
            (format!("/{}.narinfo", hash_part(&absent)), 404),
            (unknown.clone(), 503),
        ] {
            let start = Instant::now();
            let answer = connection.get(&url);
            times.push(start.elapsed());
            assert_eq!(answer.status, status, "{url}");
        }
    }
    times.sort();
    let count = times.len();
    eprintln!(
        "p99 of {count} answers {:?}, slowest {:?}",
        p99(&times),
        times[count - 1]
    );
    limit::time_at_most(
        "for the 99th percentile of responses",
        p99(&times),
        Duration::from_secs(1),
    );
    assert!(store.disk.hung_count() > 0);

    drop(holder);
    let start = Instant::now();
    // Request a closure, which needs the database; a narinfo could come from memory.
    eventually("the database is back", || {
        server.get(&unknown).status == 200
    });
    eprintln!("back after {:?}, with a disk that hangs", start.elapsed());
    drop(trouble);
    for download in downloads {
        download.finish_or_ask_again(server.addr);
    }
}

#[test]
fn narinfos_do_not_wait_for_a_disk_that_is_slow() {
    let Some(store) = Store::new() else { return };
    let server = store.serve();
    let warm = sample("top");
    assert_eq!(server.narinfo(&warm).status, 200);
    let (first, second) = cold_paths();
    let before = ask_for_narinfos(server.addr, &warm, &first);

    let trouble = store.disk.slow_down(DELAY);
    let downloads = begin_downloads(&server);
    let during = ask_for_narinfos(server.addr, &warm, &second);
    let (before, during) = (p99(&before), p99(&during));
    eprintln!("p99 {before:?}, and {during:?} beside {DOWNLOADS} downloads from a slow disk");
    assert!(during < before * FACTOR + SLACK, "{before:?}, {during:?}");

    drop(trouble);
    downloads.into_iter().for_each(Download::finish);
}
