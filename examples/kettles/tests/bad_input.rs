//! Invalid input gets the right error status, and does not change the statistics.

mod support;

use support::{Kettles, measurement};

const KETTLE: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";
const TIME: &str = "2017-12-24T18:30:00Z";

#[test]
fn invalid_measurements_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let kettles = Kettles::start(folder.path(), &[]);
    let good = measurement(TIME, 50, 95.5, 700);
    let mut client = kettles.client();
    let cases = [
        (String::new(), 400),
        ("{".into(), 400),
        ("[]".into(), 400),
        (good.replace("95.5", "NaN"), 400),
        (good.replace("95.5", "Infinity"), 400),
        (good.replace("95.5", "1e400"), 400),
        (good.replace("95.5", "null"), 400),
        (good.replace("50", "99999999999"), 400),
        (good.replace("50", "0.5"), 400),
        (good.replace(TIME, "yesterday"), 400),
        (good.replace(TIME, "2017-12-24T18:30:00"), 400),
        (good.replace('{', r#"{"id":"kettle","#), 400),
        (good.replace(r#""water_level":700"#, r#""x":1"#), 400),
        (good.replace("95.5", "-400"), 422),
        (good.replace("95.5", "1e300"), 422),
        (good.replace("2017", "2917"), 422),
        (good.replace("2017", "0017"), 422),
    ];
    for (body, status) in cases {
        let answer = client.post("/measurement", Some(KETTLE), &body);
        assert_eq!(answer.status, status, "{body}: {answer:?}");
        assert!(answer.json()["error"].is_string(), "{answer:?}");
    }
    let answer = client.post("/measurement", Some(KETTLE), &good);
    assert_eq!(answer.status, 200);
    assert_eq!(kettles.statistics()["statsMeasurementCount"], 1);
    assert_eq!(kettles.statistics()["statsNumDevices"], 1);
    for path in ["/nowhere", "/measurement"] {
        let answer = client.get(path, None);
        assert!(matches!(answer.status, 404 | 405), "{answer:?}");
        assert!(answer.json()["error"].is_string());
    }
}

#[test]
fn oversized_requests_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let kettles = Kettles::start(folder.path(), &[]);
    for path in ["/login", "/measurement", "/measurements"] {
        let mut client = kettles.client();
        let field = format!("servant-auth-cookie: {KETTLE}\r\nContent-Length: 10000000");
        // The response does not wait for the body.
        client.send_head("POST", path, &[&field]);
        let answer = client.receive();
        assert_eq!(answer.status, 413, "{path}");
        assert!(answer.json()["error"].is_string(), "{answer:?}");
    }
    assert_eq!(kettles.statistics()["statsMeasurementCount"], 0);
}

#[test]
fn malformed_http_gets_a_json_error() {
    let folder = tempfile::tempdir().unwrap();
    let kettles = Kettles::start(folder.path(), &[]);
    let long = "x".repeat(100_000);
    let fields = [("bad name: x", 400), (long.as_str(), 431)];
    for (field, status) in fields {
        let mut client = kettles.client();
        client.send_head("GET", "/command", &[&format!("{field}: 1")]);
        let answer = client.receive();
        assert_eq!(answer.status, status);
        assert!(answer.json()["error"].is_string(), "{answer:?}");
    }
}

#[test]
fn a_gateway_request_is_stored_completely_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let kettles = Kettles::start(folder.path(), &[]);
    let mut lines = String::new();
    for second in 0..50 {
        let time = format!("2017-12-24T18:30:{second:02}Z");
        lines += &measurement(&time, second, 50.0, 10).replace('\n', " ");
        lines.push('\n');
    }
    // The lines belong to two kettles alternately.
    let other = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
    let marked: String = lines
        .lines()
        .enumerate()
        .map(|(index, line)| match index % 2 {
            0 => format!("{line}\n"),
            _ => format!("{}\n", line.replace('{', &format!(r#"{{"id":"{other}","#))),
        })
        .collect();
    let mut client = kettles.client();
    let wrong = format!("{marked}{{\n");
    let answer = client.post("/measurements", Some(KETTLE), &wrong);
    assert_eq!(answer.status, 400);
    assert!(
        answer.json()["error"]
            .as_str()
            .unwrap()
            .starts_with("line 51: ")
    );
    assert_eq!(kettles.statistics()["statsMeasurementCount"], 0);
    let answer = client.post("/measurements", Some(KETTLE), &marked);
    assert_eq!((answer.status, &*answer.text()), (200, r#"{"stored":50}"#));
    // The gateway repeats a request, as if it had received no response.
    assert_eq!(
        client.post("/measurements", Some(KETTLE), &marked).status,
        200
    );
    assert_eq!(client.post("/measurements", Some(KETTLE), "").status, 200);
    let statistics = kettles.statistics();
    assert_eq!(statistics["statsMeasurementCount"], 50);
    assert_eq!(statistics["statsNumDevices"], 2);
    assert_eq!(statistics["statsTotalBatteryCharge"], 48 + 49);
}

#[test]
fn measurements_older_than_the_retention_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let kettles = Kettles::start(folder.path(), &["--retain", "7"]);
    let body = measurement(TIME, 50, 95.5, 700);
    let answer = kettles.client().post("/measurement", Some(KETTLE), &body);
    assert_eq!(answer.status, 422);
}
