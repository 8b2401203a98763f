//! While the database or the bucket is away, the log of a node says once that uploads wait, for
//! what and why, and once that they go on, however many requests wait.

mod support;
mod support_nodes;
mod support_uploads;

use std::thread;

use support_nodes::Cluster;
use support_uploads::{MadePath, upload};
use testkit::eventually;
use testkit::faults::Faults;
use testkit::http1::{Connection, exchange};

/// Sends uploads while `begin` makes something unusable, until the log has a line with each of
/// `parts`, and lets `end` make it usable.
#[track_caller]
fn survive(
    cluster: &Cluster,
    begin: impl FnOnce(),
    end: impl FnOnce(),
    name: &str,
    parts: &[&str],
) {
    let token = cluster.nodes.token(name, "read,push");
    let process = cluster.nodes.process(0);
    let address = cluster.address(0);
    begin();
    thread::scope(|scope| {
        for number in 0..4 {
            let path = MadePath::new(&format!("{name}-{number}"));
            let token = &token;
            scope.spawn(move || {
                let answer = upload(address, token, &path.file_target(), path.file.clone());
                assert_eq!(answer.status, 200, "{}", answer.text());
            });
        }
        let line = process.wait_for("uploads wait for the");
        for part in parts {
            assert!(line.contains(part), "{part}: {line}");
        }
        end();
        let over = process.wait_for("is usable again after");
        assert!(over.contains(name), "{over}");
    });
    let begun = format!("uploads wait for the {name}");
    let over = format!("the {name} (");
    assert_eq!(process.count(&begun), 1);
    let lines = process.lines();
    let over = lines.iter().filter(|line| line.contains(&over));
    let over = over.filter(|line| line.contains("is usable again"));
    assert_eq!(over.count(), 1, "{lines:#?}");
}

#[test]
fn the_log_says_that_uploads_wait_for_the_database() {
    let Some(cluster) = Cluster::start(1) else {
        return;
    };
    let begin = || {
        cluster.to_database.set(Faults::refuse());
        cluster.to_database.disconnect();
    };
    let end = || cluster.to_database.set(Faults::NONE);
    let at = cluster.to_database.address().to_string();
    survive(&cluster, begin, end, "database", &[&at, "samovar doctor"]);
}

#[test]
fn the_log_says_that_uploads_wait_for_the_bucket() {
    let Some(cluster) = Cluster::start(1) else {
        return;
    };
    let begin = || {
        cluster.to_bucket.set(Faults::refuse());
        cluster.to_bucket.disconnect();
    };
    let end = || cluster.to_bucket.set(Faults::NONE);
    let at = cluster.to_bucket.address().to_string();
    survive(&cluster, begin, end, "bucket", &[&at, "samovar doctor"]);
}

#[test]
fn the_metrics_and_the_status_page_show_the_nodes() {
    let Some(mut cluster) = Cluster::start(2) else {
        return;
    };
    let admin = cluster.nodes.all()[0].admin;
    let has = |line: &str| {
        let text = Connection::connect(admin).get("/metrics").text();
        text.lines().any(|other| other == line)
    };
    eventually("both nodes are counted", || {
        has("samovar_node_count{lease=\"yes\"} 2") && has("samovar_node_lease 1")
    });
    let token = cluster.nodes.token("ci", "read,push");
    cluster.publish(0, &token, &MadePath::new("path"));
    assert!(!has("samovar_node_publish_wait_seconds_count 0"));
    let head = "GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let page = exchange(admin, head).text();
    for part in [
        "This node",
        "node-1",
        "Other nodes",
        "node-2",
        "Database",
        "Bucket",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(page.contains("no paths but the uploaded ones"), "{page}");
    cluster.nodes.kill(1);
    eventually("one node has no lease", || {
        has("samovar_node_count{lease=\"no\"} 1")
    });
    cluster.to_database.set(Faults::refuse());
    cluster.to_database.disconnect();
    eventually("the node has no lease", || has("samovar_node_lease 0"));
}
