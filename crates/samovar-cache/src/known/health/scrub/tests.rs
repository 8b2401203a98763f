//! A round of the scrub reads each path once and reports damage.

use std::sync::Arc;

use super::*;
use crate::tests::memory_store::MemoryStore;
use crate::tests::recorder::{Recorder, shared};

fn fixture() -> (MemoryStore, Arc<Health>, Arc<Recorder>) {
    let store = MemoryStore::new();
    let (shared, events) = shared(&store, None);
    (store, Arc::clone(&shared.health), events)
}

/// A time before all verifications of a test.
const BEFORE: Moment = Moment {
    seconds: 1,
    nanoseconds: 0,
};

/// Makes a round without pauses that started at this time.
fn round(health: &Health, started: Moment) -> Round<'_> {
    Round {
        started,
        ..Round::new(health, NonZeroU64::MAX)
    }
}

#[test]
fn a_round_reads_all_paths_and_reports_the_damaged_ones() {
    let (store, health, events) = fixture();
    let infos: Vec<_> = (0..2 * STEP_COUNT + 1)
        .map(|number| store.add_file(&number.to_string(), b"right"))
        .collect();
    std::fs::write(store.file(&infos[7].path), b"wrong").unwrap();
    assert!(round(&health, BEFORE).run().is_continue());
    let status = health.scrub_status().unwrap();
    let count = infos.len() as u64;
    assert_eq!((status.path_count, status.paths_done), (count, count));
    assert_eq!((status.round_count, status.quarantined_count), (1, 1));
    assert_eq!(
        (status.len, status.len_done),
        (status.read_len, status.read_len)
    );
    let events = events.take();
    let count_of = |name| events.iter().filter(|event| **event == name).count();
    assert_eq!(count_of("path verified"), infos.len() - 1);
    assert_eq!(count_of("path quarantined"), 1);
    assert_eq!(events.last(), Some(&"scrub progress"));
}

#[test]
fn a_path_verified_since_the_start_of_the_round_is_skipped() {
    let (store, health, _events) = fixture();
    store.add_file("a", b"a");
    let started = Moment::now();
    assert!(round(&health, started).run().is_continue());
    let read_len = health.scrub_status().unwrap().read_len;
    assert!(read_len > 0);
    assert!(round(&health, started).run().is_continue());
    let status = health.scrub_status().unwrap();
    assert_eq!((status.read_len, status.paths_done), (read_len, 1));
    assert_eq!((status.len_done, status.round_count), (status.len, 2));
    // A round that starts later reads the path again.
    let later = Moment {
        seconds: u32::MAX,
        nanoseconds: 0,
    };
    assert!(round(&health, later).run().is_continue());
    assert_eq!(health.scrub_status().unwrap().read_len, 2 * read_len);
}

#[test]
fn a_path_collected_during_the_round_is_not_reported_as_damaged() {
    let (store, health, events) = fixture();
    let info = store.add_file("a", b"a");
    store.unregister(&info.path);
    let mut round = round(&health, BEFORE);
    assert!(round.verify_path(info.path.hash_part()).is_continue());
    assert_eq!(round.status.quarantined_count, 0);
    assert_eq!(events.take(), [""; 0]);
}
