//! While a server waits for its database, `samovar push` says so within a few seconds, goes on when
//! the database is back, and says that, too.

mod support;
mod support_nodes;
mod support_uploads;

use std::time::{Duration, Instant};

use support_nodes::Cluster;
use testkit::faults::Faults;
use testkit::limit;
use testkit::nix::{OwnStore, local};
use testkit::process::Process;

#[test]
fn a_push_says_that_the_server_does_not_answer() {
    let Some(cluster) = Cluster::start(1) else {
        return;
    };
    let token = cluster.nodes.token("ci", "read,push");
    let store = OwnStore::new();
    let path = store.add_file("app", b"app");
    cluster.to_database.set(Faults::refuse());
    cluster.to_database.disconnect();
    let started = Instant::now();
    let mut push = cluster.nodes.samovar();
    push.args(["push", "--store", &local(store.root())]);
    push.args([&cluster.url(0), &path]);
    let mut push = Process::spawn(push.env("SAMOVAR_TOKEN", token));
    let line = push.wait_for("has not answered for 5 s");
    limit::time_at_most(
        "until the notice",
        started.elapsed(),
        Duration::from_secs(10),
    );
    assert!(line.contains(&cluster.url(0)), "{line}");
    cluster.to_database.set(Faults::NONE);
    push.wait_for("answers again, after ");
    assert_eq!(push.wait(), Some(0));
    let target = format!("/{}.narinfo", &path[11..43]);
    assert_eq!(cluster.get(0, &target).status, 200);
}
