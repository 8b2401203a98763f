//! When the disk of the database hangs or fails, the server still answers all requests that do not
//! need the store. All others get 503, and after a moment without waiting.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says what it measured"
)]

#[path = "support/slow_disk.rs"]
mod slow_disk;
mod support;
mod support_database;
mod support_process;

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use slow_disk::SlowDisk;
use support::{OwnStore, eventually, hash_part, local, nix_serve};
use support_database::{BACK_WITHIN, FAILED, RECOVERED, nar};
use support_process::{Connection, Process};
use testkit::sqlite::run as sqlite;

/// Number of clients, more than there are workers.
const CLIENTS: usize = 100;

/// A server whose database is on a separate disk.
struct OnDisk {
    server: Process,
    addr: SocketAddr,
    paths: [String; 2],
    /// Declared first, so that it is dropped before the directory it is mounted on.
    disk: SlowDisk,
    _store: OwnStore,
}

impl OnDisk {
    fn start(arguments: &[&str]) -> Option<Self> {
        let store = OwnStore::new();
        let paths = ["asked", "unasked"].map(|name| store.add_file(name, name.as_bytes()));
        // This file system does not support the shared memory of a WAL index, so do not use WAL
        // mode.
        sqlite(&store.database(), "pragma journal_mode = delete");
        let db = store.database().parent().unwrap().to_owned();
        let shown = db.with_extension("shown");
        fs::rename(&db, &shown).unwrap();
        fs::create_dir(&db).unwrap();
        let disk = SlowDisk::mount(&shown, &db)?;
        let mut command = nix_serve();
        command.args(["--listen", "127.0.0.1:0", "--store", &local(store.root())]);
        let (server, addr) = Process::serving(command.args(arguments));
        let on_disk = Self {
            server,
            addr,
            paths,
            disk,
            _store: store,
        };
        for url in on_disk.urls() {
            let status = on_disk.status(&url);
            assert!(
                matches!(status, 200 | 404),
                "{url}: {:?}",
                on_disk.server.lines()
            );
        }
        Some(on_disk)
    }

    fn status(&self, url: &str) -> u16 {
        support_process::once(self.addr, url).status
    }

    /// Returns one URL of each kind that needs the database.
    fn urls(&self) -> [String; 4] {
        [
            format!("/{}.narinfo", hash_part(&self.paths[0])),
            nar(&self.paths[1]),
            format!("/{}.ls", hash_part(&self.paths[1])),
            format!("/{}.narinfo", "z".repeat(32)),
        ]
    }

    #[track_caller]
    fn comes_back(&self, what: &str) {
        let start = Instant::now();
        let urls = self.urls();
        while urls.iter().any(|url| self.status(url) == 503) {
            assert!(
                start.elapsed() < BACK_WITHIN,
                "{what}: {:?}",
                self.server.lines()
            );
        }
        eprintln!("back after {:?}: {what}", start.elapsed());
        let statuses = urls.map(|url| self.status(&url));
        assert_eq!(statuses, [200, 200, 200, 404], "{what}");
    }
}

#[test]
fn a_disk_that_hangs() {
    let Some(subject) = OnDisk::start(&["--read-timeout", "2", "--timeout", "600"]) else {
        return;
    };
    let trouble = subject.disk.hang();
    // Occupy every worker slot.
    let urls = subject.urls();
    let mut stuck: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let mut connection = Connection::connect(subject.addr);
            connection.send_request("GET", &urls[number % urls.len()], &[]);
            connection
        })
        .collect();
    eventually("it hangs", || subject.disk.hung_count() > 0);
    let hung = Instant::now();
    let mut slow_head = Connection::connect(subject.addr);
    slow_head.send(b"GET / HTTP/1.1\r\nHo");
    let mut times = Vec::new();
    let mut connection = Connection::connect(subject.addr);
    while hung.elapsed() < Duration::from_secs(2) {
        for (url, status) in [("/nix-cache-info", 200), ("/nowhere", 404)] {
            let start = Instant::now();
            assert_eq!(connection.get(url).status, status);
            times.push(start.elapsed());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    times.sort();
    eprintln!(
        "what needs no store: slowest of {} {:?}",
        times.len(),
        times.last().unwrap()
    );
    // The others wait until the server detects the failure, which takes seconds. A busy machine
    // delays some of these requests too.
    assert!(times[times.len() * 9 / 10] < Duration::from_millis(200));
    // A client that sends an incomplete request head still times out.
    let (answer, _) = slow_head.rest();
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 408 "));
    // Once the server has detected the failure, requests get 503 without waiting.
    eventually("it is known", || {
        let start = Instant::now();
        let mut connection = Connection::connect(subject.addr);
        connection.send_request("GET", &urls[1], &[]);
        hung.elapsed() > Duration::from_secs(6) && {
            assert_eq!(connection.response(false).status, 503);
            start.elapsed() < Duration::from_millis(500)
        }
    });
    let start = Instant::now();
    let mut connection = Connection::connect(subject.addr);
    for _ in 0..200 {
        for url in &urls {
            assert_eq!(connection.get(url).status, 503);
        }
    }
    eprintln!("800 times 503 in {:?}", start.elapsed());
    // If each waited, the last one would get its response after minutes.
    assert!(start.elapsed() < Duration::from_secs(60));
    let said = "the database's disk does not answer";
    eventually("it is said", || subject.server.count(said) == 1);
    drop(trouble);
    subject.comes_back("a disk that hung");
    for (number, connection) in stuck.iter_mut().enumerate() {
        let status = connection.response(false).status;
        let absent = number % urls.len() == 3;
        assert!(
            status == 503 || (status == 404) == absent,
            "{number}: {status}"
        );
    }
    subject.server.wait_for(RECOVERED);
}

#[test]
fn a_disk_that_fails() {
    let Some(subject) = OnDisk::start(&[]) else {
        return;
    };
    for round in 1..=3 {
        let trouble = subject.disk.fail();
        let start = Instant::now();
        let mut connection = Connection::connect(subject.addr);
        while start.elapsed() < Duration::from_millis(300) {
            for url in subject.urls() {
                assert_eq!(connection.get(&url).status, 503, "{url}");
            }
            assert_eq!(connection.get("/nix-cache-info").status, 200);
        }
        eventually("it is said", || subject.server.count(FAILED) == round);
        drop(trouble);
        subject.comes_back("a disk that failed");
        subject.server.wait_for(RECOVERED);
    }
}
