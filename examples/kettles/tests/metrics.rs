//! Every metric has one description and one type, and the server exports all metrics that
//! dashboards use.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows these only inside functions marked as tests"
)]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use support::{Kettles, measurement, wait_until};

/// Returns the metrics that dashboards, recording rules and alerts use.
fn asked() -> BTreeSet<String> {
    let rig = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../rig");
    let files = [
        "grafana/dashboards/kettles.json",
        "grafana/dashboards/original.json",
        "grafana/dashboards/use.json",
        "prometheus/kettles.yml",
        "prometheus/use.yml",
    ];
    let texts = files.map(|file| fs::read_to_string(rig.join(file)).unwrap());
    let ours = [
        "app_",
        "engine_",
        "http_",
        "kettles_",
        "pressure_",
        "process_",
    ];
    // Names of recording rules contain a colon.
    let words = texts
        .iter()
        .flat_map(|text| text.split(|it: char| !it.is_ascii_alphanumeric() && !"_:".contains(it)));
    words
        .filter(|word| !word.contains(':') && ours.iter().any(|it| word.starts_with(it)))
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_metric_has_a_description_and_a_type() {
    let folder = tempfile::tempdir().unwrap();
    let kettles = Kettles::start(folder.path(), &[]);
    let body = measurement("2017-12-24T18:30:00Z", 50, 95.5, 700);
    let kettle = kettles.login();
    let answer = kettles.client().post("/measurement", Some(&kettle), &body);
    assert_eq!(answer.status, 200);
    // The engine's metrics are sampled once per second.
    let has = |name: &str| kettles.metric(name).is_some();
    wait_until("the engine was sampled", || has("engine_accepted_total"));
    let text = kettles.client().get("/metrics", None).text();
    let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let name_of = |line: &str| line.split(['{', ' ']).next().unwrap().to_owned();
    let names = asked();
    assert!(names.len() > 30, "{names:?}");
    for name in names.iter().map(String::as_str).chain([
        // The server exports these metrics, but no dashboard shows them.
        "kettles_process_number",
        "kettles_ingest_prune_seconds_count",
    ]) {
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

/// Checks the metrics with `promtool`.
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
