//! While a large database is being loaded, no look-up waits, and all results are correct.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use rusqlite::Connection;
use samovar_store::{LocalStore, Snapshot, Store};
use support::rows::{self, Journal, Rows};

/// Number of rows: more than a caller reads itself.
const LARGE: u32 = 10_000;

fn register_all(connection: &Connection, numbers: Range<u32>) {
    let transaction = connection.unchecked_transaction().unwrap();
    numbers.for_each(|number| rows::register(&transaction, number, 0));
    transaction.commit().unwrap();
}

fn delete_all(connection: &Connection, numbers: Range<u32>) {
    let transaction = connection.unchecked_transaction().unwrap();
    numbers.for_each(|number| rows::delete(&transaction, number));
    transaction.commit().unwrap();
}

fn large(journal: Journal) -> (Rows, Connection, LocalStore) {
    let place = Rows::new(journal);
    let writer = place.writer();
    register_all(&writer, 0..LARGE);
    let store = place.open();
    (place, writer, store)
}

/// Looks a path up as a server does: in the catalog, or in the database if the catalog is stale.
fn ask(store: &LocalStore, snapshot: &mut Arc<Snapshot>, number: u32) -> bool {
    let catalog = store.catalog().unwrap();
    let hash_part = rows::path(number).hash_part();
    let is_known = catalog.check(snapshot)
        || catalog.refresh().unwrap().is_some_and(|new| {
            *snapshot = new;
            true
        });
    if is_known && !snapshot.may_contain(&hash_part) {
        return false;
    }
    store.lookup(hash_part).unwrap().is_some()
}

#[test]
fn the_first_answers_come_from_the_database() {
    for journal in [Journal::Wal, Journal::Truncate] {
        let (_place, _writer, store) = large(journal);
        let catalog = store.catalog().unwrap();
        assert!(catalog.refresh().unwrap().is_none());
        let mut snapshot = catalog.current();
        for number in [0, 1, LARGE - 1] {
            assert!(ask(&store, &mut snapshot, number));
        }
        assert!(!ask(&store, &mut snapshot, LARGE));
        let loaded = catalog.load().unwrap();
        assert_eq!(loaded.path_count(), LARGE as usize);
        assert!((0..LARGE).all(|number| loaded.may_contain(&rows::path(number).hash_part())));
        assert!(!loaded.may_contain(&rows::path(LARGE).hash_part()));
        assert!(catalog.refresh().unwrap().is_some());
    }
}

/// Background threads call `renew` and `version`, which load nothing.
#[test]
fn nothing_is_loaded_before_a_caller_needs_it() {
    for journal in [Journal::Wal, Journal::Truncate] {
        let (_place, writer, store) = large(journal);
        let catalog = store.catalog().unwrap();
        assert!(catalog.renew().unwrap().is_none());
        assert!(catalog.version().is_some());
        assert!(!catalog.current().is_loaded());
        assert!(catalog.renew().unwrap().is_none());
        catalog.load().unwrap();
        register_all(&writer, LARGE..LARGE + 1);
        let renewed = catalog.renew().unwrap().unwrap();
        assert!(renewed.may_contain(&rows::path(LARGE).hash_part()));
    }
}

#[test]
fn a_large_database_is_loaded_for_the_hundredth_request() {
    for journal in [Journal::Wal, Journal::Truncate] {
        let (_place, _writer, store) = large(journal);
        let catalog = store.catalog().unwrap();
        for _ in 0..99 {
            assert!(catalog.refresh().unwrap().is_none());
            assert!(catalog.renew().unwrap().is_none());
        }
        assert!(catalog.load_time().is_none());
        assert!(catalog.refresh().unwrap().is_none());
        while !catalog.current().is_loaded() {
            std::thread::yield_now();
        }
        assert_eq!(catalog.current().path_count(), LARGE as usize);
    }
}

#[test]
fn a_version_changes_with_each_commit_only() {
    for journal in [Journal::Wal, Journal::Truncate] {
        let (place, writer, store) = large(journal);
        let catalog = store.catalog().unwrap();
        let version = || catalog.version().unwrap();
        let first = version();
        assert_eq!(version(), first);
        assert!(store.lookup(rows::path(0).hash_part()).unwrap().is_some());
        catalog.load().unwrap();
        assert_eq!(version(), first);
        register_all(&writer, LARGE..LARGE + 1);
        let second = version();
        assert_ne!(second, first);
        assert_eq!(version(), second);
        // Another connection pool of the same file has versions of its own.
        assert_ne!(place.open().catalog().unwrap().version().unwrap(), second);
    }
}

#[test]
fn a_small_database_is_read_at_once() {
    let place = Rows::new(Journal::Wal);
    let writer = place.writer();
    // One row fewer than the maximum that a caller reads itself.
    register_all(&writer, 0..4095);
    let store = place.open();
    let snapshot = store.catalog().unwrap().refresh().unwrap();
    assert_eq!(snapshot.unwrap().path_count(), 4095);
    register_all(&writer, 4095..4096);
    let store = place.open();
    assert!(store.catalog().unwrap().refresh().unwrap().is_none());
    assert_eq!(store.catalog().unwrap().load().unwrap().path_count(), 4096);
}

/// Commits before, during and after the load are visible at once.
#[test]
fn commits_during_the_load() {
    for journal in [Journal::Wal, Journal::Truncate] {
        let (place, writer, _) = large(journal);
        for round in 0..4 {
            // Start each round with an empty catalog.
            let store = place.open();
            let mut snapshot = store.catalog().unwrap().current();
            let mut step = 0;
            let mut load_is_over = false;
            while !load_is_over {
                load_is_over = store.catalog().unwrap().refresh().unwrap().is_some();
                for number in [LARGE + 1 + step, (step * 997 + round) % LARGE] {
                    let is_there = ask(&store, &mut snapshot, number);
                    if is_there {
                        rows::delete(&writer, number);
                    } else {
                        rows::register(&writer, number, 1);
                    }
                    assert_eq!(ask(&store, &mut snapshot, number), !is_there, "{number}");
                }
                step += 1;
            }
            assert_eq!(ask(&store, &mut snapshot, LARGE + 1), round % 2 == 0);
        }
    }
}

#[test]
fn many_rows_in_one_commit() {
    let (_place, writer, store) = large(Journal::Wal);
    let catalog = store.catalog().unwrap();
    let mut snapshot = catalog.load().unwrap();
    // The maximum that a caller reads itself, one row more, and far more.
    let mut end = LARGE;
    for (count, is_much) in [(4095, false), (4096, true), (30_000, true)] {
        register_all(&writer, end..end + count);
        end += count;
        assert_eq!(catalog.refresh().unwrap().is_none(), is_much, "{count}");
        assert!(ask(&store, &mut snapshot, end - 1));
        assert!(!ask(&store, &mut snapshot, end));
        assert_eq!(catalog.load().unwrap().path_count(), end as usize);
    }
    let loaded = catalog.load().unwrap();
    assert!((0..end).all(|number| loaded.may_contain(&rows::path(number).hash_part())));
}

#[test]
fn replaced_by_another_large_database() {
    for journal in [Journal::Wal, Journal::Truncate] {
        let (place, writer, store) = large(journal);
        let catalog = store.catalog().unwrap();
        let mut snapshot = catalog.load().unwrap();
        assert!(!ask(&store, &mut snapshot, LARGE));
        writer.close().unwrap();
        place.replace(|new| register_all(new, 1..LARGE + 1));
        // A background thread calls this every 100 ms.
        catalog.inspect();
        assert!(!catalog.check(&mut snapshot));
        assert!(!ask(&store, &mut snapshot, 0));
        assert!(ask(&store, &mut snapshot, LARGE));
        let loaded = catalog.load().unwrap();
        assert_eq!(loaded.path_count(), LARGE as usize);
        assert!(loaded.may_contain(&rows::path(LARGE).hash_part()));
    }
}

/// If the newest paths are deleted, the catalog still recognises the database: the latest builds
/// are often collected first.
#[test]
fn the_newest_paths_are_deleted() {
    let (_place, writer, store) = large(Journal::Wal);
    let catalog = store.catalog().unwrap();
    catalog.load().unwrap();
    let mut end = LARGE;
    for _ in 0..20 {
        delete_all(&writer, end - 96..end);
        register_all(&writer, end..end + 1);
        end += 1;
        let snapshot = catalog.refresh().unwrap();
        let snapshot = snapshot.expect("most of the newest rows are still there");
        assert!(snapshot.may_contain(&rows::path(end - 1).hash_part()));
    }
    // If one more row were deleted, it could be another database.
    delete_all(&writer, end - 400..end);
    assert!(catalog.refresh().unwrap().is_none());
    catalog.load().unwrap();
}

#[test]
fn deleted_paths_do_not_pile_up() {
    let (_place, writer, store) = large(Journal::Wal);
    let catalog = store.catalog().unwrap();
    catalog.load().unwrap();
    let mut counts = BTreeSet::new();
    for round in 0..40 {
        let begin = LARGE + round * 2000;
        register_all(&writer, begin..begin + 2000);
        // Keep the newest rows for now: they identify the database.
        delete_all(&writer, begin - 1500..begin - 500);
        delete_all(&writer, begin..begin + 1500);
        let snapshot = catalog.refresh().unwrap();
        // A snapshot is available even during a full reload.
        let snapshot = snapshot.expect("few rows are new");
        assert!(snapshot.may_contain(&rows::path(begin + 1999).hash_part()));
        counts.insert(snapshot.path_count());
    }
    assert!(counts.iter().all(|count| *count < 60_000), "{counts:?}");
}

#[test]
fn a_store_dropped_during_the_load() {
    let (place, _writer, _) = large(Journal::Wal);
    for _ in 0..20 {
        let store = place.open();
        let catalog = store.catalog().unwrap();
        // The hundredth request starts the load.
        for _ in 0..100 {
            assert!(catalog.refresh().unwrap().is_none());
        }
    }
    assert_eq!(
        place.open().catalog().unwrap().load().unwrap().path_count(),
        LARGE as usize
    );
}
