//! Requests to the endpoints of the original server of 2017 get the same bytes as from it: names,
//! types, nesting and errors are unchanged.

mod support;

use serde_json::json;
use support::{Kettles, measurement};

const KETTLE: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";

#[test]
fn a_login_makes_a_name_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let kettles = Kettles::start(folder.path(), &[]);
    let answer = kettles
        .client()
        .post("/login", None, r#"{"username":"earl grey"}"#);
    assert_eq!(answer.status, 200);
    let name = answer.json()["username"].as_str().unwrap().to_owned();
    assert_eq!(answer.text(), format!("{{\"username\":\"{name}\"}}"));
    assert_eq!((name.len(), name.as_bytes()[14]), (36, b'4'), "{name}");
    assert_ne!(kettles.login(), name);
    assert_eq!(kettles.statistics()["statsNumDevices"], 2);
    for body in ["", "{}", r#"{"username":7}"#, "earl grey"] {
        let answer = kettles.client().post("/login", None, body);
        assert_eq!(answer.status, 400, "{body}");
        assert!(answer.json()["error"].is_string());
    }
}

#[test]
fn unauthenticated_requests_get_the_errors_of_the_original() {
    let folder = tempfile::tempdir().unwrap();
    let kettles = Kettles::start(folder.path(), &[]);
    let body = measurement("2017-12-24T18:30:00Z", 50, 95.5, 700);
    let mut client = kettles.client();
    for method in ["GET /command", "POST /measurement", "POST /measurements"] {
        let (method, path) = method.split_once(' ').unwrap();
        let body = if method == "POST" { body.as_str() } else { "" };
        client.send(method, path, None, &[], body);
        let answer = client.receive();
        assert_eq!(
            (answer.status, &*answer.text()),
            (401, "Missing auth header")
        );
        client.send(method, path, Some("kettle"), &[], body);
        let answer = client.receive();
        assert_eq!((answer.status, &*answer.text()), (403, "Invalid Cookie"));
        // The identity must be in a header field with this name; a cookie with this name is
        // ignored.
        let cookie = format!("Cookie: servant-auth-cookie={KETTLE}");
        client.send(method, path, None, &[&cookie], body);
        assert_eq!(client.receive().status, 401);
    }
    assert_eq!(kettles.statistics()["statsMeasurementCount"], 0);
    assert_eq!(kettles.statistics()["statsNumDevices"], 0);
}

#[test]
fn a_kettle_without_commands_gets_the_original_response() {
    let folder = tempfile::tempdir().unwrap();
    let kettles = Kettles::start(folder.path(), &[]);
    let answer = kettles.client().get("/command", Some(KETTLE));
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("Content-Type"), Some("application/json"));
    assert_eq!(
        answer.text(),
        r#"{"charge":"NoChargeBattery","fill":"NoFillReservoir","flush":{"tag":"NoFlushReservoir"}}"#
    );
    // Read requests do not register a kettle.
    assert_eq!(kettles.statistics()["statsNumDevices"], 0);
}

#[test]
fn statistics_are_computed_from_the_measurements() {
    let folder = tempfile::tempdir().unwrap();
    let kettles = Kettles::start(folder.path(), &[]);
    assert_eq!(
        kettles.client().get("/statistics", None).text(),
        r#"{"statsMeasurementCount":0,"statsNumDevices":0,"statsTotalBatteryCharge":0,"statsTotalWaterVolume":0,"statsMeanTemperature":[],"statsTotalWaterEnergy":0.0}"#
    );
    let other = kettles.login();
    // A UUID that the server did not issue is accepted, and an `id` in the body is ignored.
    let mut body = measurement("2017-12-24T18:30:00Z", 50, 90.5, 1000);
    body.insert_str(1, &format!(r#""id":"{other}","#));
    let answer = kettles.client().post("/measurement", Some(KETTLE), &body);
    assert_eq!((answer.status, &*answer.text()), (200, ""));
    let at = |time, charge, temp, level| {
        let body = measurement(time, charge, temp, level);
        let answer = kettles.client().post("/measurement", Some(KETTLE), &body);
        assert_eq!(answer.status, 200, "{answer:?}");
    };
    at("2017-12-24T18:31:00Z", 40, 80.5, 900);
    // A late measurement enters the history, but does not change the kettle's current charge and
    // volume.
    at("2017-12-24T07:00:00+01:00", 99, 20.5, 1);
    // A second measurement with the time of an earlier one is a duplicate and does not count.
    at("2017-12-24T18:31:00Z", 40, 80.5, 900);
    let expected = json!({
        "statsMeasurementCount": 3,
        "statsNumDevices": 2,
        "statsTotalBatteryCharge": 40,
        "statsTotalWaterVolume": 900,
        "statsMeanTemperature": [[6, [20.5, 0.0]], [18, [85.5, 5.0]]],
        "statsTotalWaterEnergy": (80.5 - 20.5) * 900.0 * 4.186,
    });
    assert_eq!(kettles.statistics(), expected);
    assert_eq!(kettles.metric("app_measurements_total"), Some(3.0));
    assert_eq!(kettles.metric("kettles_ingest_duplicates_total"), Some(1.0));
    // All data survives a restart.
    assert!(kettles.terminate().success());
    let kettles = Kettles::start(folder.path(), &[]);
    assert_eq!(kettles.statistics(), expected);
}

#[test]
fn metrics_have_the_names_of_the_original() {
    let folder = tempfile::tempdir().unwrap();
    let kettles = Kettles::start(folder.path(), &[]);
    let mut client = kettles.client();
    assert_eq!(client.get("/command", None).status, 401);
    assert_eq!(client.get("/command", Some(KETTLE)).status, 200);
    let answer = client.get("/metrics", None);
    let text = answer.text();
    for line in [
        "# TYPE app_measurements_total counter",
        "# TYPE http_request_duration_seconds histogram",
        r#"http_request_duration_seconds_count{handler="command",method="GET",status_code="200"} 1"#,
        r#"http_request_duration_seconds_count{handler="command",method="GET",status_code="401"} 1"#,
        "kettles_ingest_queue_limit 65536",
    ] {
        assert!(text.lines().any(|other| other == line), "{line}\n{text}");
    }
}
