//! With several writers on one PostgreSQL, the totals equal the rows to the bit, although each
//! writer caches the newest measurements of kettles that other writers change.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows these only inside functions marked as tests"
)]

mod support;

use std::collections::HashSet;

use kettles::device::{DeviceId, Measurement};
use kettles::store::{Batch, Committed, PostgresStore, Store as _};
use kettles::time::Time;
use testkit::postgres::Postgres;

const START: i64 = 1_514_140_200;

/// Pseudo-random generator with the same sequence in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % limit
    }
}

fn device(number: u64) -> DeviceId {
    DeviceId((u128::from(number) << 64).to_be_bytes())
}

/// Returns the measurement of a kettle at a time; it is the same for every writer.
fn measurement(number: u64, second: i64) -> Measurement {
    let seconds = i32::try_from(second).unwrap();
    Measurement {
        device: device(number),
        time: Time::from_seconds(START + second),
        charge_now: i32::try_from(number).unwrap() * 1000 + seconds,
        charge_full: 100_000,
        charge_rate: -0.1,
        ambient_temp: 20.1 + f64::from(seconds) / 7.0,
        water_temp: 40.1 + f64::from(seconds) / 3.0,
        water_level: seconds * 7,
    }
}

fn batch(mut measurements: Vec<Measurement>) -> Batch {
    measurements.sort_by_key(|it| (it.time, it.device));
    Batch {
        measurements,
        ..Batch::default()
    }
}

/// Generates rows of a few kettles around one time: newer, late and duplicate ones.
fn some_rows(random: &mut Random, step: u64, row_count_max: u64, devices: u64) -> Batch {
    let count = 1 + random.below(row_count_max);
    let row = |_| {
        let second = step + random.below(12);
        measurement(random.below(devices), i64::try_from(second).unwrap())
    };
    batch((0..count).map(row).collect())
}

fn open(postgres: &Postgres) -> PostgresStore {
    PostgresStore::open(&postgres.url()).unwrap()
}

#[track_caller]
fn commit(store: &mut PostgresStore, rows: &[(u64, i64)]) -> Committed {
    let rows = rows
        .iter()
        .map(|(number, second)| measurement(*number, *second));
    let committed = store.commit(&batch(rows.collect())).unwrap();
    assert_eq!(committed.totals, store.recount().unwrap());
    committed
}

#[test]
fn changes_by_another_writer_are_noticed() {
    let postgres = Postgres::start();
    let (mut one, mut other) = (open(&postgres), open(&postgres));
    commit(&mut one, &[(1, 10), (2, 10)]);
    commit(&mut one, &[(1, 11), (2, 11)]);
    // The other writer makes the first writer's cache stale. Then the first one writes a newer row,
    // a late row and a duplicate.
    commit(&mut other, &[(1, 20)]);
    let totals = commit(&mut one, &[(1, 15), (2, 15)]).totals;
    assert_eq!(totals.charge, 1020 + 2015);
    commit(&mut other, &[(1, 30)]);
    assert_eq!(commit(&mut one, &[(1, 30)]).duplicate_count, 1);
    assert_eq!(commit(&mut other, &[(2, 15), (2, 16)]).duplicate_count, 1);
    let totals = commit(&mut one, &[(2, 40), (1, 40)]).totals;
    assert_eq!(totals.history.measurement_count, 11);
    assert_eq!(totals.charge, 1040 + 2040);
    // A kettle that neither writer has cached.
    commit(&mut other, &[(3, 50)]);
    let login = Batch {
        devices: vec![device(3), device(4)],
        ..Batch::default()
    };
    assert_eq!(one.commit(&login).unwrap().totals.device_count, 4);
    assert_eq!(other.commit(&login).unwrap().totals.device_count, 4);
    commit(&mut one, &[(3, 51), (4, 51)]);
}

#[test]
fn writers_in_turn_are_exact() {
    let postgres = Postgres::start();
    let mut stores = [open(&postgres), open(&postgres), open(&postgres)];
    let (mut random, mut rows) = (Random(2017), HashSet::new());
    for step in 0..200 {
        // Mostly the same writer commits, so that it uses its cache.
        let writer = if step % 3 == 0 { random.below(3) } else { 0 };
        let batch = some_rows(&mut random, step, 5, 4);
        let fresh: HashSet<_> = batch
            .measurements
            .iter()
            .map(|it| (it.time, it.device))
            .collect();
        let fresh_count = fresh.difference(&rows).count();
        let store = &mut stores[usize::try_from(writer).unwrap()];
        let committed = store.commit(&batch).unwrap();
        assert_eq!(
            batch.measurements.len() - committed.duplicate_count,
            fresh_count
        );
        rows.extend(fresh);
        assert_eq!(
            committed.totals.history.measurement_count,
            rows.len() as u64
        );
        assert_eq!(committed.totals, store.recount().unwrap(), "step {step}");
    }
}

#[test]
fn writers_at_once_are_exact() {
    let postgres = Postgres::start();
    let work = |seed: u64| {
        let mut store = open(&postgres);
        let mut random = Random(seed);
        let mut rows = HashSet::new();
        for step in 0..150 {
            let mut batch = some_rows(&mut random, step, 40, 30);
            if seed == 2 && step % 20 == 0 {
                batch.devices = (0..3).map(|_| device(30 + random.below(50))).collect();
                batch.devices.sort_unstable();
            }
            store.commit(&batch).unwrap();
            rows.extend(batch.measurements.iter().map(|it| (it.time, it.device)));
        }
        rows
    };
    let mut rows = std::thread::scope(|scope| {
        let other = scope.spawn(|| work(2));
        let rows = work(1);
        [rows, other.join().unwrap()]
    });
    let [one, other] = &mut rows;
    one.extend(other.iter());
    let mut store = open(&postgres);
    let totals = store.load().unwrap().totals;
    assert_eq!(totals.history.measurement_count, one.len() as u64);
    assert_eq!(totals, store.recount().unwrap());
}

#[test]
fn the_newest_measurements_change_in_place() {
    let postgres = Postgres::start();
    let mut store = open(&postgres);
    let (devices, commits) = (500, 20);
    for second in 0..=commits {
        let rows = (0..devices).map(|number| measurement(number, second));
        store.commit(&batch(rows.collect())).unwrap();
    }
    drop(store);
    let mut client = postgres.client();
    let sql = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'device'";
    support::wait_until("what was done is counted", || {
        let row = client.query_one(sql, &[]).unwrap();
        let (updated, in_place) = (row.get::<_, i64>(0), row.get::<_, i64>(1));
        assert_eq!(updated, in_place);
        updated == i64::try_from(devices).unwrap() * (commits + 1)
    });
}

#[test]
fn a_partition_dropped_by_another_writer_is_recreated() {
    let postgres = Postgres::start();
    let (mut keeper, mut other) = (open(&postgres), open(&postgres));
    let end = Time::from_seconds(START + 3 * 86_400);
    // Batches of one row and of many rows use different INSERT statements.
    for (round, count) in (0..).zip([1, 200, 1]) {
        let rows = |second| {
            let rows = (0..count).map(move |number| measurement(number, second));
            batch(rows.collect())
        };
        keeper.commit(&rows(2 * round)).unwrap();
        while !other.prune(end).unwrap().is_done {}
        let mut client = postgres.client();
        let sql = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'measurement'::regclass";
        assert_eq!(client.query_one(sql, &[]).unwrap().get::<_, i64>(0), 0);
        let totals = keeper.commit(&rows(2 * round + 1)).unwrap().totals;
        assert_eq!(totals, keeper.recount().unwrap());
    }
}
