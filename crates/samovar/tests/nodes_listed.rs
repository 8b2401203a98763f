//! `samovar nodes` shows the names of the configuration, and `samovar doctor` does not look for the
//! files of a bucket in the local directory.

mod support;
mod support_nodes;
mod support_uploads;

use serde_json::Value;
use support_nodes::Cluster;
use support_uploads::MadePath;
use testkit::eventually;
use testkit::process::finish;

#[test]
fn nodes_have_the_names_of_their_configurations() {
    let Some(cluster) = Cluster::start(2) else {
        return;
    };
    let listed = || -> Vec<(String, String)> {
        let text = cluster.nodes.run(1, &["nodes"], &["--json"]);
        let document: Value = serde_json::from_str(&text).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let nodes = document["nodes"].as_array().unwrap().iter();
        let named = nodes.map(|node| (text(&node["name"]), text(&node["address"])));
        named.collect()
    };
    // A node joins after it serves.
    eventually("both nodes are listed", || listed().len() == 2);
    for (index, (name, address)) in listed().iter().enumerate() {
        assert_eq!(*name, format!("node-{}", index + 1));
        assert_eq!(*address, cluster.url(index));
    }
    assert!(cluster.nodes.run(0, &["nodes"], &[]).contains("\nnode-1 "));
}

#[test]
fn the_doctor_looks_for_no_file_of_a_bucket_in_the_directory() {
    let Some(cluster) = Cluster::start(1) else {
        return;
    };
    let token = cluster.nodes.token("ci", "read,push");
    for number in 0..3 {
        cluster.publish(0, &token, &MadePath::new(&format!("path-{number}")));
    }
    eventually("the node has joined", || {
        cluster.nodes.run(0, &["nodes"], &[]).contains("node-1")
    });
    let mut doctor = cluster.nodes.samovar();
    doctor
        .args(["doctor", "--config"])
        .arg(cluster.nodes.config(0));
    let output = finish(&mut doctor);
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    for part in [
        "bucket: ",
        "storage: 1 valid token",
        "nodes: with a lease: node-1",
    ] {
        assert!(text.contains(part), "{text}");
    }
    for part in [
        "is missing or has a wrong length",
        "narinfos are missing",
        "no database yet",
    ] {
        assert!(!text.contains(part), "{text}");
    }
}
