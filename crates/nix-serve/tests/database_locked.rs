//! While the database is locked, the server sends responses that are certainly current and 503 for
//! all others, at once. It recovers as soon as the lock is gone.

mod support;
mod support_database;
mod support_process;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::{local, nix_serve};
use support_database::{BACK_WITHIN, FAILED, Subject, nar};
use support_process::{Connection, Process, PublicBinary, Shell, is_root, public_store};
use testkit::limit;
use testkit::sqlite::SETTINGS;
use testkit::sqlite::run as sqlite;

const CLIENTS: usize = 200;

/// Checks the responses while another process has the database locked: the narinfo of a requested
/// path and the absence of another are known, a path that was never requested gets 503.
#[track_caller]
fn tells_what_it_knows(subject: &Subject) {
    let mut connection = Connection::connect(subject.addr);
    assert_eq!(connection.get(&subject.narinfo(&subject.asked)).status, 200);
    let absent = format!("/{}.narinfo", "z".repeat(32));
    assert_eq!(connection.get(&absent).status, 404);
}

#[test]
fn in_rollback_mode() {
    for journal_mode in ["delete", "truncate"] {
        for lock in [
            "begin exclusive;",
            "pragma locking_mode = exclusive; begin exclusive; commit;",
        ] {
            let mut subject = Subject::start(journal_mode);
            let holder = Shell::open(&subject.database(), lock);
            tells_what_it_knows(&subject);
            subject.assert_unavailable();
            tells_what_it_knows(&subject);
            drop(holder);
            subject.assert_recovered("locked by another process");
        }
    }
}

#[test]
fn as_nobody() {
    if !is_root() {
        return;
    }
    let binary = PublicBinary::new();
    let mut subject = Subject::start_as("truncate", binary.as_nobody());
    let holder = Shell::open(&subject.database(), "begin exclusive;");
    subject.assert_unavailable();
    tells_what_it_knows(&subject);
    drop(holder);
    subject.assert_recovered("locked by another process");
}

/// A process that has the lock commits: cached responses are stale afterwards.
#[test]
fn what_was_committed_under_the_lock_is_known_afterwards() {
    let subject = Subject::start("truncate");
    let mut shell = Shell::open(&subject.database(), SETTINGS);
    shell.run("pragma locking_mode = exclusive;");
    shell.run(&format!(
        "delete from ValidPaths where path = '{}';",
        subject.asked
    ));
    let url = subject.narinfo(&subject.asked);
    for _ in 0..20 {
        assert_eq!(subject.ask(&url).status, 503);
    }
    drop(shell);
    let start = Instant::now();
    while subject.ask(&url).status != 404 {
        assert!(start.elapsed() < BACK_WITHIN);
    }
}

/// In WAL mode a writer's lock delays no request.
#[test]
fn with_a_wal_nobody_waits_for_a_writer() {
    let subject = Subject::start("wal");
    let _holder = Shell::open(&subject.database(), "begin exclusive;");
    let mut connection = Connection::connect(subject.addr);
    let absent = format!("/{}.narinfo", "z".repeat(32));
    for path in [&subject.asked, &subject.unasked] {
        assert_eq!(connection.get(&subject.narinfo(path)).status, 200);
        assert_eq!(connection.get(&nar(path)).status, 200);
        assert_eq!(connection.get(&absent).status, 404);
    }
    assert_eq!(subject.server.count(FAILED), 0);
}

/// A server that starts while the database has an exclusive lock responds with 503 until the lock
/// is gone. In WAL mode a process gets such a lock only if it opens the database first.
#[test]
fn a_server_that_comes_second() {
    let store = public_store();
    let path = store.add_file("a", b"a");
    sqlite(&store.database(), "pragma journal_mode = wal");
    let holder = Shell::open(
        &store.database(),
        "pragma locking_mode = exclusive; begin exclusive; commit;",
    );
    let mut command = nix_serve();
    command.args(["--listen", "127.0.0.1:0", "--store", &local(store.root())]);
    let (server, addr) = Process::serving(&mut command);
    for url in [&nar(&path), &format!("/{}.narinfo", "z".repeat(32))] {
        assert_eq!(support_process::once(addr, url).status, 503);
    }
    drop(holder);
    let start = Instant::now();
    while support_process::once(addr, &nar(&path)).status != 200 {
        assert!(start.elapsed() < BACK_WITHIN, "{:?}", server.lines());
    }
    eprintln!(
        "back after {:?}: a lock from before the start",
        start.elapsed()
    );
}

/// The server reads the database although commits follow one another, each waiting for the disk.
/// The lock is free only for moments between them, which SQLite's own busy handler never meets, as
/// it sleeps between attempts.
#[test]
fn a_busy_writer_in_rollback_mode() {
    let subject = Subject::start("truncate");
    let database = subject.database();
    let sql: String = (0..2000)
        .map(|number| {
            let path = format!("/nix/store/{number:032}-filler");
            format!(
                "insert into ValidPaths (path, hash, registrationTime, narSize) \
                 values ('{path}', 'sha256:{number:064}', 1, 120);"
            )
        })
        .collect();
    Shell::open(&database, SETTINGS).run(&format!("begin; {sql} commit;"));
    let commit = format!(
        "update ValidPaths set registrationTime = registrationTime + 1 where path = '{}';",
        subject.asked
    );
    let done = AtomicBool::new(false);
    let (mut windows, mut is_read) = (Vec::new(), false);
    let commits = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut shell = Shell::open(&database, SETTINGS);
            shell.run("pragma synchronous = full;");
            let mut commits = 0;
            while !done.load(Ordering::Relaxed) {
                shell.run(&commit.repeat(20));
                commits += 20;
            }
            commits
        });
        let mut connection = Connection::connect(subject.addr);
        let mut number = 0;
        // If other processes need the processors, the server is not woken between two commits.
        while !is_read && windows.len() < 30 {
            let start = Instant::now();
            let (mut good, mut bad) = (0, 0);
            while start.elapsed() < Duration::from_secs(1) {
                number = (number + 7) % 2000;
                match connection.get(&format!("/{number:032}.narinfo")).status {
                    200 => good += 1,
                    503 => bad += 1,
                    other => panic!("{other}"),
                }
            }
            is_read = good > 0 && bad * 20 <= good;
            windows.push((good, bad));
        }
        done.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    eprintln!("{commits} commits; in each second, responses with 200 and 503: {windows:?}");
    assert!(commits > 0);
    assert!(is_read, "{windows:?} {:?}", subject.server.lines());
}

/// Only one request at a time waits for the lock; the others get 503 as fast as a miss.
#[test]
fn many_clients_of_a_locked_database() {
    let subject = Subject::start("truncate");
    let holder = Shell::open(&subject.database(), "begin exclusive;");
    assert_eq!(subject.ask(&nar(&subject.unasked)).status, 503);
    let start = Instant::now();
    let (times, others) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (subject, times, others) = (&subject, &times, &others);
            scope.spawn(move || {
                let (url, status, times) = match client % 4 {
                    0 => (nar(&subject.unasked), 503, times),
                    1 => {
                        let listing = format!("/{}.ls", support::hash_part(&subject.asked));
                        (listing, 503, times)
                    }
                    // These responses do not need the database.
                    _ => ("/nowhere".to_owned(), 404, others),
                };
                let mut connection = Connection::connect(subject.addr);
                while start.elapsed() < Duration::from_secs(3) {
                    let asked = Instant::now();
                    assert_eq!(connection.get(&url).status, status);
                    times.lock().unwrap().push(asked.elapsed());
                }
            });
        }
    });
    let [times, others] = [times, others].map(|times| {
        let mut times = times.into_inner().unwrap();
        times.sort();
        times
    });
    let p99_of = |times: &[Duration]| times[times.len() * 99 / 100];
    let (p99, p99_others) = (p99_of(&times), p99_of(&others));
    let slowest_other = *others.last().unwrap();
    let waited = |time: &&Duration| **time > Duration::from_millis(400) + slowest_other;
    let slow = times.iter().filter(waited).count();
    eprintln!(
        "{} responses: p99 {p99:?}, of others {p99_others:?}, slowest {:?}, of others \
         {slowest_other:?}, {slow} waited for the lock",
        times.len(),
        times.last().unwrap()
    );
    limit::time_at_most(
        "for the 99th percentile of responses",
        p99,
        Duration::from_millis(250) + 2 * p99_others,
    );
    // A probe waits for half a second, and the next one starts a tenth of a second later.
    let probes = start.elapsed().as_millis() / 600 + 1;
    assert!(slow <= usize::try_from(2 * probes).unwrap(), "{slow}");
    assert_eq!(subject.server.count(FAILED), 1);
    drop(holder);
    let start = Instant::now();
    while subject.ask(&nar(&subject.unasked)).status != 200 {
        assert!(start.elapsed() < BACK_WITHIN);
    }
}
