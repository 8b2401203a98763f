//! Every look-up reflects all earlier commits, while other threads commit and refresh.

mod support;

use std::collections::BTreeMap;

use samovar_store::{LocalStore, Store};
use support::rows::{self, Journal, Rows};

/// Each thread registers and deletes its own path. After each commit it looks the path up as a
/// server does: in the catalog, and in facts learned in the same epoch.
fn race(journal: Journal, thread_count: u32, round_count: u32) {
    let place = Rows::new(journal);
    let store = place.open();
    std::thread::scope(|scope| {
        for number in 0..thread_count {
            let (place, store) = (&place, &store);
            scope.spawn(move || one_thread(place, store, number, round_count));
        }
    });
}

fn one_thread(place: &Rows, store: &LocalStore, number: u32, round_count: u32) {
    let writer = place.writer();
    let catalog = store.catalog().expect("a local store has a catalog");
    let mut snapshot = catalog.current();
    let mut learned = BTreeMap::new();
    let hash_part = rows::path(number).hash_part();
    let mut ask = || {
        if !catalog.check(&mut snapshot) {
            snapshot = catalog.load().expect("the database can be read");
        }
        if !snapshot.may_contain(&hash_part) {
            return None;
        }
        let epoch = snapshot.epoch;
        *learned.entry(epoch).or_insert_with(|| {
            let info = store.lookup(hash_part).expect("the database can be read");
            info.map(|info| info.nar_size)
        })
    };
    for round in 0..round_count {
        rows::register(&writer, number, round);
        assert_eq!(ask(), Some(112 + u64::from(round) * 8), "round {round}");
        rows::delete(&writer, number);
        assert_eq!(ask(), None, "round {round}");
        if round % 16 == 0 && number == 0 {
            // A checkpoint has no effect in rollback mode, and a reader may block it.
            let _busy = writer.query_row("pragma wal_checkpoint(restart)", [], |_| Ok(()));
        }
    }
}

#[test]
fn wal_mode() {
    race(Journal::Wal, 4, 400);
}

#[test]
fn rollback_mode() {
    // Use one thread: several would mostly wait for each other's locks.
    race(Journal::Truncate, 1, 400);
}
