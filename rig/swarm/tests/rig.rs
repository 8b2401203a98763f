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

/// A line of `rig.py board` has a gap where Prometheus has no value, and a lone value is a dot.
/// Units have SI prefixes, and axes end at round numbers. Lines of one name get the labels in which
/// they differ, and a panel names the windows of its rates that are not the page's.
#[test]
fn the_board_draws_gaps_and_units() {
    let check = "
import board
line = [None, 1, None, 2, 3, None, None]
parts = list(board.pens(line, lambda index: index, lambda value: value))
assert parts == [['1.0 1.0'] * 2, ['3.0 2.0', '4.0 3.0']], parts
for value, unit, shown in [
    (0, 's', '0 s'), (2.5e-4, 's', '250 µs'), (12345678, 'Bps', '12.3 MB/s'),
    (600, 'reqps', '600/s'), (3 * 2**20, 'bytes', '3 MiB'),
    (0.125, 'percentunit', '12.5 %'), (75, 'ms', '75 ms'),
    (-1500, 'short', '-1.5 k'),
]:
    assert board.amount(value, unit) == shown, board.amount(value, unit)
for value, unit, top in [
    (601, 'short', 1000), (0.3, 's', 0.5), (300 * 2**20, 'bytes', 500 * 2**20), (0, 's', 1),
]:
    assert board.nice(value, unit) == top, board.nice(value, unit)
both = {'job': 'kettles'}
lines = [('waiting', {'instance': 'a', **both}, [1]), ('waiting', {'instance': 'b', **both}, [2])]
named = list(board.distinct([*lines, ('oldest', both, [3])]))
assert named == [('waiting, a', [1]), ('waiting, b', [2]), ('oldest', [3])], named
for expr, own in [
    ('sum(rate(x_total[$__rate_interval]))', []), ('rate(x_total[30s])', ['30s']),
    ('max(instance:x_busy:ratio1m)', ['1m']), ('route:x_seconds:p99_5m', ['5m']),
    ('instance:x_queue:ratio', []), ('rate(x_total[8s])', []),
]:
    windows = board.windows({'targets': [{'expr': expr}]}, '8s')
    assert windows == own, (expr, windows)
";
    run(".", "python3", &["-B", "-c", check]);
}

/// A Python without Locust can parse the Python files.
#[test]
fn python_files_have_valid_syntax() {
    let read = "import ast, sys; [ast.parse(open(name).read(), name) for name in sys.argv[1:]]";
    let files = [
        "board.py",
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
