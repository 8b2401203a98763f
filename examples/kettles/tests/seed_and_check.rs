//! A seeded store has exact totals, and `check` finds every wrong total.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows these only inside functions marked as tests"
)]

mod support;

use std::path::Path;
use std::process::{Command, Output};

use support::Kettles;

fn run(subcommand: &str, database: &Path, options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kettles"));
    command
        .arg(subcommand)
        .arg("--database")
        .arg(database)
        .args(options);
    command.output().unwrap()
}

fn said(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

const WEEK: [&str; 6] = [
    "--from=2017-12-18T00:00:00Z",
    "--to=2017-12-25T00:00:00Z",
    "--devices=5",
    "--every=5m",
    "--seed=1",
    "--preset=demo",
];

#[test]
fn a_seeded_history_is_stored_once_with_exact_totals() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("kettles.db");
    let first = run("seed", &database, &WEEK);
    assert!(first.status.success(), "{first:?}");
    assert!(said(&first).contains("10080 new rows"), "{first:?}");
    let again = run("seed", &database, &WEEK);
    assert!(said(&again).contains(" 0 new rows"), "{again:?}");
    let checked = run("check", &database, &[]);
    assert!(checked.status.success(), "{checked:?}");
    assert!(
        said(&checked).contains("10080 measurements of 5 kettles"),
        "{checked:?}"
    );
    // The server shows the seeded data, even while a check runs.
    let kettles = Kettles::start(folder.path(), &[]);
    let statistics = kettles.statistics();
    assert_eq!(statistics["statsMeasurementCount"], 10_080);
    assert_eq!(statistics["statsNumDevices"], 5);
    assert_eq!(
        statistics["statsMeanTemperature"].as_array().unwrap().len(),
        24
    );
    assert!(run("check", &database, &[]).status.success());
}

#[test]
fn check_finds_a_changed_bit_in_the_totals() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("kettles.db");
    assert!(run("seed", &database, &WEEK).status.success());
    let connection = rusqlite::Connection::open(&database).unwrap();
    let change = |sql: &str| {
        assert_eq!(connection.execute(sql, []), Ok(1));
        let output = run("check", &database, &[]);
        assert!(!output.status.success(), "{sql}");
        assert!(
            said(&output).contains("totals and rows differ"),
            "{output:?}"
        );
    };
    // The smallest possible change of a double, which changes no value of `/statistics`.
    let row = "WHERE (time, device) IN (SELECT time, device FROM measurement LIMIT 1)";
    change(&format!(
        "UPDATE measurement SET water_temp = water_temp + 4e-15 {row}"
    ));
    change(&format!("DELETE FROM measurement {row}"));
}

#[test]
fn nonsense_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("kettles.db");
    for options in [
        ["--every=0s", "--devices=1"],
        ["--every=5", "--devices=1"],
        ["--devices=0", "--every=5m"],
        ["--from=yesterday", "--devices=1"],
        ["--from=2017-12-24T00:00:00Z", "--to=2017-12-24T00:00:00Z"],
        ["--from=2017-12-24T00:00:00Z", "--rows=7"],
    ] {
        let output = run("seed", &database, &options);
        assert!(!output.status.success(), "{options:?}");
    }
    assert!(
        !run("check", &folder.path().join("nowhere.db"), &[])
            .status
            .success()
    );
}

#[test]
fn databases_of_other_programs_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("others.db");
    let connection = rusqlite::Connection::open(&database).unwrap();
    connection
        .execute_batch("CREATE TABLE users (name)")
        .unwrap();
    let output = run("seed", &database, &WEEK);
    assert!(!output.status.success(), "{output:?}");
    assert!(
        said(&output).contains("tables of another program"),
        "{output:?}"
    );
    let tables = "SELECT count(*) FROM sqlite_schema";
    let count: i64 = connection.query_row(tables, [], |row| row.get(0)).unwrap();
    assert_eq!(count, 1);
    let output = run("seed", Path::new("mysql://127.0.0.1/kettles"), &WEEK);
    assert!(!output.status.success(), "{output:?}");
    assert!(
        said(&output).contains("unknown store scheme mysql://"),
        "{output:?}"
    );
}

#[test]
fn special_sqlite_names_are_ordinary_file_names() {
    let folder = tempfile::tempdir().unwrap();
    for name in [":memory:", "file:kettles?mode=memory"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kettles"));
        command.current_dir(folder.path());
        command.args(["seed", "--database", name]).args(WEEK);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let checked = run("check", &folder.path().join(name), &[]);
        assert!(said(&checked).contains("10080 measurements"), "{checked:?}");
    }
}
