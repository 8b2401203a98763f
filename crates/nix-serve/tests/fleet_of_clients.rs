//! A fleet of clients gets right responses. They send requests on a fixed schedule, without waiting
//! for responses: bursts of narinfo requests, mostly for absent paths, and whole closures. Each NAR
//! is as long as announced.

mod support;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use support::{ServerProcess, sample_list, sample_root};
use swarm::{Catalog, Clients, Plan, Turn};

const CLIENTS: usize = 10;
const PERIOD: Duration = Duration::from_secs(2);

#[test]
fn a_fleet_is_answered_rightly() {
    let server = ServerProcess::of_store(&sample_root());
    let catalog = Catalog::parse(&sample_list("graph").join("\n")).unwrap();
    let turn = Turn {
        queries: 50,
        misses_of_100: 50,
        downloads: true,
    };
    let host = server.addr.to_string();
    let clients = Clients::new(&host, catalog, turn, CLIENTS, PERIOD, 1);
    let plan = Plan {
        timeout: Duration::from_secs(60),
        ..Plan::new(server.addr, 100, PERIOD)
    };
    let tally = swarm::run(&plan, clients, &AtomicBool::new(false), &mut |_, _| {}).unwrap();
    assert_eq!(tally.failures.sum(), 0, "{:?}", tally.failures);
    let count = |name: &str| {
        let mut operations = tally.operations.iter();
        operations.find(|it| it.name == name).unwrap().latency.len()
    };
    let clients = CLIENTS as u64;
    assert_eq!(count("cache-info"), clients);
    assert_eq!(count("narinfo") + count("absent"), 50 * clients);
    assert!(count("absent") > 20 * clients && count("narinfo") > 20 * clients);
    // A closure has from one path to hundreds. The last ones are aborted when the run ends.
    assert!(count("closure") > clients, "{}", count("closure"));
    assert!(count("nar") * 10 > count("closure") * 9, "{}", count("nar"));
}
