//! Checks the rig's files: alerting rules fire and stay silent as their tests expect, the
//! dashboards equal the output of their generator, and Prometheus can parse their queries.
//!
//! A check of whether every panel has data needs a server under load: run `rig/rig.py check
//! kettles`.

use std::path::{Path, PathBuf};
use std::process::Command;

fn rig() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[track_caller]
fn run(folder: &str, program: &str, arguments: &[&str]) {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(rig().join(folder))
        .output()
        .expect("there is promtool, and python3: run `make setup-test`");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
}

#[test]
fn alerting_rules_pass_their_promtool_tests() {
    run(
        "prometheus",
        "promtool",
        &["check", "rules", "use.yml", "kettles.yml"],
    );
    run("prometheus", "promtool", &["test", "rules", "rig.test.yml"]);
}

#[test]
fn dashboards_equal_the_output_of_their_generator() {
    run(".", "python3", &["-B", "grafana/make.py", "--check"]);
    run(".", "python3", &["-B", "check_dashboards.py"]);
}

/// Every alert has a test case in which it fires.
#[test]
fn every_alert_is_tested() {
    let read = |name: &str| std::fs::read_to_string(rig().join("prometheus").join(name)).unwrap();
    let rules = read("use.yml") + &read("kettles.yml");
    let tests = read("rig.test.yml");
    let alerts = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let untested: Vec<_> = alerts
        .filter(|name| !tests.contains(&format!("{{alertname=\"{name}\"}}")))
        .collect();
    assert!(untested.is_empty(), "no case: {untested:?}");
}

/// A Python without Locust can parse the Python files.
#[test]
fn python_files_have_valid_syntax() {
    let read = "import ast, sys; [ast.parse(open(name).read(), name) for name in sys.argv[1:]]";
    let files = [
        "rig.py",
        "parts.py",
        "postgresql.py",
        "started.py",
        "story.py",
        "locust/common.py",
        "locust/kettles.py",
        "locust/cache.py",
    ];
    run(".", "python3", &[&["-c", read][..], &files].concat());
}
