//! While the database is away, nodes serve the narinfos and the NARs of the paths that they have
//! looked up before, without a wait, and say of no path that it is absent.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_nodes;
mod support_push;
mod support_uploads;

use std::time::{Duration, Instant};

use support_nodes::Cluster;
use support_push::{Pusher, noise, words};
use support_uploads::MadePath;
use testkit::faults::Faults;
use testkit::nix::{OwnStore, hash_part, local};
use testkit::{eventually, holds_within};

/// Maximum time of an answer from memory and from the disk cache, with slack for a loaded machine.
/// A statement of the database is waited for longer.
const ANSWER_TIME: Duration = Duration::from_secs(4);

/// How the database goes away.
#[derive(Debug, Clone, Copy)]
enum Away {
    Killed,
    Stopped,
    Cut,
    /// New connections are accepted, and then nothing comes.
    Silent,
}

fn begin(cluster: &mut Cluster, away: Away) {
    match away {
        Away::Killed => cluster.postgres.kill(),
        Away::Stopped => cluster.postgres.pause(),
        Away::Cut => {
            cluster.to_database.set(Faults::refuse());
            cluster.to_database.disconnect();
        }
        Away::Silent => {
            cluster.to_database.set(Faults::hold());
            cluster.to_database.disconnect();
        }
    }
}

fn end(cluster: &mut Cluster, away: Away) {
    match away {
        Away::Killed => cluster.postgres.resume(),
        Away::Stopped => cluster.postgres.unpause(),
        Away::Cut | Away::Silent => {
            cluster.to_database.set(Faults::NONE);
            cluster.to_database.disconnect();
        }
    }
}

/// Waits until a node has a lease that was renewed just now. Before, it has loaded the catalog, and
/// forgotten what it has looked up.
fn follows(cluster: &Cluster, index: usize) {
    let mut client = cluster.postgres.client();
    let query = "select id, renewals from samovar.node where name = $1 order by id desc limit 1";
    let mut renewals = || {
        let row = client.query_opt(query, &[&format!("node-{}", index + 1)]);
        row.unwrap()
            .map(|row| (row.get::<_, i64>(0), row.get::<_, i64>(1)))
    };
    let mut first = renewals();
    eventually("the node renews its lease", || {
        let now = renewals();
        let is_same_row = first.map(|(id, _)| id) == now.map(|(id, _)| id);
        if !is_same_row {
            first = now;
        }
        is_same_row && first < now
    });
}

/// Returns the URL of the NAR, from the narinfo that a node serves.
#[track_caller]
fn nar_of(cluster: &Cluster, index: usize, target: &str) -> String {
    let narinfo = cluster.get(index, target);
    assert_eq!(narinfo.status, 200, "{target}: {}", narinfo.text());
    let text = narinfo.text();
    let url = text.lines().find_map(|line| line.strip_prefix("URL: "));
    format!("/{}", url.unwrap())
}

#[test]
fn what_was_looked_up_is_served_while_the_database_is_away() {
    let Some(mut cluster) = Cluster::start(2) else {
        return;
    };
    let token = cluster.nodes.token("ci", "read,push");
    let large = MadePath::new("large").containing(&noise(1, 3 << 20));
    cluster.publish(0, &token, &large);
    // Small ones share an object.
    let store = OwnStore::new();
    let small: Vec<String> = (0..20)
        .map(|number| store.add_file(&format!("small-{number}"), &noise(number + 2, 2_000)))
        .collect();
    let pusher = Pusher::new(&local(store.root()), &token);
    pusher.report(&cluster.url(0), &words(&small));
    // The other node has it in no memory.
    let unknown = MadePath::new("unknown").containing(&noise(30, 1_000));
    cluster.publish(0, &token, &unknown);

    let mut targets = vec![large.target()];
    let small = small
        .iter()
        .map(|path| format!("/{}.narinfo", hash_part(path)));
    targets.extend(small);
    for away in [Away::Killed, Away::Stopped, Away::Cut, Away::Silent] {
        follows(&cluster, 1);
        let nars: Vec<String> = targets
            .iter()
            .map(|target| nar_of(&cluster, 1, target))
            .collect();
        begin(&mut cluster, away);
        // The lease ends, and the node notices that the database is away.
        holds_within(Duration::from_secs(5), || false);
        for (target, nar) in targets.iter().zip(&nars) {
            let started = Instant::now();
            assert_eq!(nar_of(&cluster, 1, target), *nar, "{away:?}");
            let file = cluster.get(1, nar);
            assert_eq!(file.status, 200, "{away:?}: {}", file.text());
            let took = started.elapsed();
            assert!(took < ANSWER_TIME, "{away:?}: {target} took {took:?}");
        }
        assert!(
            cluster.get(1, &nars[0]).body == large.file,
            "{away:?}: other bytes"
        );
        let answer = cluster.get(1, &unknown.target());
        assert_eq!(answer.status, 503, "{away:?}: {}", answer.text());
        end(&mut cluster, away);
        for index in 0..2 {
            eventually("the node is ready", || {
                cluster.get(index, "/readyz").status == 200
            });
        }
        eventually("what was unknown is found", || {
            cluster.get(0, &unknown.target()).status == 200
        });
    }
    cluster.assert_serve(&unknown);
}
