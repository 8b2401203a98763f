//! `kettles demo` starts a demonstration with a live page, and leaves no files behind.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it only inside functions marked as tests"
)]

mod support;

use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;
use support::{Kettles, PATIENCE};
use tungstenite::WebSocket;

fn told(socket: &mut WebSocket<TcpStream>) -> Value {
    loop {
        if let Ok(text) = socket.read().unwrap().into_text()
            && !text.is_empty()
        {
            return serde_json::from_str(&text).unwrap();
        }
    }
}

#[test]
fn the_demonstration_updates_its_page_and_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kettles"));
    command.args(["demo", "--port", "0", "--kettles", "50", "--period", "1"]);
    let started = Instant::now();
    let kettles = Kettles::spawn(command.env("TMPDIR", folder.path()));
    let page = kettles.client().get("/live", None);
    assert_eq!(page.status, 200);
    let policy = page.header("Content-Security-Policy").unwrap();
    assert!(policy.starts_with("default-src 'none';"), "{policy}");
    // The page loads nothing from other hosts.
    assert!(!page.text().contains("://"), "{}", page.text());
    let stream = TcpStream::connect(kettles.addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let url = format!("ws://{}/live/socket", kettles.addr);
    let mut socket = tungstenite::client(url, stream).unwrap().0;
    // Measures the time from the command to the first changed value on the page.
    while told(&mut socket)["measurements"].as_f64().unwrap() == 0.0 {}
    let waited = started.elapsed();
    println!("{waited:.1?} from the command to a page that moves");
    assert!(waited < PATIENCE, "{waited:?}");
    // The history is not part of the rate of the measurements, of which 50 are due each second.
    let mut is_history_seen = false;
    // Waits until the live page is complete while the year of history is being loaded.
    loop {
        let now = told(&mut socket);
        is_history_seen |= now["history"].is_f64();
        let rate = now["measurements"].as_f64().unwrap();
        assert!(rate < 500.0, "{now}");
        let is_alive = now["active"].as_u64().unwrap() >= 70
            && now["measurements"].as_f64().unwrap() > 0.0
            && now["p99"].as_f64().is_some()
            && now["temperatures"].as_array().unwrap().len() == 24;
        if is_alive {
            break;
        }
    }
    assert!(is_history_seen);
    assert!(kettles.statistics()["statsMeasurementCount"].as_u64() > Some(1000));
    // The server shuts down in time although a client has closed its WebSocket without a close
    // frame.
    drop(socket);
    assert!(kettles.terminate().success());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Runs the demonstration without history, with the given disposition of SIGHUP.
fn demonstration(disposition: &str, folder: &Path) -> Kettles {
    let mut command = Command::new("env");
    command.args([disposition, env!("CARGO_BIN_EXE_kettles"), "demo"]);
    command.args(["--port", "0", "--kettles", "1", "--no-history"]);
    Kettles::spawn(command.env("TMPDIR", folder))
}

#[test]
fn a_hangup_of_the_terminal_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let kettles = demonstration("--default-signal=HUP", folder.path());
    assert!(kettles.end_by("HUP").success());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    // SIGHUP is ignored, as under `nohup`.
    let kettles = demonstration("--ignore-signal=HUP", folder.path());
    kettles.signal("HUP");
    assert_eq!(kettles.client().get("/healthz", None).status, 200);
    assert!(kettles.terminate().success());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
