//! The metrics of a node: alerts and the dashboard use metrics that exist, and every metric of the
//! bucket, the database and the nodes is on the dashboard.

mod support;
mod support_nodes;
mod support_uploads;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support_nodes::Cluster;
use support_uploads::MadePath;
use testkit::eventually;
use testkit::http1::Connection;
use testkit::process::output;

fn rig(path: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../rig");
    root.join(path)
}

#[test]
fn alerts_pass_their_tests() {
    for (action, file) in [("check", "nodes.yml"), ("test", "nodes.test.yml")] {
        let mut promtool = Command::new("promtool");
        promtool.args([action, "rules"]);
        output(promtool.arg(rig("prometheus").join(file)));
    }
}

#[test]
fn alerts_and_dashboard_use_existing_metrics() {
    let Some(cluster) = Cluster::start(2) else {
        return;
    };
    let token = cluster.nodes.token("ci", "read,push");
    let path = MadePath::new("path");
    cluster.publish(0, &token, &path);
    cluster.assert_serve(&path);
    eventually("the node knows the others", || {
        let exposed = Connection::connect(cluster.nodes.all()[1].admin).get("/metrics");
        exposed.text().contains("samovar_node_behind_commits ")
    });
    let exposed = Connection::connect(cluster.nodes.all()[1].admin).get("/metrics");
    let there: BTreeSet<String> = exposed
        .text()
        .lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(metrics_in)
        .collect();
    let on_board = metrics_in(&fs::read_to_string(rig("grafana/dashboards/nodes.json")).unwrap());
    let rules = fs::read_to_string(rig("prometheus/nodes.yml")).unwrap();
    let rules = rules.lines().filter(|line| !line.contains("- name:"));
    let asked: BTreeSet<String> = rules.flat_map(metrics_in).chain(on_board.clone()).collect();
    let missing: Vec<_> = asked.difference(&there).collect();
    assert!(asked.len() > 15 && missing.is_empty(), "{missing:?}");
    let is_ours = |name: &&String| {
        ["samovar_bucket_", "samovar_database_", "samovar_node_"]
            .iter()
            .any(|of| name.starts_with(of))
    };
    let shown_nowhere: Vec<_> = there.difference(&on_board).filter(is_ours).collect();
    assert!(shown_nowhere.is_empty(), "on no panel: {shown_nowhere:?}");
}

/// Returns the names of Samovar's metrics in a text.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_metric = |word: &&str| word.starts_with("samovar_");
    words.filter(is_metric).map(str::to_owned).collect()
}
