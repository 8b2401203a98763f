//! A client with the admin token gives a kettle commands. The server repeats a command until the
//! kettle confirms it, and keeps it over a restart.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy allows these only inside functions marked as tests"
)]

mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kettles::time::Time;
use serde_json::{Value, json};
use support::{Kettles, PATIENCE, measurement};
use swarm::Plan;
use tungstenite::client::IntoClientRequest as _;
use tungstenite::{Message, WebSocket};

const KETTLE: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";
const OTHER: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
const NOTHING: &str =
    r#"{"charge":"NoChargeBattery","fill":"NoFillReservoir","flush":{"tag":"NoFlushReservoir"}}"#;
const FLUSH: &str = r#"{"charge":"ChargeBattery","fill":"NoFillReservoir","flush":{"tag":"FlushReservoir","contents":2.5}}"#;

fn order(kettles: &Kettles, token: &str, body: &str) -> u16 {
    let mut client = kettles.client();
    let field = format!("Authorization: Bearer {token}");
    let path = format!("/devices/{KETTLE}/command");
    client.send("POST", &path, None, &[&field], body);
    client.receive().status
}

fn told(kettles: &Kettles, device: &str) -> String {
    let answer = kettles.client().get("/command", Some(device));
    answer.text()
}

#[test]
fn a_command_is_repeated_until_a_measurement_confirms_it() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "sesame\n").unwrap();
    let options = ["--admin-token", token.to_str().unwrap()];
    let kettles = Kettles::start(folder.path(), &options);
    assert_eq!(order(&kettles, "guess", "{}"), 401);
    assert_eq!(order(&kettles, "sesame", r#"{"flush":"all"}"#), 400);
    assert_eq!(order(&kettles, "sesame", r#"{"flush":-1}"#), 422);
    assert_eq!(told(&kettles, KETTLE), NOTHING);
    assert_eq!(
        order(&kettles, "sesame", r#"{"charge":true,"flush":2.5}"#),
        201
    );
    let later = r#"{"fill":true,"time":"2917-12-24T18:30:00Z"}"#;
    assert_eq!(order(&kettles, "sesame", later), 201);
    assert_eq!(told(&kettles, KETTLE), FLUSH);
    assert_eq!(told(&kettles, OTHER), NOTHING);
    // A command stays pending after delivery, a restart, and a measurement from before it was
    // given.
    kettles.kill();
    let kettles = Kettles::start(folder.path(), &options);
    let post = |second: u32| {
        let body = measurement(&format!("2017-12-24T18:30:{second:02}Z"), 50, 95.5, 700);
        let answer = kettles.client().post("/measurement", Some(KETTLE), &body);
        assert_eq!(answer.status, 200);
    };
    post(1);
    assert_eq!(told(&kettles, KETTLE), FLUSH);
    assert_eq!(told(&kettles, KETTLE), FLUSH);
    post(2);
    assert_eq!(told(&kettles, KETTLE), NOTHING);
    kettles.kill();
    let kettles = Kettles::start(folder.path(), &options);
    assert_eq!(told(&kettles, KETTLE), NOTHING);
}

#[test]
fn head_marks_no_command_as_sent_and_a_gateway_can_confirm() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "sesame").unwrap();
    let kettles = Kettles::start(folder.path(), &["--admin-token", token.to_str().unwrap()]);
    let post = |path: &str, second: u32| {
        let body = measurement(&format!("2017-12-24T18:30:{second:02}Z"), 50, 95.5, 700);
        let answer = kettles.client().post(path, Some(KETTLE), &body);
        assert_eq!(answer.status, 200);
    };
    let field = "authorization: bearer sesame";
    let mut client = kettles.client();
    let path = format!("/devices/{KETTLE}/command");
    let body = r#"{"charge":true,"flush":2.5}"#;
    client.send("POST", &path, None, &[field], body);
    assert_eq!(client.receive().status, 201);
    // A HEAD request delivers no command, so the next measurement confirms nothing.
    let mut stream = TcpStream::connect(kettles.addr).unwrap();
    let head = format!(
        "HEAD /command HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\
         servant-auth-cookie: {KETTLE}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    post("/measurement", 1);
    assert_eq!(told(&kettles, KETTLE), FLUSH);
    post("/measurements", 2);
    assert_eq!(told(&kettles, KETTLE), NOTHING);
}

#[test]
fn commands_require_the_admin_token() {
    let folder = tempfile::tempdir().unwrap();
    let kettles = Kettles::start(folder.path(), &[]);
    assert_eq!(order(&kettles, "", "{}"), 403);
}

type Kettle = WebSocket<TcpStream>;

fn socket(kettles: &Kettles, device: &str) -> Kettle {
    let url = format!("ws://{}/kettle", kettles.addr);
    let mut request = url.into_client_request().unwrap();
    let value = device.parse().unwrap();
    request.headers_mut().insert("servant-auth-cookie", value);
    let stream = TcpStream::connect(kettles.addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    tungstenite::client(request, stream).unwrap().0
}

fn read(socket: &mut Kettle) -> Value {
    loop {
        match socket.read().unwrap() {
            Message::Text(text) => return serde_json::from_str(&text).unwrap(),
            Message::Ping(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_websocket_carries_measurements_and_commands() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "sesame").unwrap();
    let kettles = Kettles::start(folder.path(), &["--admin-token", token.to_str().unwrap()]);
    let mut kettle = socket(&kettles, KETTLE);
    let send = |kettle: &mut Kettle, text: String| {
        kettle.send(Message::text(text)).unwrap();
        read(kettle)
    };
    let time = "2017-12-24T18:30:00Z";
    let good = measurement(time, 50, 95.5, 700);
    assert_eq!(send(&mut kettle, good.clone()), json!({ "stored": time }));
    assert!(send(&mut kettle, "{".into())["error"].is_string());
    assert_eq!(kettles.statistics()["statsMeasurementCount"], 1);
    // A command is pushed to a connected kettle, and to one that connects later.
    assert_eq!(
        order(&kettles, "sesame", r#"{"charge":true,"flush":2.5}"#),
        201
    );
    let flush: Value = serde_json::from_str(FLUSH).unwrap();
    assert_eq!(read(&mut kettle), json!({ "command": flush }));
    drop(kettle);
    let mut kettle = socket(&kettles, KETTLE);
    assert_eq!(read(&mut kettle), json!({ "command": flush }));
    // A command with a due time is pushed at that time, not before.
    let due = Time::now().plus_seconds(1);
    let later = format!(r#"{{"charge":true,"fill":true,"flush":2.5,"time":"{due}"}}"#);
    assert_eq!(order(&kettles, "sesame", &later), 201);
    let command = read(&mut kettle);
    assert_eq!(command["command"]["fill"], "FillReservoir");
    assert!(Time::now() >= due);
    let next = good.replace("18:30", "18:31");
    let stored = json!({ "stored": "2017-12-24T18:31:00Z" });
    assert_eq!(send(&mut kettle, next), stored);
    assert_eq!(told(&kettles, KETTLE), NOTHING);
}

/// Each simulated kettle of the load generator sends its measurements over a WebSocket of its own,
/// and the server stores them.
#[test]
fn measurements_of_simulated_websockets_are_stored() {
    let folder = tempfile::tempdir().unwrap();
    let kettles = Kettles::start(folder.path(), &[]);
    let (period, host) = (Duration::from_secs(1), kettles.addr.to_string());
    let plan = Plan::new(kettles.addr, 100, 2 * period);
    let fleet = swarm::Kettles::new(&host, 100, period, period, 1);
    let tally = swarm::talk(&plan, fleet, &AtomicBool::new(false), &mut |_, _| {}).unwrap();
    assert_eq!(tally.failures.sum(), 0, "{:?}", tally.failures);
    assert_eq!((tally.answered(), tally.connections), (200, 100));
    assert_eq!(kettles.statistics()["statsMeasurementCount"], 200);
    // Without a server the load generator counts connection failures.
    kettles.kill();
    let fleet = swarm::Kettles::new(&host, 1, period, period, 1);
    let plan = Plan {
        timeout: period,
        ..plan
    };
    let tally = swarm::talk(&plan, fleet, &AtomicBool::new(false), &mut |_, _| {}).unwrap();
    assert_eq!((tally.answered(), tally.failures.connect), (0, 1));
}
