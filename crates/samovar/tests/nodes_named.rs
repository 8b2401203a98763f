//! Two nodes of one database never have the same name: the second one is refused, and says where
//! the first one runs. A node that was killed does not keep its name for longer than its lease.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_nodes;
mod support_uploads;

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;
use support_nodes::Cluster;
use testkit::process::{Process, fails};
use testkit::{eventually, limit};

/// Stops the second node, and gives it the name of the first one.
#[track_caller]
fn rename_second(cluster: &mut Cluster) {
    cluster.nodes.stop(1);
    name_second(cluster, "name = \"node-1\"");
}

fn name_second(cluster: &Cluster, option: &str) {
    let file = cluster.nodes.config(1);
    let text = fs::read_to_string(file).unwrap();
    let start = text.rfind("name = ").or(text.rfind("[node]")).unwrap();
    fs::write(file, format!("{}{option}\n", &text[..start])).unwrap();
}

/// Returns the names of the nodes that have a lease.
fn names(cluster: &Cluster) -> Vec<String> {
    let text = cluster.nodes.run(0, &["nodes"], &["--json"]);
    let document: Value = serde_json::from_str(&text).unwrap();
    let nodes = document["nodes"].as_array().unwrap().iter();
    let living = nodes.filter(|node| node["lease"] == true);
    let names = living.map(|node| node["name"].as_str().unwrap().to_owned());
    names.collect()
}

fn machine() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

#[test]
fn a_second_node_with_the_same_name_is_refused() {
    let Some(mut cluster) = Cluster::start(2) else {
        return;
    };
    rename_second(&mut cluster);
    eventually("the first node is listed", || names(&cluster) == ["node-1"]);
    let refused = fails(&mut cluster.nodes.command(1));
    for part in [
        "another node of this database has the name \"node-1\"".to_owned(),
        format!("it runs on the machine {:?}", machine()),
        format!("serves at {}", cluster.url(0)),
        "and has joined at 20".to_owned(),
        "set `node.name` to another name on one of them".to_owned(),
    ] {
        assert!(refused.contains(&part), "{part}: {refused}");
    }
    assert_eq!(names(&cluster), ["node-1"]);
    let listed = cluster.nodes.run(0, &["nodes"], &[]);
    assert!(listed.contains(&machine()), "{listed}");
}

#[test]
fn two_machines_with_the_same_name_are_told_to_name_their_nodes() {
    let Some(mut cluster) = Cluster::start(2) else {
        return;
    };
    // As in two containers with the same host name.
    cluster.nodes.stop(1);
    name_second(&cluster, "");
    cluster.nodes.stop(0);
    let first = fs::read_to_string(cluster.nodes.config(0)).unwrap();
    let named = first.replace("name = \"node-1\"", &format!("name = {:?}", machine()));
    fs::write(cluster.nodes.config(0), named).unwrap();
    cluster.restart(0);
    eventually("the node has joined", || names(&cluster) == [machine()]);
    let refused = fails(&mut cluster.nodes.command(1));
    let part = "both have the name of their machine: set `node.name` to different names";
    assert!(refused.contains(part), "{refused}");
}

#[test]
fn of_two_nodes_that_start_together_one_has_the_name() {
    let Some(mut cluster) = Cluster::start(2) else {
        return;
    };
    rename_second(&mut cluster);
    cluster.nodes.stop(0);
    let start = |index: usize| Process::spawn(&mut cluster.nodes.command(index));
    let mut both = [start(0), start(1)];
    let mut is_alive = [true; 2];
    eventually("one of them has ended", || {
        for (process, is_alive) in both.iter_mut().zip(&mut is_alive) {
            *is_alive = process.is_alive();
        }
        is_alive != [true; 2]
    });
    assert_ne!(is_alive, [false; 2]);
    let ended = is_alive.iter().position(|is_alive| !is_alive).unwrap();
    let lines = both[ended].lines_to("\"node-1\"").join("\n");
    assert!(lines.contains("another node of this database"), "{lines}");
    eventually("the other one has joined", || names(&cluster) == ["node-1"]);
}

#[test]
fn a_killed_node_has_its_name_again_at_once() {
    let Some(mut cluster) = Cluster::start(2) else {
        return;
    };
    eventually("both have joined", || names(&cluster).len() == 2);
    cluster.nodes.kill(0);
    let started = Instant::now();
    cluster.restart(0);
    // The lease, and the start of a program on a slow machine.
    limit::time_at_most(
        "for a start after a kill",
        started.elapsed(),
        Duration::from_secs(6),
    );
    eventually("both have joined", || {
        names(&cluster) == ["node-1", "node-2"]
    });
}

#[test]
fn a_node_takes_the_name_of_one_that_was_killed_on_another_machine() {
    let Some(mut cluster) = Cluster::start(2) else {
        return;
    };
    rename_second(&mut cluster);
    cluster.nodes.kill(0);
    cluster.nodes.start(1);
    eventually("it has joined", || {
        let text = cluster.nodes.run(0, &["nodes"], &["--json"]);
        text.contains(&cluster.url(1)) && names(&cluster) == ["node-1"]
    });
}
