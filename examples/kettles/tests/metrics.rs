//! What Prometheus is told: each name with its meaning and kind, once, and nothing left out.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows these only inside functions marked as tests"
)]

mod support;

use std::io::Write as _;
use std::process::{Command, Stdio};

use support::{Kettles, measurement, wait_until};

/// Whatever dashboards and alerts ask for.
const NAMES: [&str; 29] = [
    "app_measurements_total",
    "engine_accept_errors_total",
    "engine_accepted_total",
    "engine_backlog",
    "engine_connections",
    "engine_incidents_total",
    "engine_loop_lag_seconds_count",
    "engine_requests_queued",
    "engine_worker_busy_seconds_total",
    "engine_workers_running",
    "http_request_duration_seconds_bucket",
    "kettles_active_devices",
    "kettles_devices",
    "kettles_ingest_batch_rows_sum",
    "kettles_ingest_commit_failures_total",
    "kettles_ingest_commit_seconds_bucket",
    "kettles_ingest_duplicates_total",
    "kettles_ingest_oldest_seconds",
    "kettles_ingest_queue_limit",
    "kettles_ingest_queue_rows",
    "kettles_ingest_rejected_total",
    "kettles_process_number",
    "kettles_pruned_total",
    "pressure_waiting_seconds_total",
    "process_anonymous_memory_bytes",
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
];

#[test]
fn all_figures_are_told_with_their_meaning() {
    let folder = tempfile::tempdir().unwrap();
    let kettles = Kettles::start(folder.path(), &[]);
    let body = measurement("2017-12-24T18:30:00Z", 50, 95.5, 700);
    let kettle = kettles.login();
    let answer = kettles.client().post("/measurement", Some(&kettle), &body);
    assert_eq!(answer.status, 200);
    // The engine is asked each second.
    let has = |name: &str| kettles.metric(name).is_some();
    wait_until("the engine was asked", || has("engine_accepted_total"));
    let text = kettles.client().get("/metrics", None).text().to_owned();
    let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let name_of = |line: &str| line.split(['{', ' ']).next().unwrap().to_owned();
    for name in NAMES {
        assert!(
            samples.iter().any(|line| name_of(line) == name),
            "no {name}: {text}"
        );
    }
    for sample in &samples {
        let name = name_of(sample);
        let endings = ["_bucket", "_sum", "_count"];
        let family = endings.iter().find_map(|end| name.strip_suffix(end));
        let is_told = |name: &str| text.contains(&format!("# HELP {name} "));
        assert!(
            is_told(&name) || is_told(family.unwrap_or("")),
            "no HELP: {sample}"
        );
    }
    promtool(&text);
}

/// What Prometheus' own tool has to say about it.
#[track_caller]
fn promtool(text: &str) {
    let mut command = Command::new("promtool");
    let command = command.args(["check", "metrics"]).stdin(Stdio::piped());
    let mut child = command
        .stderr(Stdio::piped())
        .spawn()
        .expect("run `make setup-test`");
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
