//! A locked, replaced, truncated or missing database gives an error, never an absence. The store
//! recovers by itself.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use samovar_store::{Corruption, LocalStore, Store, StoreError, Unavailable};
use support::rows::{self, Journal, Rows};
use testkit::PATIENCE;

fn lookup(store: &LocalStore, number: u32) -> Result<bool, StoreError> {
    store
        .lookup(rows::path(number).hash_part())
        .map(|info| info.is_some())
}

/// Looks a path up as a server does.
fn ask(store: &LocalStore, number: u32) -> Result<bool, StoreError> {
    let catalog = store.catalog().unwrap();
    let mut snapshot = catalog.current();
    if !catalog.check(&mut snapshot) {
        snapshot = catalog.load()?;
    }
    let hash_part = rows::path(number).hash_part();
    if snapshot.may_contain(&hash_part) {
        lookup(store, number)
    } else {
        Ok(false)
    }
}

/// Retries for a minute, until the result is the expected one.
#[track_caller]
fn recovers(store: &LocalStore, number: u32, expected: Result<bool, StoreError>) {
    let start = Instant::now();
    loop {
        let answer = ask(store, number);
        if answer == expected {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "still {answer:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn filled(journal: Journal) -> (Rows, rusqlite::Connection, LocalStore) {
    let place = Rows::new(journal);
    let writer = place.writer();
    for number in 0..100 {
        rows::register(&writer, number, number);
    }
    let store = place.open();
    assert_eq!(ask(&store, 1), Ok(true));
    assert_eq!(ask(&store, 1000), Ok(false));
    (place, writer, store)
}

#[test]
fn locked_in_rollback_mode() {
    let (_place, writer, store) = filled(Journal::Truncate);
    writer.execute_batch("begin exclusive").unwrap();
    assert_eq!(lookup(&store, 1), Err(StoreError::Busy));
    // Later look-ups fail at once, except one per 600 ms, which waits for the lock for 500 ms.
    let mut times: Vec<Duration> = (0..1000)
        .map(|number| {
            let start = Instant::now();
            assert_eq!(lookup(&store, number), Err(StoreError::Busy));
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    assert!(times[900] < Duration::from_millis(250), "{:?}", times[900]);
    let refreshed = store.catalog().unwrap().load();
    assert_eq!(refreshed.map(drop), Err(StoreError::Busy));
    // A store that is opened while the database is locked, as by a server that starts now.
    let fresh = LocalStore::new(_place.location()).unwrap();
    assert_eq!(ask(&fresh, 1), Err(StoreError::Busy));
    rows::register(&writer, 1000, 1);
    writer.execute_batch("commit").unwrap();
    recovers(&store, 1000, Ok(true));
    recovers(&fresh, 1000, Ok(true));
}

#[test]
fn one_thread_at_a_time_waits_for_a_lock() {
    let (_place, writer, store) = filled(Journal::Truncate);
    writer.execute_batch("begin exclusive").unwrap();
    assert_eq!(lookup(&store, 1), Err(StoreError::Busy));
    let wait_count = std::sync::atomic::AtomicU32::new(0);
    let end = Instant::now() + Duration::from_millis(1500);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while Instant::now() < end {
                    let start = Instant::now();
                    assert_eq!(ask(&store, 1), Err(StoreError::Busy));
                    if start.elapsed() > Duration::from_millis(450) {
                        wait_count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
    });
    // Each wait for the lock takes 500 ms, and the next one starts 100 ms later. If every thread
    // waited, they would do so 24 times.
    let wait_count = wait_count.into_inner();
    assert!((1..=10).contains(&wait_count), "{wait_count}");
    writer.execute_batch("commit").unwrap();
    recovers(&store, 1, Ok(true));
}

#[test]
fn a_writer_in_wal_mode_does_not_block_readers() {
    let (_place, writer, store) = filled(Journal::Wal);
    writer.execute_batch("begin exclusive").unwrap();
    rows::register(&writer, 1000, 1);
    assert_eq!(ask(&store, 1), Ok(true));
    assert_eq!(ask(&store, 1000), Ok(false));
    writer.execute_batch("commit").unwrap();
    assert_eq!(ask(&store, 1000), Ok(true));
}

#[test]
fn replaced_by_another_database() {
    for journal in [Journal::Wal, Journal::Truncate] {
        let (place, writer, store) = filled(journal);
        writer.close().unwrap();
        place.replace(|new| rows::register(new, 1000, 1));
        // Look-ups notice the replacement at once; checks notice it within 100 ms.
        assert_eq!(lookup(&store, 1), Ok(false));
        assert_eq!(lookup(&store, 1000), Ok(true));
        recovers(&store, 1, Ok(false));
        recovers(&store, 1000, Ok(true));
    }
}

#[test]
fn a_backup_copied_over_the_file() {
    for journal in [Journal::Wal, Journal::Truncate] {
        let (place, writer, store) = filled(journal);
        if journal == Journal::Wal {
            writer
                .query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(()))
                .unwrap();
        }
        let backup = place.dir().join("backup");
        // Copy in another process: closing the files in this process would drop the locks of all
        // its connections.
        copy(&place.database(), &backup);
        rows::register(&writer, 1000, 1);
        assert_eq!(ask(&store, 1000), Ok(true));
        if journal == Journal::Wal {
            writer
                .query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(()))
                .unwrap();
        }
        writer.close().unwrap();
        copy(&backup, &place.database());
        recovers(&store, 1000, Ok(false));
        recovers(&store, 1, Ok(true));
        let writer = place.writer();
        rows::register(&writer, 2000, 1);
        recovers(&store, 2000, Ok(true));
    }
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    assert!(
        Command::new("cp")
            .arg(from)
            .arg(to)
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn removed_and_restored() {
    for journal in [Journal::Wal, Journal::Truncate] {
        let (place, writer, store) = filled(journal);
        writer.close().unwrap();
        let away = place.dir().join("away");
        std::fs::rename(place.dir().join("var/db"), &away).unwrap();
        let missing = Err(StoreError::Unavailable(Unavailable::DatabaseMissing));
        assert_eq!(lookup(&store, 1), missing);
        recovers(&store, 1, missing);
        recovers(&store, 1000, missing);
        std::fs::rename(&away, place.dir().join("var/db")).unwrap();
        recovers(&store, 1, Ok(true));
        recovers(&store, 1000, Ok(false));
    }
}

#[test]
fn truncated_and_restored() {
    for journal in [Journal::Wal, Journal::Truncate] {
        let (place, writer, store) = filled(journal);
        if journal == Journal::Wal {
            // Move the pages to the file: if all of them were in the WAL, truncating the file would
            // remove nothing.
            writer
                .query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(()))
                .unwrap();
        }
        writer.close().unwrap();
        let backup = place.dir().join("backup");
        copy(&place.database(), &backup);
        for len in [0, 1000, 5000] {
            let file = std::fs::File::options()
                .write(true)
                .open(place.database())
                .unwrap();
            file.set_len(len).unwrap();
            drop(file);
            let start = Instant::now();
            while !matches!(ask(&store, 50), Err(StoreError::Corrupt(_))) {
                let answer = lookup(&store, 50);
                assert!(start.elapsed() < PATIENCE, "{len}: {answer:?}");
            }
            assert!(ask(&store, 1000).is_err());
            copy(&backup, &place.database());
            recovers(&store, 50, Ok(true));
        }
    }
}

#[test]
fn no_database_at_all() {
    let place = Rows::new(Journal::Wal);
    std::fs::write(place.dir().join("var/db/garbage"), [b'x'; 10_000]).unwrap();
    std::fs::rename(place.dir().join("var/db/garbage"), place.database()).unwrap();
    let store = place.open();
    assert_eq!(
        lookup(&store, 1),
        Err(StoreError::Corrupt(Corruption::Malformed))
    );
    place.replace(|new| rows::register(new, 1, 1));
    recovers(&store, 1, Ok(true));
}

/// Queries during a replacement do not crash the process. Two files that had the same path share
/// the WAL index, and a process that maps it twice truncates it under its own readers, which end
/// with SIGBUS.
#[test]
fn queries_during_a_replacement() {
    const COUNT: u32 = 4000;
    let place = Rows::new(Journal::Wal);
    let writer = place.writer();
    writer.execute_batch("begin").unwrap();
    for number in 0..COUNT {
        rows::register(&writer, number, number);
    }
    writer.execute_batch("commit").unwrap();
    let store = place.open();
    assert_eq!(ask(&store, 1), Ok(true));
    writer.close().unwrap();
    let asked: Vec<_> = (0..COUNT)
        .map(|number| rows::path(number).hash_part())
        .collect();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    if let Ok(found) = store.lookup_many(&asked) {
                        let is_there = |one| matches!(one, Ok(Some(_)));
                        assert!(found.into_iter().all(is_there));
                    }
                }
            });
        }
        let (other, aside) = ("var/db/other", "var/db/aside");
        let (other, aside) = (place.dir().join(other), place.dir().join(aside));
        for _ in 0..40 {
            std::fs::write(&other, "garbage ".repeat(4096)).unwrap();
            std::fs::hard_link(place.database(), &aside).unwrap();
            std::fs::rename(&other, place.database()).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            std::fs::rename(&aside, place.database()).unwrap();
            std::thread::sleep(Duration::from_millis(30));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    recovers(&store, 1, Ok(true));
}

#[test]
fn many_threads_query_during_all_faults() {
    let (place, writer, store) = filled(Journal::Wal);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    // Both databases contain path 1.
                    let answer = ask(&store, 1);
                    assert!(answer == Ok(true) || answer.is_err(), "{answer:?}");
                }
            });
        }
        for number in 1000..1300 {
            rows::register(&writer, number, 1);
            rows::delete(&writer, number);
        }
        writer.close().unwrap();
        for number in 0..10 {
            place.replace(|new| {
                rows::register(new, 1, number);
                rows::register(new, 2000 + number, number);
            });
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    recovers(&store, 2009, Ok(true));
    recovers(&store, 2008, Ok(false));
}
