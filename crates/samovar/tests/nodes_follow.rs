//! What one node has acknowledged holds on all others at once: tokens, pins, refs, deletions of
//! caches, and what the collector deletes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_nodes;
mod support_push;
mod support_uploads;

use support_nodes::Cluster;
use support_push::Pusher;
use support_uploads::{MadePath, bearer, send, upload};
use testkit::nix::{OwnStore, local};

#[test]
fn a_revoked_token_is_refused_by_all_nodes() {
    let Some(cluster) = Cluster::start(3) else {
        return;
    };
    for round in 0..10 {
        let name = format!("round-{round}");
        let token = cluster.nodes.token(&name, "read,push");
        let path = MadePath::new(&name);
        // All nodes know the token.
        for index in 0..3 {
            cluster.publish(index, &token, &path);
        }
        cluster
            .nodes
            .run(0, &["token", "revoke"], &["--name", &name]);
        let other = MadePath::new(&format!("{name}-other"));
        for index in 0..3 {
            let address = cluster.address(index);
            let answer = upload(address, &token, &other.file_target(), &other.file);
            assert_eq!(answer.status, 401, "node {index}: {}", answer.text());
        }
    }
}

#[test]
fn pins_and_refs_are_the_same_on_all_nodes() {
    let Some(cluster) = Cluster::start(2) else {
        return;
    };
    let token = cluster.nodes.token("ci", "read,push,pin");
    let store = OwnStore::new();
    let pusher = Pusher::new(&local(store.root()), &token);
    for generation in 1..=10_u64 {
        let path = store.add_file("app", &generation.to_le_bytes());
        let node = usize::try_from(generation).unwrap() % 2;
        let report = pusher.report(&cluster.url(node), &[&path, "--pin", "app/main"]);
        assert_eq!(report["pin"]["generation"], generation, "{report}");
        for index in 0..2 {
            let fields = bearer(&token);
            let pin = send(
                cluster.address(index),
                "GET",
                "/upload/pin/app%2Fmain",
                &fields,
                "",
            );
            assert_eq!(pin.status, 200, "{}", pin.text());
            assert!(
                pin.text().contains(&path[11..]),
                "node {index}: {}",
                pin.text()
            );
        }
    }
}

/// Subtracts a number of days from all times in the database.
fn age(cluster: &Cluster, days: u32) {
    let seconds = days * 86_400;
    // This value marks a condemnation that a killed collector has not confirmed yet.
    let unconfirmed = i64::MAX;
    let sql = format!(
        "set search_path = samovar; begin; \
         update path set used_at = used_at - {seconds}, registered_at = registered_at - {seconds}; \
         update path set condemned_at = condemned_at - {seconds} \
             where condemned_at <> {unconfirmed}; \
         update nar set created_at = created_at - {seconds}; \
         update nar set state_at = state_at - {seconds} where state_at <> {unconfirmed}; \
         update sent set sent_at = sent_at - {seconds}; \
         update garbage set done_at = done_at - {seconds}; commit;"
    );
    cluster.postgres.client().batch_execute(&sql).unwrap();
}

#[test]
fn the_collector_of_one_node_runs_while_others_serve() {
    let Some(cluster) = Cluster::start(2) else {
        return;
    };
    let token = cluster.nodes.token("ci", "read,push,pin");
    let kept: Vec<MadePath> = (0..20)
        .map(|number| MadePath::new(&format!("kept-{number}")))
        .collect();
    let unused: Vec<MadePath> = (0..20)
        .map(|number| MadePath::new(&format!("unused-{number}")))
        .collect();
    for (number, path) in kept.iter().chain(&unused).enumerate() {
        cluster.publish(number % 2, &token, path);
    }
    for path in &kept {
        let target = format!("/upload/pin/{}", &path.store_path[44..]);
        let answer = upload(cluster.address(0), &token, &target, &path.store_path[11..]);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    for _ in 0..4 {
        let gc = ["--uploads-retention", "30d", "--force"];
        cluster.nodes.run(1, &["gc"], &gc);
        age(&cluster, 40);
        for path in &kept {
            cluster.assert_serve(path);
        }
    }
    for path in &unused {
        for index in 0..2 {
            assert_eq!(cluster.get(index, &path.target()).status, 404);
        }
    }
    // What was deleted can be pushed again at once, through any node.
    for (number, path) in unused.iter().enumerate() {
        cluster.publish(number % 2, &token, path);
        cluster.assert_serve(path);
    }
}
