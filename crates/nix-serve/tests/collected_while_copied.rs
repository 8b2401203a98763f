//! No client receives a wrong NAR while the garbage collector runs all the time.
//!
//! With GC leases every announced NAR can be downloaded completely. Without them a path may be
//! collected at any time; the response is then an error or visibly truncated.
//!
//! Runs for some seconds; `SAMOVAR_GC_SECONDS` sets a longer time. Prints counters of the outcomes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "what was counted is for who reads it")]

mod support;

use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use support::client::{Client, finish};
use support::daemon::{NixDaemon, roots};
use support::{
    OwnStore, PATIENCE, Response, ServerProcess, eventually, hash_part, local, nix, nix_serve, raw,
};
use testkit::http1::Connection;
use testkit::nix::finish_collecting;

/// Lease time: longer than any client takes from narinfo to NAR, yet short enough that announced
/// paths are collected before the test ends.
const HOLD_TIME: Duration = Duration::from_secs(4);

/// Number of recent paths that clients choose from.
const PATH_COUNT_MAX: usize = 60;

fn run_time() -> Duration {
    let seconds = std::env::var("SAMOVAR_GC_SECONDS").ok();
    Duration::from_secs(seconds.map_or(7, |text| text.parse().unwrap()))
}

/// Counts the outcomes of all actions.
#[derive(Debug, Default)]
struct Tally {
    collection_count: AtomicU64,
    deleted_count: AtomicU64,
    narinfo_count: AtomicU64,
    whole_count: AtomicU64,
    copied_count: AtomicU64,
    /// Number of failures of `nix copy` because the path was collected before its narinfo was
    /// requested.
    refused_count: AtomicU64,
    /// Number of NARs that were absent although their narinfo had been served.
    missing_count: AtomicU64,
    cut_count: AtomicU64,
    /// Number of failures of `nix copy` because the path was collected after its narinfo was
    /// served.
    failed_count: AtomicU64,
    /// Number of failures, counted above too, that came after the lease of the narinfo had ended.
    late_count: AtomicU64,
}

impl Tally {
    fn add(count: &AtomicU64) {
        count.fetch_add(1, Ordering::SeqCst);
    }

    fn of(count: &AtomicU64) -> u64 {
        count.load(Ordering::SeqCst)
    }

    /// Returns whether enough has happened for a meaningful test; a busy machine takes longer.
    fn is_enough(&self) -> bool {
        let needed = [
            &self.deleted_count,
            &self.narinfo_count,
            &self.whole_count,
            &self.copied_count,
        ];
        needed.into_iter().all(|count| Self::of(count) > 0) && Self::of(&self.collection_count) > 2
    }
}

struct Scene {
    store: OwnStore,
    addr: SocketAddr,
    added_count: AtomicU64,
    /// Paths in order of creation: the newest comes last.
    paths: Mutex<Vec<String>>,
    tally: Tally,
    is_over: AtomicBool,
}

impl Scene {
    fn new(hold: &str) -> (Self, ServerProcess) {
        let store = OwnStore::new();
        let mut command = nix_serve();
        command.args(["--store", &local(store.root()), "--gc-lease", hold]);
        command.args(["--nar-cache-size", "0"]);
        let server = ServerProcess::start(&mut command);
        let scene = Self {
            store,
            addr: server.addr,
            added_count: AtomicU64::new(0),
            paths: Mutex::default(),
            tally: Tally::default(),
            is_over: AtomicBool::new(false),
        };
        (scene, server)
    }

    fn narinfo(&self, path: &str) -> Response {
        let hash_part = hash_part(path);
        let request = format!("GET /{hash_part}.narinfo HTTP/1.1\r\nHost: a\r\n");
        raw(
            self.addr,
            format!("{request}Connection: close\r\n\r\n").as_bytes(),
        )
    }

    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::SeqCst)
    }

    fn paths(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Picks a path at random, collected ones included.
    fn any_path(&self, random: &mut Random) -> Option<String> {
        let paths = self.paths();
        // Prefer paths that still exist.
        let count = paths.len().min([PATH_COUNT_MAX, 12, 12][random.below(3)]);
        let index = paths.len() - count + random.below(count.max(1));
        paths.get(index).cloned()
    }

    /// Adds paths of three kinds: small files, which are sent from memory; trees, which are sent
    /// from files; and paths longer than sockets and buffers hold.
    fn build(&self, mut number: u64) {
        let dir = tempfile::tempdir().unwrap();
        while self.goes_on() {
            // Skip fsync: the store need not survive a crash of the machine.
            let options = ["--option", "fsync-metadata", "false", "--add"];
            let mut names: Vec<String> = options.map(str::to_owned).into();
            for _ in 0..12 {
                number += 1;
                let path = dir.path().join(format!("p{number}"));
                match number % 24 {
                    0 => tree(&path, number, 160, 100_000),
                    6 | 12 | 18 => tree(&path, number, 8, 30_000),
                    _ => fs::write(&path, number.to_string()).unwrap(),
                }
                names.push(path.to_str().unwrap().to_owned());
            }
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let added = self.store.run("nix-store", &names);
            let mut paths = self.paths();
            paths.extend(added.lines().map(str::to_owned));
            self.added_count.fetch_add(12, Ordering::SeqCst);
            let surplus = paths.len().saturating_sub(PATH_COUNT_MAX);
            paths.drain(..surplus);
            drop(paths);
            for name in &names[options.len()..] {
                match Path::new(name).is_dir() {
                    true => fs::remove_dir_all(name).unwrap(),
                    false => fs::remove_file(name).unwrap(),
                }
            }
        }
    }

    fn collect(&self) {
        let mut collected_at = 0;
        while self.goes_on() {
            // Wait, so that clients get a chance to request some of the paths.
            let added_count = Tally::of(&self.added_count);
            if added_count == collected_at {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            collected_at = added_count;
            let mut command = nix("nix-store", self.store.root());
            command.arg("--store").arg(self.store.root());
            command.args(["--option", "fsync-metadata", "false", "--gc"]);
            let output = finish_collecting(&mut command);
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{text}");
            Tally::add(&self.tally.collection_count);
            // From this moment on, a deleted path must be absent.
            for line in text.lines() {
                let Some(path) = line.strip_prefix("deleting '") else {
                    continue;
                };
                let path = path.trim_end_matches('\'');
                if path.starts_with("/nix/store/") && path.len() > 44 {
                    Tally::add(&self.tally.deleted_count);
                    assert_eq!(self.narinfo(path).status, 404, "{path}");
                }
            }
        }
    }

    /// Requests a narinfo, and its NAR some time later.
    fn download(&self, mut random: Random) {
        while self.goes_on() {
            let Some(path) = self.any_path(&mut random) else {
                continue;
            };
            let started = Instant::now();
            let narinfo = self.narinfo(&path);
            if narinfo.status == 404 {
                continue;
            }
            assert_eq!(narinfo.status, 200, "{}", narinfo.head);
            Tally::add(&self.tally.narinfo_count);
            let text = narinfo.text();
            let field = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name));
                line.unwrap().to_owned()
            };
            let (url, hash) = (field("URL: "), field("NarHash: sha256:"));
            std::thread::sleep(Duration::from_millis(random.below(300) as u64));
            let mut connection = Connection::connect(self.addr);
            let head = connection.begin("GET", &format!("/{url}"), &[]);
            // The lease of the narinfo may have ended before the server got the request.
            let is_late = started.elapsed() >= HOLD_TIME;
            if head.status == 404 {
                if !is_late {
                    println!("{path} was announced and is gone");
                    Tally::add(&self.tally.missing_count);
                }
                continue;
            }
            // A failure before the first byte of the NAR is a 503.
            if head.status == 503 {
                Tally::add(&self.tally.cut_count);
                if is_late {
                    Tally::add(&self.tally.late_count);
                }
                continue;
            }
            assert_eq!(head.status, 200, "{path}: {}", head.head);
            let mut sha = Sha256::new();
            let collections = Tally::of(&self.tally.collection_count) + 2;
            let waits = random.below(3) == 0;
            let result = connection.body(|piece| {
                // A NAR longer than the socket buffers waits for this client, while a collection
                // starts and ends.
                while waits
                    && self.goes_on()
                    && Tally::of(&self.tally.collection_count) < collections
                {
                    std::thread::sleep(Duration::from_millis(5));
                }
                sha.update(piece);
            });
            match result {
                Ok(()) => {
                    assert_eq!(base32(&sha.finalize()), hash, "{path} is wrong");
                    Tally::add(&self.tally.whole_count);
                }
                Err(error) => {
                    println!("{path} was cut: {error}");
                    Tally::add(&self.tally.cut_count);
                }
            }
        }
    }

    /// Copies a path with a real Nix client.
    fn copy(&self, mut random: Random) {
        let client = Client::new();
        while self.goes_on() {
            let Some(path) = self.any_path(&mut random) else {
                continue;
            };
            let mut command = client.copy(
                &format!("http://{}", self.addr),
                "",
                std::slice::from_ref(&path),
            );
            let started = Instant::now();
            let output = finish(command.arg("--no-check-sigs"));
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!error.contains("hash mismatch"), "{error}");
            if output.status.success() {
                Tally::add(&self.tally.copied_count);
            } else {
                // The client reports that the path is absent, at the narinfo or later.
                let texts = ["is not valid", "no substituter that can build it"];
                if texts.iter().any(|text| error.contains(text)) {
                    Tally::add(&self.tally.refused_count);
                } else {
                    println!("{error}");
                    Tally::add(&self.tally.failed_count);
                    if started.elapsed() >= HOLD_TIME {
                        Tally::add(&self.tally.late_count);
                    }
                }
            }
            // Reset the client: it caches narinfos, and does not copy a path that it already has.
            fs::remove_dir_all(client.dir().join("cache")).ok();
        }
    }

    /// Runs builders, collector and clients concurrently. Returns the counters that the server logs
    /// when it ends.
    fn run(&self, server: ServerProcess) -> HashMap<String, u64> {
        let scene = self;
        std::thread::scope(|scope| {
            let (time, over) = (run_time(), &scene.is_over);
            let ends = scope.spawn(move || {
                let started = Instant::now();
                let is_enough = || started.elapsed() >= time && scene.tally.is_enough();
                while !is_enough()
                    && started.elapsed() < PATIENCE.max(time)
                    && !over.load(Ordering::SeqCst)
                {
                    std::thread::sleep(Duration::from_millis(20));
                }
                over.store(true, Ordering::SeqCst);
            });
            let mut running = vec![ends];
            running.push(scope.spawn(|| stops(scene, || scene.build(0))));
            running.push(scope.spawn(|| stops(scene, || scene.collect())));
            running.push(scope.spawn(|| stops(scene, || scene.copy(Random(7)))));
            for seed in 1..=3 {
                running.push(scope.spawn(move || {
                    stops(scene, || scene.download(Random(seed)));
                }));
            }
            for thread in running {
                thread.join().unwrap();
            }
        });
        println!("{:?}", self.tally);
        let log = server.whole_log();
        let line = log.iter().rfind(|line| line.contains("events since"));
        println!("{line:?}");
        let words = line.unwrap().split_whitespace();
        words
            .filter_map(|word| {
                let (name, number) = word.split_once('=')?;
                Some((name.to_owned(), number.trim_end_matches(';').parse().ok()?))
            })
            .collect()
    }
}

/// Calls `run`; if it panics, ends the other threads too.
fn stops(scene: &Scene, run: impl FnOnce()) {
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let _stop = Stop(&scene.is_over);
    run();
}

fn tree(path: &Path, number: u64, file_count: u64, file_len: usize) {
    fs::create_dir(path).unwrap();
    for file in 0..file_count {
        let mut content = fs::File::create(path.join(file.to_string())).unwrap();
        let line = format!("{number} {file}\n");
        let text = line.repeat(file_len / line.len());
        content.write_all(text.as_bytes()).unwrap();
    }
}

/// Encodes a digest in Nix's base-32.
fn base32(digest: &[u8]) -> String {
    let alphabet = b"0123456789abcdfghijklmnpqrsvwxyz";
    let digit = |index: usize| {
        let (byte, shift) = (index * 5 / 8, index * 5 % 8);
        let next = digest.get(byte + 1).copied().unwrap_or(0);
        let pair = u16::from(digest[byte]) | u16::from(next) << 8;
        char::from(alphabet[usize::from(pair >> shift & 31)])
    };
    (0..52).rev().map(digit).collect()
}

/// A pseudo-random generator with the same sequence in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end
    }
}

fn number(counted: &HashMap<String, u64>, name: &str) -> u64 {
    counted.get(name).copied().unwrap_or(0)
}

#[test]
fn with_a_daemon_every_announced_nar_is_sent_completely() {
    let (scene, server) = Scene::new(&HOLD_TIME.as_secs().to_string());
    let _daemon = NixDaemon::start(&scene.store);
    let first = scene.store.add_file("first", b"first");
    eventually("paths are held", || {
        scene.narinfo(&first);
        roots(&scene.store).contains(&first)
    });
    let counted = scene.run(server);
    let tally = &scene.tally;
    let broken = [&tally.missing_count, &tally.cut_count, &tally.failed_count];
    let broken_count: u64 = broken.map(Tally::of).iter().sum();
    let broken_count = broken_count - Tally::of(&tally.late_count);
    // A lease that the daemon was too slow to give is skipped and counted, so that no client waits
    // long.
    let unheld = number(&counted, "narinfo_unleased") + number(&counted, "nar_unleased");
    assert!(broken_count <= unheld, "{broken_count} of {unheld}");
    assert!(number(&counted, "path_collected") <= unheld);
    assert!(scene.tally.is_enough());
}

#[test]
fn without_a_daemon_a_response_is_complete_and_right_or_aborted() {
    let (scene, server) = Scene::new("off");
    let counted = scene.run(server);
    let tally = &scene.tally;
    // The server counts every truncated response, including those to real clients, which are not in
    // the test's counts.
    let (failed, cut) = (number(&counted, "body_failed"), Tally::of(&tally.cut_count));
    let copies = [
        &tally.copied_count,
        &tally.refused_count,
        &tally.failed_count,
    ];
    let copied: u64 = copies.map(Tally::of).iter().sum();
    assert!((cut..=cut + copied).contains(&failed), "{cut} {failed}");
    assert_eq!(number(&counted, "path_quarantined"), 0);
    assert!(tally.is_enough());
}
