//! The pause between attempts to connect grows while they fail, and an outage is reported once.

use std::sync::Mutex;
use std::sync::atomic::AtomicU32;

use super::*;
use crate::sys::WakeUp;
use crate::tests::memory_store::MemoryStore;
use crate::tests::recorder::Recorder;

const ERROR: LeaseError = LeaseError::OtherStore;

fn keeper() -> (Keeper, Arc<Recorder>) {
    let events = Arc::new(Recorder::default());
    let shared = Arc::new(Shared {
        published: AtomicU32::new(0),
        table: Mutex::default(),
        wake: WakeUp::new().unwrap(),
        observer: Arc::<Recorder>::clone(&events),
    });
    let config = LeaseConfig {
        time: Duration::from_secs(60),
        is_configured: true,
    };
    let keeper = Keeper::new(config, shared, Arc::new(MemoryStore::new()));
    (keeper, events)
}

/// Whether the keeper thread makes its next attempt to connect after `wait`.
fn is_due_after(keeper: &Keeper, before: Instant, wait: Duration) -> bool {
    let (least, most) = (before + wait, Instant::now() + wait);
    (least..=most).contains(&keeper.retries_at)
}

#[test]
fn the_interval_of_attempts_doubles_to_thirty_seconds_and_a_working_connection_resets_it() {
    let (mut keeper, _events) = keeper();
    for milliseconds in [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000] {
        let before = Instant::now();
        keeper.note_failure(ERROR);
        let wait = Duration::from_millis(milliseconds);
        assert!(is_due_after(&keeper, before, wait), "{wait:?}");
    }
    keeper.note_success();
    let before = Instant::now();
    keeper.note_failure(ERROR);
    assert!(is_due_after(&keeper, before, RETRY_INTERVAL));
}

#[test]
fn an_outage_is_reported_once_and_its_end_too() {
    let (mut keeper, events) = keeper();
    keeper.note_success();
    assert_eq!(events.take(), [""; 0]);
    keeper.note_failure(ERROR);
    keeper.note_failure(ERROR);
    assert_eq!(events.take(), ["leases failed"]);
    keeper.note_success();
    keeper.note_success();
    assert_eq!(events.take(), ["leases recovered"]);
}

#[test]
fn a_connection_that_worked_is_replaced_at_once_and_one_that_did_not_is_an_outage() {
    let (mut keeper, events) = keeper();
    keeper.shared.change(Table::begin_leasing);
    // The connection is lost after it has worked for a while.
    let before = Instant::now();
    keeper.lose_present(ERROR);
    assert!(is_due_after(&keeper, before, Duration::ZERO));
    assert_eq!(events.take(), [""; 0]);
    // The connection is lost before it counts as working.
    keeper.shared.change(Table::begin_leasing);
    keeper.settles_at = Some(Instant::now() + SETTLE_TIME);
    let before = Instant::now();
    keeper.lose_present(ERROR);
    assert!(is_due_after(&keeper, before, RETRY_INTERVAL));
    assert_eq!(events.take(), ["leases failed"]);
    assert!(keeper.settles_at.is_none());
}

#[test]
fn an_empty_generation_is_prolonged_without_a_new_connection() {
    let (mut keeper, _events) = keeper();
    keeper.shared.change(Table::begin_leasing);
    let generation = keeper.shared.table.locked().generation;
    let before = Instant::now();
    keeper.begin_generation();
    assert!(keeper.ends_at >= before + keeper.config.time);
    assert_eq!(keeper.shared.table.locked().generation, generation);
}
