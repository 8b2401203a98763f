//! With PostgreSQL, responses are the same as with SQLite, even if several servers share a
//! database.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows these only inside functions marked as tests"
)]

mod support;

use std::process::Command;

use support::{Kettles, measurement, wait_until};
use testkit::postgres::Postgres;

const EVENING: &str = "2017-12-24T18:30:00Z";
const NIGHT: &str = "2017-12-24T23:59:59.999999Z";

#[track_caller]
fn run(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kettles"));
    let output = command.args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn two_servers_share_a_database() {
    let postgres = Postgres::start();
    let folder = tempfile::tempdir().unwrap();
    let url = postgres.url();
    let options = ["--database", url.as_str()];
    let (one, other) = (
        Kettles::start(folder.path(), &options),
        Kettles::start(folder.path(), &options),
    );
    let kettle = one.login();
    let post = |kettles: &Kettles, time: &str, charge| {
        let body = measurement(time, charge, 80.1, 700);
        let answer = kettles.client().post("/measurement", Some(&kettle), &body);
        assert_eq!((answer.status, &*answer.text()), (200, ""));
    };
    post(&one, NIGHT, 40);
    // This measurement is late for one server, and a duplicate for both.
    post(&other, EVENING, 50);
    post(&one, EVENING, 50);
    post(&other, NIGHT, 40);
    for kettles in [&one, &other] {
        // A commit also loads the totals of other servers, so this server commits after the other
        // one.
        post(kettles, EVENING, 50);
        let statistics = kettles.statistics();
        assert_eq!(statistics["statsMeasurementCount"], 2);
        assert_eq!(statistics["statsNumDevices"], 1);
        assert_eq!(statistics["statsTotalBatteryCharge"], 40);
        assert_eq!(statistics["statsMeanTemperature"][0][0], 18);
        assert_eq!(statistics["statsMeanTemperature"][1][0], 23);
    }
    assert!(run(&["check", options[0], options[1]]).contains("2 measurements of 1 kettles"));
    // The totals use a kettle's newest measurement, whichever server received it.
    post(&other, "2017-12-25T00:00:00Z", 30);
    assert_eq!(other.statistics()["statsTotalBatteryCharge"], 30);
    one.kill();
    let again = Kettles::start(folder.path(), &options);
    assert_eq!(again.statistics(), other.statistics());
    run(&["check", options[0], options[1]]);
}

#[test]
fn retention_does_not_change_the_statistics() {
    let postgres = Postgres::start();
    let url = postgres.url();
    let week = ["--from=2017-12-18T00:00:00Z", "--to=2017-12-25T00:00:00Z"];
    let said = run(&[
        "seed",
        "-e",
        &url,
        "--devices=5",
        "--every=15m",
        week[0],
        week[1],
    ]);
    assert!(said.contains("3360 new rows"), "{said}");
    // Sends the same measurements again, in one transaction.
    let again = run(&[
        "seed",
        "-e",
        &url,
        "--devices=5",
        "--every=15m",
        week[0],
        week[1],
    ]);
    assert!(again.contains("kettles: 0 new rows"), "{again}");
    run(&["check", "-e", &url]);
    let folder = tempfile::tempdir().unwrap();
    let kettles = Kettles::start(folder.path(), &["--database", &url, "--retain", "1"]);
    let before = kettles.statistics();
    assert_eq!(before["statsMeasurementCount"], 3360);
    let mut client = postgres.client();
    wait_until("all measurements are deleted", || {
        let row = client
            .query_one("SELECT count(*) FROM measurement", &[])
            .unwrap();
        row.get::<_, i64>(0) == 0
    });
    wait_until("their partitions are dropped", || {
        let sql = "SELECT count(*) FROM pg_inherits JOIN pg_class ON oid = inhparent
             WHERE relname = 'measurement'";
        client.query_one(sql, &[]).unwrap().get::<_, i64>(0) == 0
    });
    assert_eq!(kettles.statistics(), before);
    run(&["check", "-e", &url]);
    drop(kettles);
    // A measurement of a dropped day creates its partition again.
    let late = ["--from=2017-12-20T00:00:00Z", "--to=2017-12-20T01:00:00Z"];
    run(&[
        "seed",
        "-e",
        &url,
        "--devices=1",
        "--every=1h",
        late[0],
        late[1],
        "--seed=7",
    ]);
    run(&["check", "-e", &url]);
    client
        .execute("UPDATE totals SET pruned = totals WHERE writer = 0", &[])
        .unwrap();
    let mut check = Command::new(env!("CARGO_BIN_EXE_kettles"));
    assert!(
        !check
            .args(["check", "-e", &url])
            .output()
            .unwrap()
            .status
            .success()
    );
}

#[test]
fn without_permission_for_timescaledb_partitions_are_used() {
    let mut postgres = Postgres::start();
    // The extension seems installed and preloaded, but it is empty.
    postgres.offer("timescaledb");
    let mut client = postgres.client();
    let rights = "CREATE ROLE tea LOGIN; GRANT CREATE ON SCHEMA public TO tea";
    client.batch_execute(rights).unwrap();
    let url = postgres.url().replace("user=postgres", "user=tea");
    let day = ["--from=2017-12-24T00:00:00Z", "--to=2017-12-24T01:00:00Z"];
    let seed = [
        "seed",
        "-e",
        &url,
        "--devices=2",
        "--every=15m",
        day[0],
        day[1],
    ];
    let said = run(&seed);
    let why = "permission denied to create extension";
    assert!(
        said.contains("cannot use TimescaleDB; using partitions instead"),
        "{said}"
    );
    assert!(said.contains(why), "{said}");
    let sql = "SELECT count(*) FROM pg_inherits JOIN pg_class ON oid = inhparent
         WHERE relname = 'measurement'";
    assert_eq!(client.query_one(sql, &[]).unwrap().get::<_, i64>(0), 1);
    // If a partitioned table exists, the server does not look for TimescaleDB again.
    assert!(!run(&seed).contains("TimescaleDB"));
    run(&["check", "-e", &url]);
}
