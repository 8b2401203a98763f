//! The replay of the 2017 server behaves like the original; for example, it does not recognise
//! duplicates.

mod support;

use std::process::Command;

use support::{Kettles, measurement};
use testkit::postgres::Postgres;

#[test]
fn the_replayed_server_behaves_as_in_2017() {
    let postgres = Postgres::start();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kettles"));
    command.args(["replay-2017", "--port=0", "--database", &postgres.url()]);
    let kettles = Kettles::spawn(command.args(["--pool=4", "--handler-cost=100"]));
    let mut client = kettles.client();
    assert_eq!(client.get("/command", None).status, 401);
    let kettle = kettles.login();
    assert_eq!(client.get("/command", Some(&kettle)).status, 200);
    let stranger = "0f8fad5b-d9cb-469f-a165-70867728950e";
    for device in [&kettle, &kettle, stranger] {
        let body = measurement("2017-12-24T18:30:00Z", 40, 80.0, 700);
        let answer = client.post("/measurement", Some(device), &body);
        assert_eq!((answer.status, &*answer.text()), (200, ""));
    }
    let statistics = kettles.statistics();
    assert_eq!(statistics["statsMeasurementCount"], 3);
    assert_eq!(statistics["statsNumDevices"], 2);
    // As in the original, a device with two rows at its newest time counts twice.
    assert_eq!(statistics["statsTotalBatteryCharge"], 120);
    assert_eq!(
        statistics["statsMeanTemperature"][0][1],
        serde_json::json!([80.0, 0.0])
    );
    assert_eq!(kettles.metric("app_measurements_total"), Some(3.0));
    assert_eq!(kettles.metric("replay_waiting_requests"), Some(0.0));
    assert_eq!(client.post("/measurement", Some(&kettle), "{}").status, 400);
    assert!(kettles.terminate().success());
}
