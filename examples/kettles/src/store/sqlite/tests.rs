use super::*;

const START: i64 = 1_514_140_200;

fn device(number: usize) -> DeviceId {
    DeviceId((number as u128 * 0x9e37_79b9_7f4a_7c15).to_be_bytes())
}

fn measurement(device_number: usize, second: i64) -> Measurement {
    let number = i32::try_from(device_number).unwrap();
    let second_part = i32::try_from(second % 97).unwrap();
    Measurement {
        device: device(device_number),
        time: Time::from_seconds(START + second),
        charge_now: number + second_part,
        charge_full: 100_000,
        charge_rate: -0.1,
        ambient_temp: 20.1,
        water_temp: 20.1 + f64::from(second_part) / 3.0,
        water_level: second_part * 7,
    }
}

fn batch(measurements: impl Iterator<Item = Measurement>) -> Batch {
    let mut measurements: Vec<_> = measurements.collect();
    measurements.sort_by_key(|it| (it.time, it.device));
    Batch {
        measurements,
        ..Batch::default()
    }
}

fn newest(store: &SqliteStore) -> HashMap<DeviceId, Option<Latest>> {
    let known = store.devices.iter();
    known.map(|(id, known)| (*id, known.latest)).collect()
}

/// Reopens the store. It writes nothing of its own when dropped, as in a crash.
fn reopened(path: &Path, store: SqliteStore) -> SqliteStore {
    let (totals, devices) = (store.totals.clone(), newest(&store));
    drop(store);
    let mut store = SqliteStore::open(path).unwrap();
    assert_eq!(store.load().unwrap().totals, totals);
    assert_eq!(newest(&store), devices);
    assert_eq!(store.recount().unwrap(), totals);
    store
}

#[test]
fn newest_measurements_survive_a_crash_at_any_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kettles.db");
    let mut store = SqliteStore::open(&path).unwrap();
    store.load().unwrap();
    let count = 2 * CHECKPOINT_LEN + 100;
    for second in 0..3 {
        let all = batch((0..count).map(|number| measurement(number, second)));
        assert_eq!(store.commit(&all).unwrap().duplicate_count, 0);
    }
    store = reopened(&path, store);
    let changes = |store: &SqliteStore| -> i64 {
        let count = "SELECT count(*) FROM change";
        store
            .connection
            .query_row(count, [], |row| row.get(0))
            .unwrap()
    };
    assert_eq!(changes(&store), 3);
    store.checkpoint.started = Instant::now().checked_sub(CHECKPOINT_TIME).unwrap();
    // Three commits checkpoint all devices; one device keeps sending meanwhile.
    for second in 3..6 {
        assert!(changes(&store) >= 3);
        store
            .commit(&batch([measurement(7, second)].into_iter()))
            .unwrap();
        let other = SqliteStore::open_to_read(&path).unwrap().recount().unwrap();
        assert_eq!(other, store.totals);
    }
    assert_eq!(changes(&store), 3, "those that came meanwhile");
    store = reopened(&path, store);
    store
        .commit(&batch([measurement(8, 9)].into_iter()))
        .unwrap();
    reopened(&path, store);
}

#[test]
fn duplicate_and_late_rows_are_counted_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kettles.db");
    let mut store = SqliteStore::open(&path).unwrap();
    store.load().unwrap();
    let rows = [(1, 50), (2, 50), (1, 50), (1, 40)].map(|(number, at)| measurement(number, at));
    let committed = store.commit(&batch(rows.into_iter())).unwrap();
    assert_eq!(committed.duplicate_count, 1);
    let again = store.commit(&batch(rows.into_iter())).unwrap();
    assert_eq!(again.duplicate_count, 4);
    assert_eq!(again.totals, committed.totals);
    assert_eq!(again.totals.history.measurement_count, 3);
    assert_eq!(again.totals.device_count, 2);
    let newest = rows[..2].iter().map(|it| i128::from(it.charge_now));
    assert_eq!(again.totals.charge, newest.sum::<i128>());
    reopened(&path, store);
}

#[test]
fn a_failed_commit_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kettles.db");
    let mut store = SqliteStore::open(&path).unwrap();
    store.load().unwrap();
    store
        .commit(&batch([measurement(1, 1)].into_iter()))
        .unwrap();
    store.connection.busy_timeout(Duration::ZERO).unwrap();
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let next = batch([measurement(1, 2), measurement(2, 2)].into_iter());
    let (totals, devices) = (store.totals.clone(), newest(&store));
    store.commit(&next).unwrap_err();
    assert_eq!((&store.totals, newest(&store)), (&totals, devices.clone()));
    other.execute_batch("ROLLBACK").unwrap();
    // The last row fails, so the whole batch is rolled back.
    let full = "CREATE TRIGGER full BEFORE INSERT ON measurement WHEN NEW.charge_full = -1
                BEGIN SELECT RAISE(ABORT, 'full'); END";
    other.execute_batch(full).unwrap();
    let bad = Measurement {
        charge_full: -1,
        ..measurement(3, 3)
    };
    let worse = batch([measurement(1, 2), measurement(2, 2), bad].into_iter());
    store.commit(&worse).unwrap_err();
    assert_eq!((&store.totals, newest(&store)), (&totals, devices.clone()));
    assert_eq!(store.commit(&next).unwrap().duplicate_count, 0);
    reopened(&path, store);
}

#[test]
fn pruned_rows_remain_in_the_totals() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kettles.db");
    let mut store = SqliteStore::open(&path).unwrap();
    store.load().unwrap();
    // Most devices are silent from then on, and lose all their rows.
    let rows = (0..PRUNE_LEN + 10).map(|number| measurement(number, 1));
    let newer = (0..5).map(|number| measurement(number, 100));
    store.commit(&batch(rows.chain(newer))).unwrap();
    let totals = store.totals.clone();
    let before = Time::from_seconds(START + 100);
    let first = store.prune(before).unwrap();
    assert_eq!((first.row_count, first.is_done), (PRUNE_LEN, false));
    store = reopened(&path, store);
    let second = store.prune(before).unwrap();
    assert_eq!((second.row_count, second.is_done), (10, true));
    assert_eq!(store.prune(before).unwrap().row_count, 0);
    store = reopened(&path, store);
    assert_eq!(store.totals, totals);
    let count = "SELECT count(*) FROM measurement";
    let left: i64 = store
        .connection
        .query_row(count, [], |row| row.get(0))
        .unwrap();
    assert_eq!(left, 5);
}

#[test]
fn a_store_has_one_writer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kettles.db");
    let store = SqliteStore::open(&path).unwrap();
    assert!(matches!(SqliteStore::open(&path), Err(StoreError::InUse)));
    let [symbolic, hard] = ["symbolic.db", "hard.db"].map(|name| folder.path().join(name));
    std::os::unix::fs::symlink(&path, &symbolic).unwrap();
    std::fs::hard_link(&path, &hard).unwrap();
    for other in [symbolic, hard] {
        assert!(matches!(SqliteStore::open(&other), Err(StoreError::InUse)));
    }
    SqliteStore::open_to_read(&path).unwrap().recount().unwrap();
    drop(store);
    SqliteStore::open(&path).unwrap();
}

#[test]
fn newest_measurements_are_written_in_order_of_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kettles.db");
    let mut store = SqliteStore::open(&path).unwrap();
    store.load().unwrap();
    // Two rounds: the first inserts the rows of `device`, the second updates them.
    for second in [1, 100] {
        // The devices of a commit are not neighbours in the table.
        for first in 0..40 {
            let some = (first..40 * CHECKPOINT_LEN).step_by(40);
            let some = some.map(|number| measurement(number, second));
            store.commit(&batch(some)).unwrap();
        }
        store.checkpoint.started = Instant::now().checked_sub(CHECKPOINT_TIME).unwrap();
        let log_len = || {
            std::fs::metadata(path.with_extension("db-wal"))
                .unwrap()
                .len()
        };
        let mut longest = 0;
        for second in second + 1.. {
            // Truncate the log, so that its length is that of one commit.
            let truncate = "PRAGMA wal_checkpoint(TRUNCATE)";
            store
                .connection
                .query_row(truncate, [], |_| Ok(()))
                .unwrap();
            store
                .commit(&batch([measurement(7, second)].into_iter()))
                .unwrap();
            longest = log_len().max(longest);
            if store.checkpoint.leaving.is_empty() {
                break;
            }
        }
        // 500 devices of 60 bytes, and the pages of a commit.
        assert!(longest < 30 * 4096, "{longest} bytes");
    }
    reopened(&path, store);
}
