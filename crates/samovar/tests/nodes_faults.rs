//! Nodes, PostgreSQL and the bucket are killed and stopped while clients publish and read through
//! all nodes. Nothing that was acknowledged is lost, no node says that an acknowledged path is
//! absent, and no wrong NAR ends cleanly.
//!
//! `SAMOVAR_NODES_SECONDS` sets the duration, and `SAMOVAR_SEED` the seed.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it has found"
)]

mod support;
mod support_nodes;
mod support_uploads;

use std::time::{Duration, Instant};

use support_nodes::Cluster;
use support_nodes::load::{Found, Load};
use testkit::faults::Faults;
use testkit::random::SplitMix64;
use testkit::wait::holds_within;
use testkit::{PATIENCE, eventually};

/// Number of nodes.
const COUNT: usize = 2;

/// Options of the nodes.
const OPTIONS: &str = "";

/// Returns a number from the environment of the tests.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Lets clients work for this long.
fn work(duration: Duration) {
    holds_within(duration, || false);
}

/// Waits until some more paths are acknowledged.
fn goes_on(load: &Load) {
    let before = load.acknowledged_count();
    eventually("more paths are published", || {
        load.acknowledged_count() > before + 3
    });
}

/// Checks all that the clients have found, and that all nodes serve all acknowledged paths.
fn assert_kept(cluster: &Cluster, found: &Found) {
    println!("{} paths acknowledged", found.acknowledged.len());
    println!("longest publish {:?}", found.longest_publish);
    println!("longest narinfo {:?}", found.longest_read);
    for ((kind, outcome), count) in &found.outcomes {
        println!("{kind}: {outcome} {count} times");
    }
    assert!(found.violations.is_empty(), "{:#?}", found.violations);
    assert!(!found.acknowledged.is_empty());
    for path in &found.acknowledged {
        cluster.assert_serve(path);
    }
    let fsck = cluster.nodes.run(0, &["fsck"], &["--deep"]);
    assert!(fsck.ends_with(": 0 findings"), "{fsck}");
}

/// A fault, as long as it lasts.
#[derive(Debug, Clone, Copy)]
enum Fault {
    NodeKilled,
    NodeStopped,
    DatabaseKilled,
    DatabaseStopped,
    DatabaseCut,
    DatabaseDisturbed,
    EngineKilled,
    EngineStopped,
    EngineCut,
    EngineDisturbed,
}

const FAULTS: [Fault; 10] = [
    Fault::NodeKilled,
    Fault::NodeStopped,
    Fault::DatabaseKilled,
    Fault::DatabaseStopped,
    Fault::DatabaseCut,
    Fault::DatabaseDisturbed,
    Fault::EngineKilled,
    Fault::EngineStopped,
    Fault::EngineCut,
    Fault::EngineDisturbed,
];

/// Causes a fault for this long, and ends it.
fn cause(cluster: &mut Cluster, fault: Fault, random: &mut SplitMix64, duration: Duration) {
    let index = random.index(COUNT);
    let seed = random.next();
    match fault {
        Fault::NodeKilled => {
            cluster.nodes.kill(index);
            work(duration);
            cluster.restart(index);
        }
        Fault::NodeStopped => {
            cluster.nodes.process(index).signal("STOP");
            work(duration);
            cluster.nodes.process(index).signal("CONT");
        }
        Fault::DatabaseKilled => {
            cluster.postgres.kill();
            work(duration);
            cluster.postgres.resume();
        }
        Fault::DatabaseStopped => {
            cluster.postgres.pause();
            work(duration);
            cluster.postgres.unpause();
        }
        Fault::DatabaseCut => {
            cluster.to_database.set(Faults::refuse());
            cluster.to_database.disconnect();
            work(duration);
            cluster.to_database.set(Faults::NONE);
        }
        Fault::DatabaseDisturbed => {
            cluster.to_database.set_random(seed, 30);
            cluster.to_database.disconnect();
            work(duration);
            cluster.to_database.set(Faults::NONE);
        }
        Fault::EngineKilled => {
            cluster.engine.kill();
            work(duration);
            cluster.engine.resume();
        }
        Fault::EngineStopped => {
            let process = cluster.engine.process.as_ref().unwrap();
            process.signal("STOP");
            work(duration);
            process.signal("CONT");
        }
        Fault::EngineCut => {
            cluster.to_bucket.set(Faults::refuse());
            cluster.to_bucket.disconnect();
            work(duration);
            cluster.to_bucket.set(Faults::NONE);
        }
        Fault::EngineDisturbed => {
            cluster.to_bucket.set_random(seed, 50);
            work(duration);
            cluster.to_bucket.set(Faults::NONE);
        }
    }
}

/// Lets clients work while each of these faults happens once for this long.
fn survive(faults: &[Fault], duration: Duration) {
    let Some(mut cluster) = Cluster::with(COUNT, OPTIONS) else {
        return;
    };
    let seed = setting("SAMOVAR_SEED", 1);
    let mut random = SplitMix64::new(seed);
    let token = cluster.nodes.token("load", "read,push");
    let load = Load::start(&cluster.nodes.addresses(), &token, seed, [3, 2]);
    for fault in faults {
        goes_on(&load);
        cause(&mut cluster, *fault, &mut random, duration);
    }
    goes_on(&load);
    let found = load.stop();
    assert_kept(&cluster, &found);
}

#[test]
fn a_node_is_killed_and_stopped() {
    survive(
        &[Fault::NodeKilled, Fault::NodeStopped],
        Duration::from_secs(6),
    );
}

#[test]
fn the_database_is_killed_stopped_and_cut_off() {
    survive(&FAULTS[2..6], Duration::from_secs(6));
}

#[test]
fn the_bucket_is_killed_stopped_and_cut_off() {
    survive(&FAULTS[6..], Duration::from_secs(6));
}

/// All faults in a random order, one after the other, for as long as the environment asks.
#[test]
fn all_faults_in_turn() {
    let seconds = setting("SAMOVAR_NODES_SECONDS", 0);
    if seconds == 0 {
        return;
    }
    let Some(mut cluster) = Cluster::with(COUNT, OPTIONS) else {
        return;
    };
    let seed = setting("SAMOVAR_SEED", 1);
    let mut random = SplitMix64::new(seed);
    let token = cluster.nodes.token("load", "read,push");
    let load = Load::start(&cluster.nodes.addresses(), &token, seed, [3, 2]);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut counts = [0; FAULTS.len()];
    while Instant::now() < end {
        let index = random.index(FAULTS.len());
        let duration = Duration::from_millis(random.between(200, 15_000));
        cause(&mut cluster, FAULTS[index], &mut random, duration);
        counts[index] += 1;
        work(Duration::from_millis(random.between(0, 4_000)));
    }
    for (fault, count) in FAULTS.iter().zip(counts) {
        println!("{fault:?} {count} times");
    }
    work(PATIENCE / 10);
    let found = load.stop();
    assert_kept(&cluster, &found);
}
