//! When the server or the database is killed under load, each acknowledged measurement is stored
//! once, and the statistics equal the rows to the bit. The environment variable `KETTLES_KILLS`
//! sets the number of kills; `--nocapture` shows the counts.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows these only inside functions marked as tests"
)]

mod support;

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use support::Kettles;
use support::fleet::{Fleet, device};
use testkit::postgres::Postgres;

/// Number of kills; `KETTLES_KILLS` overrides it.
const KILL_COUNT: u32 = 10;

fn kill_count() -> u32 {
    let count = std::env::var("KETTLES_KILLS");
    count.map_or(KILL_COUNT, |count| count.parse().unwrap())
}

#[test]
fn sqlite_loses_nothing_when_the_server_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("kettles.db");
    let mut kettles = Kettles::start(folder.path(), &[]);
    let fleet = Fleet::start(kettles.addr);
    for _ in 0..kill_count() {
        fleet.wait_for(100);
        kettles.kill();
        kettles = Kettles::start(folder.path(), &[]);
        fleet.moved(kettles.addr);
    }
    fleet.wait_for(100);
    let sent = fleet.end();
    println!(
        "{} kills, {} acknowledged",
        kill_count(),
        sent.iter().sum::<u64>()
    );
    let totals = kettles.statistics();
    kettles.kill();
    let connection = rusqlite::Connection::open(&database).unwrap();
    let mut rows = connection
        .prepare(
            "SELECT lower(hex(device)), count(*), count(DISTINCT time) FROM measurement GROUP BY 1",
        )
        .unwrap();
    let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, (row.get(1)?, row.get(2)?)));
    let found = rows.query_map([], row).unwrap().map(Result::unwrap);
    assert_once(&sent, &found.collect());
    assert_eq!(totals["statsMeasurementCount"], sent.iter().sum::<u64>());
    check(&database);
}

#[test]
fn postgresql_loses_nothing_when_server_or_database_is_killed() {
    let mut postgres = Postgres::start();
    let folder = tempfile::tempdir().unwrap();
    let url = postgres.url();
    let start = || Kettles::start(folder.path(), &["--database", &url]);
    let mut kettles = start();
    let fleet = Fleet::start(kettles.addr);
    for round in 0..kill_count() {
        fleet.wait_for(50);
        // PostgreSQL is killed less often, because it restarts slowly.
        if round % 4 != 3 {
            kettles.kill();
            kettles = start();
            fleet.moved(kettles.addr);
        } else {
            postgres.stop_at_once();
            postgres.resume();
        }
    }
    fleet.wait_for(50);
    let sent = fleet.end();
    assert_eq!(
        kettles.statistics()["statsMeasurementCount"],
        sent.iter().sum::<u64>()
    );
    let rows = postgres.client().query(
        "SELECT replace(device_id::text, '-', ''), count(*), count(DISTINCT time)
         FROM measurement GROUP BY 1",
        &[],
    );
    let rows = rows.unwrap();
    let found = rows
        .iter()
        .map(|row| (row.get(0), (row.get(1), row.get(2))));
    assert_once(&sent, &found.collect());
    check(Path::new(&url));
}

/// Asserts that all acknowledged measurements of each kettle are stored, and none twice.
#[track_caller]
fn assert_once(sent: &[u64], found: &HashMap<String, (i64, i64)>) {
    let expected = (0..).zip(sent).map(|(number, count)| {
        let count = i64::try_from(*count).unwrap();
        (device(number).replace('-', ""), (count, count))
    });
    assert_eq!(found, &expected.collect());
}

#[track_caller]
fn check(database: &Path) {
    let mut check = Command::new(env!("CARGO_BIN_EXE_kettles"));
    let output = check
        .arg("check")
        .arg("--database")
        .arg(database)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}
