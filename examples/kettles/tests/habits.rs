//! `GET /command` follows from the stored measurements of a kettle: it is filled before it boils
//! dry, and charged in hours in which it never boils. An operator's command takes precedence, and
//! the history is kept over a restart.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it only inside functions marked as tests"
)]

mod support;

use std::path::Path;

use support::{Kettles, measurement};
use testkit::postgres::Postgres;

const COOK: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";
const GUEST: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
const NEW: &str = "16fd2706-8baf-433b-82eb-8c7fada847da";

const NOTHING: &str =
    r#"{"charge":"NoChargeBattery","fill":"NoFillReservoir","flush":{"tag":"NoFlushReservoir"}}"#;
const CHARGE: &str =
    r#"{"charge":"ChargeBattery","fill":"NoFillReservoir","flush":{"tag":"NoFlushReservoir"}}"#;
const FILL: &str =
    r#"{"charge":"NoChargeBattery","fill":"FillReservoir","flush":{"tag":"NoFlushReservoir"}}"#;
const FLUSH: &str = r#"{"charge":"NoChargeBattery","fill":"NoFillReservoir","flush":{"tag":"FlushReservoir","contents":2.5}}"#;

fn command(kettles: &Kettles, device: &str) -> String {
    kettles.client().get("/command", Some(device)).text()
}

/// Stores a measurement of each hour of a day, in which the battery is half full.
fn live_a_day(kettles: &Kettles, device: &str, hours: u32, water_temp: f64, water_level: i32) {
    let mut client = kettles.client();
    for hour in 0..hours {
        let time = format!("2017-12-24T{hour:02}:30:00Z");
        let body = measurement(&time, 50, water_temp, water_level);
        assert_eq!(client.post("/measurement", Some(device), &body).status, 200);
    }
}

fn measure(kettles: &Kettles, device: &str, minute: u32, charge: i32, water_level: i32) {
    let time = format!("2017-12-25T00:{minute:02}:00Z");
    let body = measurement(&time, charge, 21.0, water_level);
    let answer = kettles.client().post("/measurement", Some(device), &body);
    assert_eq!(answer.status, 200);
}

/// The kettles boil in all hours or in none, so the time of the test does not matter.
fn the_history_decides(folder: &Path, store: &[&str]) {
    let token = folder.join("token");
    std::fs::write(&token, "sesame").unwrap();
    let options = [store, &["--admin-token", token.to_str().unwrap()]].concat();
    let kettles = Kettles::start(folder, &options);
    live_a_day(&kettles, COOK, 24, 95.0, 100);
    live_a_day(&kettles, GUEST, 24, 21.0, 100);
    // Before it has measurements of all hours, a kettle gets what it got in 2017.
    live_a_day(&kettles, NEW, 23, 95.0, 100);
    assert_eq!(command(&kettles, COOK), FILL);
    assert_eq!(command(&kettles, GUEST), CHARGE);
    assert_eq!(command(&kettles, NEW), NOTHING);
    // A command ends when a measurement shows its effect.
    measure(&kettles, COOK, 1, 50, 900);
    measure(&kettles, GUEST, 1, 90, 100);
    assert_eq!(command(&kettles, COOK), NOTHING);
    assert_eq!(command(&kettles, GUEST), NOTHING);
    measure(&kettles, COOK, 2, 19, 900);
    assert_eq!(command(&kettles, COOK), CHARGE);
    // An operator's command comes first, until it is confirmed.
    let path = format!("/devices/{COOK}/command");
    let field = "Authorization: Bearer sesame";
    let mut client = kettles.client();
    client.send("POST", &path, None, &[field], r#"{"flush":2.5}"#);
    assert_eq!(client.receive().status, 201);
    assert_eq!(command(&kettles, COOK), FLUSH);
    measure(&kettles, COOK, 3, 19, 900);
    assert_eq!(command(&kettles, COOK), CHARGE);
    // After a restart, the next measurement is needed, but not another day.
    assert!(kettles.terminate().success());
    let kettles = Kettles::start(folder, &options);
    assert_eq!(command(&kettles, COOK), NOTHING);
    measure(&kettles, COOK, 4, 50, 100);
    measure(&kettles, GUEST, 2, 89, 100);
    assert_eq!(command(&kettles, COOK), FILL);
    assert_eq!(command(&kettles, GUEST), CHARGE);
    assert!(kettles.terminate().success());
}

#[test]
fn the_history_decides_with_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    the_history_decides(folder.path(), &[]);
}

#[test]
fn the_history_decides_with_postgresql() {
    let (folder, postgres) = (tempfile::tempdir().unwrap(), Postgres::start());
    the_history_decides(folder.path(), &["--database", &postgres.url()]);
}

/// The generated history of `seed` has habits, too.
#[test]
fn a_seeded_kettle_has_a_history() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("kettles.db");
    let mut seed = std::process::Command::new(env!("CARGO_BIN_EXE_kettles"));
    seed.args(["seed", "--devices", "1", "--rows", "2000", "--every", "5m"]);
    let output = seed.arg("--database").arg(&database).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let store = rusqlite::Connection::open(&database).unwrap();
    let query = "SELECT seen, boiled FROM habit";
    let habit = store.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?)));
    let (seen, boiled): (u32, u32) = habit.unwrap();
    assert_eq!(seen, (1 << 24) - 1);
    assert!(boiled != 0 && boiled != seen, "{boiled:x}");
}
