//! Under overload, excess requests get errors at once, acknowledged data is stored, and the server
//! recovers afterwards.

mod support;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use support::{Client, Kettles, measurement, wait_until};

const KETTLE: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";

fn at(second: usize) -> String {
    let time = format!("2017-12-24T18:{:02}:{:02}Z", second / 60, second % 60);
    measurement(&time, 50, 95.5, 700)
}

#[test]
fn a_full_queue_refuses_and_recovers() {
    let folder = tempfile::tempdir().unwrap();
    let options = ["--queue", "50", "--coalescing", "1000"];
    let kettles = Kettles::start(folder.path(), &options);
    // The next commit starts in a second, and the queue has capacity for fifty rows.
    assert_eq!(
        kettles
            .client()
            .post("/measurement", Some(KETTLE), &at(0))
            .status,
        200
    );
    let mut clients: Vec<Client> = (1..=200).map(|_| kettles.client()).collect();
    for (client, second) in clients.iter_mut().zip(1..) {
        client.send("POST", "/measurement", Some(KETTLE), &[], &at(second));
    }
    let answers: Vec<_> = clients.iter_mut().map(Client::receive).collect();
    let stored = answers.iter().filter(|answer| answer.status == 200).count();
    let refused: Vec<_> = answers
        .iter()
        .filter(|answer| answer.status != 200)
        .collect();
    assert!(stored >= 50 && !refused.is_empty(), "{stored}");
    for answer in &refused {
        assert_eq!(answer.status, 503);
        let seconds: u32 = answer.header("Retry-After").unwrap().parse().unwrap();
        assert!((1..=5).contains(&seconds), "{answer:?}");
        assert!(answer.json()["error"].is_string());
    }
    let count = |kettles: &Kettles| kettles.statistics()["statsMeasurementCount"].as_u64();
    assert_eq!(count(&kettles), Some(stored as u64 + 1));
    let name = "kettles_ingest_rejected_total{reason=\"full\"}";
    #[expect(clippy::cast_precision_loss, reason = "there are 200")]
    let expected = refused.len() as f64;
    assert_eq!(kettles.metric(name), Some(expected));
    assert_eq!(kettles.metric("kettles_ingest_queue_rows"), Some(0.0));
    // A refused client can retry with success.
    assert_eq!(
        kettles
            .client()
            .post("/measurement", Some(KETTLE), &at(900))
            .status,
        200
    );
}

#[test]
fn requests_that_waited_too_long_are_not_stored() {
    let folder = tempfile::tempdir().unwrap();
    let kettles = Kettles::start(folder.path(), &["--wait", "20", "--coalescing", "500"]);
    let mut client = kettles.client();
    assert_eq!(
        client.post("/measurement", Some(KETTLE), &at(0)).status,
        200
    );
    let answer = client.post("/measurement", Some(KETTLE), &at(1));
    assert_eq!(answer.status, 503);
    assert_eq!(kettles.statistics()["statsMeasurementCount"], 1);
}

#[test]
fn a_failed_commit_is_reported_and_later_ones_succeed() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Kettles::command(folder.path());
    let kettles = Kettles::spawn(command.stderr(Stdio::null()));
    let mut client = kettles.client();
    assert_eq!(
        client.post("/measurement", Some(KETTLE), &at(0)).status,
        200
    );
    let other = Connection::open(folder.path().join("kettles.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(
        client.post("/measurement", Some(KETTLE), &at(1)).status,
        503
    );
    assert_eq!(client.get("/command", Some(KETTLE)).status, 200);
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(
        client.post("/measurement", Some(KETTLE), &at(1)).status,
        200
    );
    assert_eq!(kettles.statistics()["statsMeasurementCount"], 2);
    assert_eq!(
        kettles.metric("kettles_ingest_commit_failures_total"),
        Some(1.0)
    );
}

#[test]
fn connections_beyond_the_limit_do_not_affect_others() {
    let folder = tempfile::tempdir().unwrap();
    let server = Kettles::command(folder.path());
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 400; exec \"$@\"", "sh"]);
    command.arg(server.get_program()).args(server.get_args());
    let kettles = Kettles::spawn(&mut command);
    let mut clients = Vec::new();
    let is_in = |client: &mut Client| client.try_get("/command", Some(KETTLE)) == Some(200);
    // Opens connections up to the connection limit.
    let mut last = loop {
        let mut client = kettles.client();
        if !is_in(&mut client) {
            break client;
        }
        clients.push(client);
        assert!(clients.len() < 400);
    };
    assert!(clients.len() >= 100, "{}", clients.len());
    assert!(!is_in(&mut last));
    for client in &mut clients {
        assert!(is_in(client));
    }
    for _ in 0..20 {
        assert!(!is_in(&mut kettles.client()));
    }
    let text = clients[0].get("/metrics", None).text();
    let counted = text
        .lines()
        .find_map(|line| line.strip_prefix("engine_accept_errors_total{reason=\"full\"} "));
    assert_ne!(counted, Some("0"), "{text}");
    // When clients leave, the server accepts new ones without a restart.
    clients.truncate(50);
    wait_until("a new connection is accepted", || {
        is_in(&mut kettles.client())
    });
    for client in &mut clients {
        assert!(is_in(client));
    }
}

#[test]
fn requests_in_progress_are_answered_at_shutdown() {
    let folder = tempfile::tempdir().unwrap();
    let kettles = Kettles::start(folder.path(), &["--coalescing", "300"]);
    let mut clients: Vec<Client> = (0..20).map(|_| kettles.client()).collect();
    for (client, second) in clients.iter_mut().zip(0..) {
        client.send("POST", "/measurement", Some(KETTLE), &[], &at(second));
    }
    wait_until("they have arrived", || {
        kettles.metric("app_measurements_total").unwrap_or(0.0)
            + kettles.metric("kettles_ingest_queue_rows").unwrap_or(0.0)
            >= 20.0
    });
    let started = Instant::now();
    assert!(kettles.terminate().success());
    assert!(
        started.elapsed() < Duration::from_secs(9),
        "{:?}",
        started.elapsed()
    );
    for client in &mut clients {
        assert_eq!(client.receive().status, 200);
    }
    let kettles = Kettles::start(folder.path(), &[]);
    assert_eq!(kettles.statistics()["statsMeasurementCount"], 20);
}
