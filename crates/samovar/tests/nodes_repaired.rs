//! What is changed below running nodes by something else than nodes: an older dump of the database
//! is restored, and a file of a disk cache gets other bytes.

mod support;
mod support_nodes;
mod support_push;
mod support_uploads;

use std::fs;

use support_nodes::Cluster;
use support_push::{exits_with, noise};
use support_uploads::MadePath;
use testkit::eventually;

/// A restore in one transaction, and one whose steps the nodes see.
#[test]
fn nodes_follow_a_restored_dump() {
    let Some(cluster) = Cluster::start(2) else {
        return;
    };
    let token = cluster.nodes.token("ci", "read,push");
    let paths = |name: &str, count: u32| -> Vec<MadePath> {
        let path = |number| MadePath::new(&format!("{name}-{number}"));
        let paths: Vec<MadePath> = (0..count).map(path).collect();
        for path in &paths {
            cluster.publish(0, &token, path);
            cluster.assert_serve(path);
        }
        paths
    };
    for (round, options) in [&["--single-transaction"][..], &[]].into_iter().enumerate() {
        let kept = paths(&format!("kept-{round}"), 3);
        let dump = cluster.postgres.dump();
        let lost = paths(&format!("lost-{round}"), 5);
        cluster.postgres.restore(&dump, options);
        for index in 0..2 {
            for path in &kept {
                eventually("what the dump has is served", || {
                    cluster.get(index, &path.target()).status == 200
                });
            }
            for path in &lost {
                eventually("what the dump lacks is absent", || {
                    cluster.get(index, &path.target()).status == 404
                });
            }
        }
        // The numbers of the new commits are those of the lost ones.
        paths(&format!("later-{round}"), 8);
    }
}

#[test]
fn fsck_finds_and_removes_a_changed_copy() {
    let Some(cluster) = Cluster::start(1) else {
        return;
    };
    let token = cluster.nodes.token("ci", "read,push");
    let path = MadePath::new("large").containing(&noise(1, 1 << 20));
    cluster.publish(0, &token, &path);
    cluster.assert_serve(&path);
    let copy = cluster.nodes.storage(0).join("cache").join(path.url());
    println!(
        "{:?}",
        std::process::Command::new("find")
            .arg(cluster.nodes.storage(0))
            .output()
    );
    let mut bytes = fs::read(&copy).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&copy, bytes).unwrap();
    let fsck = |options: &[&str], code: i32| {
        let mut fsck = cluster.nodes.samovar();
        fsck.args(["fsck", "--deep", "--config"]);
        fsck.arg(cluster.nodes.config(0)).args(options);
        exits_with(&mut fsck, code)
    };
    let found = fsck(&[], 1);
    assert!(found.contains(&format!("copy {}: ", path.url())), "{found}");
    let repaired = fsck(&["--repair"], 1);
    assert!(
        repaired.contains("removed from the disk cache"),
        "{repaired}"
    );
    fsck(&[], 0);
    cluster.assert_serve(&path);
}
