//! A run of the collector that doubts the clock changes nothing, and the doubt ends by itself.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use samovar_nix::StoreDir;
use samovar_storage::gc::Rules;
use samovar_storage::{Storage, upkeep};

const DAY: i64 = 86_400;

static CLOCK: AtomicI64 = AtomicI64::new(1_800_000_000);

fn clock() -> i64 {
    CLOCK.load(Ordering::SeqCst)
}

fn jump(seconds: i64) {
    CLOCK.fetch_add(seconds, Ordering::SeqCst);
}

/// Opens a storage and completes a run.
fn open(dir: &Path, settling: i64) -> Arc<Storage> {
    let rules = Rules {
        settling,
        ..Rules::default()
    };
    let storage = Storage::with_rules(dir, &StoreDir::default(), rules, clock).unwrap();
    upkeep::collect(&storage).unwrap().unwrap();
    storage
}

#[track_caller]
fn assert_doubted(storage: &Storage) {
    let error = upkeep::collect(storage).unwrap_err().to_string();
    assert!(error.contains("the clock has jumped forward"), "{error}");
}

#[test]
fn a_doubted_clock_is_believed_again_if_it_does_not_jump_again() {
    let dir = tempfile::tempdir().unwrap();
    let storage = open(dir.path(), 0);
    jump(2 * DAY);
    assert_doubted(&storage);
    // Another jump starts the time again.
    jump(2 * DAY);
    assert_doubted(&storage);
    upkeep::collect(&storage).unwrap().unwrap();
    drop(storage);

    // Until the time is over, the run is doubted, unless the clock goes back.
    let dir = tempfile::tempdir().unwrap();
    let storage = open(dir.path(), DAY);
    jump(2 * DAY);
    assert_doubted(&storage);
    assert_doubted(&storage);
    jump(-2 * DAY);
    upkeep::collect(&storage).unwrap().unwrap();
}
