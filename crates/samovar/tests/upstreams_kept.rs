//! What clients fetch from an upstream is kept in the storage: it is served after a restart and
//! while the upstream is down, and what does not fit is passed on without being kept.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_disks;
mod support_upstreams;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use support::samovar;
use support_disks::SmallDisk;
use support_upstreams::{Act, Client, FileCache, Large, Relay, Seen, Upstream, field, kept_count};
use testkit::eventually;
use testkit::http1::Connection;
use testkit::nix::{hash_part, key_pair};
use testkit::process::output;

/// The cache that all tests of this file read.
static CACHE: LazyLock<FileCache> = LazyLock::new(|| FileCache::new("xz"));

/// Number of kills, unless the environment sets it.
const KILLS: usize = 10;

/// A server with a storage and one upstream.
struct Keeper {
    upstream: Upstream,
    dir: tempfile::TempDir,
}

impl Keeper {
    fn new(rule: impl Fn(&Seen) -> Act + Send + Sync + 'static) -> Self {
        Self {
            upstream: Upstream::start(&CACHE.root(), rule),
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn storage(&self) -> PathBuf {
        self.dir.path().join("storage")
    }

    /// Returns the configuration. `options`: further ones of the upstream.
    fn tables(&self, options: &str) -> String {
        tables(&self.storage(), &self.upstream, options)
    }

    fn start(&self) -> Relay {
        Relay::with(&self.tables(""))
    }
}

fn tables(storage: &Path, upstream: &Upstream, options: &str) -> String {
    let (url, key) = (upstream.url(), &CACHE.public_key);
    format!(
        "storage = {storage:?}\n[upstreams.up]\nurl = {url:?}\npublic-keys = [{key:?}]\n{options}"
    )
}

/// Returns the URL of the NAR that the server has for a path.
#[track_caller]
fn nar_target(relay: &Relay, path: &str) -> String {
    let narinfo = relay.narinfo(path).0;
    assert_eq!(narinfo.status, 200, "{}", narinfo.text());
    format!("/{}", field(&narinfo.text(), "URL"))
}

/// Fetches the NAR of a path, and returns whether it is right.
#[track_caller]
fn fetch(relay: &Relay, path: &str) -> bool {
    let target = nar_target(relay, path);
    relay.get(&target).body == CACHE.nar(path)
}

/// Waits until the storage keeps this number of paths.
fn await_kept(storage: &Path, count: u64) {
    eventually("the paths are kept", || kept_count(storage) == count);
}

fn kept_files(storage: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(storage.join("nar")).into_iter().flatten();
    files.map(|file| file.unwrap().path()).collect()
}

/// Runs the check of the storage.
#[track_caller]
fn fsck(storage: &Path) -> String {
    output(
        samovar()
            .arg("fsck")
            .arg("--deep")
            .arg("--storage")
            .arg(storage),
    )
}

#[test]
fn what_was_fetched_once_is_served_without_the_upstream() {
    let keeper = Keeper::new(|_| Act::Serve);
    let relay = keeper.start();
    let end = Client::new().build(&relay, &CACHE.public_key);
    assert!(!end.has_built("top") && !end.has_built("low"), "{end:?}");
    await_kept(&keeper.storage(), 2);
    let relay = relay.restarted();
    keeper.upstream.follow(|_| Act::Close);
    let before = keeper.upstream.seen().len();
    let end = Client::new().build(&relay, &CACHE.public_key);
    assert!(!end.has_built("top") && !end.has_built("low"), "{end:?}");
    let after = keeper.upstream.seen();
    let asked = after[before..].iter().find(|seen| seen.is_nar());
    assert!(asked.is_none(), "{asked:?}");
    let narinfos = after[before..].iter().filter(|seen| seen.is_narinfo());
    let of_kept = |seen: &&Seen| {
        [&CACHE.top, &CACHE.low]
            .iter()
            .any(|path| seen.target.contains(hash_part(path)))
    };
    assert_eq!(narinfos.filter(of_kept).count(), 0);
    // A part of the NAR, and its head.
    let target = nar_target(&relay, &CACHE.top);
    let nar = CACHE.nar(&CACHE.top);
    let part = Connection::connect(relay.address).request("GET", &target, &["Range: bytes=-7"]);
    assert_eq!(part.status, 206);
    assert_eq!(part.body, nar[nar.len() - 7..]);
    drop(relay);
    fsck(&keeper.storage());
}

#[test]
fn a_kept_file_that_is_lost_is_fetched_again() {
    let keeper = Keeper::new(|_| Act::Serve);
    let relay = keeper.start();
    assert!(fetch(&relay, &CACHE.low));
    await_kept(&keeper.storage(), 1);
    let file = kept_files(&keeper.storage()).pop().unwrap();
    fs::remove_file(&file).unwrap();
    // The first request may come before the path is published.
    eventually("the NAR is kept again", || {
        fetch(&relay, &CACHE.low) && file.exists()
    });
    // A file of a wrong length, too.
    let short = keeper.dir.path().join("short");
    fs::write(&short, "short").unwrap();
    fs::rename(&short, &file).unwrap();
    eventually("the file is replaced", || {
        fetch(&relay, &CACHE.low) && fs::read(&file).unwrap() == CACHE.nar(&CACHE.low)
    });
}

#[test]
fn a_key_that_is_no_longer_trusted_makes_kept_paths_missing() {
    let keeper = Keeper::new(|_| Act::Serve);
    let relay = keeper.start();
    assert!(fetch(&relay, &CACHE.low));
    await_kept(&keeper.storage(), 1);
    keeper.upstream.follow(|_| Act::Close);
    assert_eq!(relay.narinfo(&CACHE.low).0.status, 200);
    let target = nar_target(&relay, &CACHE.low);
    let (_, other) = key_pair(keeper.dir.path(), "up-2");
    relay.reload(&keeper.tables("").replace(&CACHE.public_key, &other));
    assert_eq!(relay.narinfo(&CACHE.low).0.status, 404);
    assert_eq!(relay.get(&target).status, 404);
    relay.reload(&keeper.tables(""));
    assert_eq!(relay.get(&target).status, 200);
    assert_eq!(relay.narinfo(&CACHE.low).0.status, 200);
    // Without `keep`, what is kept is neither added to nor used.
    relay.reload(&keeper.tables("keep = false\n"));
    assert_eq!(relay.narinfo(&CACHE.low).0.status, 404);
    keeper.upstream.follow(|_| Act::Serve);
    assert!(fetch(&relay, &CACHE.top));
    assert_eq!(kept_files(&keeper.storage()).len(), 1);
}

#[test]
fn what_does_not_fit_is_passed_on() {
    let keeper = Keeper::new(|_| Act::Serve);
    let len = CACHE.nar(&CACHE.low).len();
    let relay = Relay::with(&keeper.tables(&format!("keep-size = {}\n", len + 5000)));
    assert!(fetch(&relay, &CACHE.low));
    let target = nar_target(&relay, &CACHE.low);
    // The file is there before it counts.
    eventually("the path is kept", || {
        let head = Connection::connect(relay.address).request("HEAD", &target, &[]);
        head.header("Samovar-Kept").is_none()
    });
    assert!(fetch(&relay, &CACHE.top));
    relay
        .server
        .wait_for("is passed on, but not kept: keep-size is used up");
    assert_eq!(kept_files(&keeper.storage()).len(), 1);
    assert!(fetch(&relay, &CACHE.low));
}

#[test]
fn what_is_kept_is_part_of_closures() {
    let keeper = Keeper::new(|_| Act::Serve);
    let relay = keeper.start();
    let closure = || relay.get(&format!("/closure/{}", hash_part(&CACHE.top)));
    assert!(fetch(&relay, &CACHE.top));
    await_kept(&keeper.storage(), 1);
    // A reference is not kept.
    assert_eq!(closure().status, 422);
    assert!(fetch(&relay, &CACHE.low));
    await_kept(&keeper.storage(), 2);
    let whole = closure();
    assert_eq!(whole.status, 200, "{}", whole.text());
    let text = whole.text();
    assert!(text.contains("-top\n") && text.contains("-low\n"), "{text}");
}

#[test]
fn what_is_deleted_is_not_missed_by_the_backup() {
    let keeper = Keeper::new(|_| Act::Serve);
    let relay = keeper.start();
    assert!(fetch(&relay, &CACHE.low));
    await_kept(&keeper.storage(), 1);
    // The server writes the backup of the day when it starts.
    let relay = relay.restarted();
    let backups = keeper.storage().join(".samovar/backup");
    let written_at = || {
        let files = fs::read_dir(&backups).into_iter().flatten();
        let times = files.map(|file| file.unwrap().metadata().unwrap().modified().unwrap());
        times.max()
    };
    eventually("the backup is written", || written_at().is_some());
    let mut delete = samovar();
    delete.args(["cache", "delete", "--yes", "upstream:up", "--storage"]);
    output(delete.arg(keeper.storage()));
    keeper.upstream.follow(|_| Act::Close);
    assert_eq!(relay.narinfo(&CACHE.top).0.status, 404);
    let before = written_at();
    let relay = relay.restarted();
    eventually("the backup is written again", || written_at() > before);
    let lines = relay.server.terminate();
    assert!(
        !lines.iter().any(|line| line.contains("backup")),
        "{lines:?}"
    );
}

#[test]
fn on_a_full_disk_everything_is_passed_on() {
    let Some(disk) = SmallDisk::new("size=64m") else {
        return;
    };
    let storage = disk.path().join("storage");
    let large = Large::new(&format!("storage = {storage:?}\n"));
    // The disk is full before the NAR is complete.
    let filler = disk.path().to_owned();
    large
        .upstream
        .follow(move |seen: &Seen| match seen.header("Range") {
            None if seen.is_nar() => Act::Cut(10 << 20),
            None => Act::Serve,
            Some(_) => {
                fs::write(filler.join("filler"), vec![1; 40 << 20]).ok();
                Act::Serve
            }
        });
    let fetch = || large.relay.get(&large.target).body == large.nar;
    assert!(fetch());
    let line = large.relay.server.wait_for("is passed on, but not kept: ");
    assert!(line.contains("No space left"), "{line}");
    assert_eq!(kept_files(&storage).len(), 0);
    fs::remove_file(disk.path().join("filler")).unwrap();
    eventually("what was written is removed", || {
        let space = rustix::fs::statvfs(disk.path()).unwrap();
        space.f_bavail * space.f_frsize > 48 << 20
    });
    // The disk is full before the NAR begins.
    disk.fill(1 << 20);
    assert!(fetch());
    assert_eq!(kept_files(&storage).len(), 0);
}

/// The server is killed while it keeps paths. After a restart, each path that the storage has is
/// whole, and the others are fetched again.
#[test]
fn a_killed_server_has_no_path_in_part() {
    let kills = std::env::var("SAMOVAR_KILLS").map_or(KILLS, |text| text.parse().unwrap());
    let mut random = testkit::random::SplitMix64::new(7);
    let (mut whole, mut none) = (0, 0);
    for _ in 0..kills {
        let keeper = Keeper::new(|_| Act::Serve);
        let relay = keeper.start();
        let targets = [&CACHE.top, &CACHE.low].map(|path| nar_target(&relay, path));
        let pause = Duration::from_micros(random.below(30_000));
        std::thread::scope(|scope| {
            for target in &targets {
                scope.spawn(|| {
                    let mut client = Connection::try_connect(relay.address)?;
                    client.try_request("GET", target, &[]).map(drop)
                });
            }
            testkit::wait::holds_within(pause, || false);
            relay.server.signal("KILL");
        });
        keeper.upstream.follow(|_| Act::Close);
        let relay = relay.killed();
        for path in [&CACHE.top, &CACHE.low] {
            match relay.narinfo(path).0.status {
                200 => {
                    assert!(fetch(&relay, path));
                    whole += 1;
                }
                status => {
                    assert_eq!(status, 404);
                    none += 1;
                }
            }
        }
        drop(relay);
        let found = fsck(&keeper.storage());
        assert!(found.contains(": 0 findings"), "{found}");
        keeper.upstream.follow(|_| Act::Serve);
        let relay = keeper.start();
        assert!(fetch(&relay, &CACHE.top) && fetch(&relay, &CACHE.low));
    }
    println!("{kills} kills: {whole} paths were kept, {none} were not");
}
