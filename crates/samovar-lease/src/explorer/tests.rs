//! Worlds that are explored completely, and sabotages that are found.

use super::search::explore;
use super::world::{QUIET, Sabotage, Setup};

const TWO_CHANGES: Setup = Setup {
    changes: &[(0, true), (0, false)],
    ..QUIET
};

const CRASH: Setup = Setup {
    crashes: 1,
    ..QUIET
};

const FAILURE: Setup = Setup {
    failures: 1,
    ..QUIET
};

const PRUNE: Setup = Setup { prunes: 1, ..QUIET };

const LEAVING: Setup = Setup { leaves: 1, ..QUIET };

const WATCHED: Setup = Setup {
    nodes: 1,
    is_watched: true,
    failures: 1,
    ..QUIET
};

const FAILOVER: Setup = Setup {
    nodes: 1,
    failovers: 1,
    is_watched: true,
    ..QUIET
};

const FAILOVER_OF_TWO: Setup = Setup {
    failovers: 1,
    ..QUIET
};

const LOSING_FAILOVER: Setup = Setup {
    nodes: 1,
    changes: &[(0, true), (1, true)],
    failovers: 1,
    lost_commits: 1,
    ..QUIET
};

const THREE_NODES: Setup = Setup { nodes: 3, ..QUIET };

#[track_caller]
fn is_right(name: &str, setup: Setup) {
    let explored = explore(&setup);
    println!("{name}: {} states", explored.states);
    assert_eq!(explored.error, None, "{name}");
    assert!(explored.answering > 0, "{name}: no lease was of use");
}

#[test]
fn all_orders_of_events_are_right() {
    is_right("two nodes, a path added", QUIET);
    is_right("two nodes, a path added and removed", TWO_CHANGES);
    is_right("two nodes, one crashes", CRASH);
    is_right("two nodes, a statement fails", FAILURE);
    is_right("two nodes, old changes are deleted", PRUNE);
    is_right("two nodes, one leaves", LEAVING);
    is_right("one node, lapsed rows", WATCHED);
    is_right("one node, failover, aged generations", FAILOVER);
    is_right("one node, failover that loses a commit", LOSING_FAILOVER);
    is_right("two nodes, failover", FAILOVER_OF_TWO);
    is_right("three nodes", THREE_NODES);
}

/// Each rule of the protocol is needed: without it, there is a wrong answer in a world that is
/// right with it.
#[test]
fn each_sabotage_is_found() {
    let not_found: Vec<Sabotage> = [
        (Sabotage::ReadBeforeRenew, QUIET),
        (Sabotage::AnswerBeforeApplied, QUIET),
        (Sabotage::AnswerAtJoining, QUIET),
        (Sabotage::ConfirmBeforeApplied, QUIET),
        (Sabotage::PublisherDoesNotWait, QUIET),
        (Sabotage::WaitOnlyForNotified, QUIET),
        (Sabotage::LookBeforeCommit, QUIET),
        (Sabotage::WaitTooShort, QUIET),
        (Sabotage::LeaseFromResult, WATCHED),
        (Sabotage::LapsedUnconditionally, WATCHED),
        (Sabotage::LapsedForEver, WATCHED),
        (Sabotage::AnswerAfterLeaving, LEAVING),
        (Sabotage::DeletedChangesIgnored, PRUNE),
        (Sabotage::YoungGenerationTrusted, FAILOVER),
        (Sabotage::AgedAtOnce, FAILOVER),
        (Sabotage::VanishedRowInserted, LOSING_FAILOVER),
        (Sabotage::JoinInAnyGeneration, LOSING_FAILOVER),
        (Sabotage::RowIdsRestart, FAILOVER_OF_TWO),
    ]
    .into_iter()
    .filter(|(sabotage, setup)| !is_found(*sabotage, *setup))
    .map(|(sabotage, _)| sabotage)
    .collect();
    assert_eq!(not_found, []);
}

fn is_found(sabotage: Sabotage, setup: Setup) -> bool {
    let explored = explore(&Setup {
        sabotage: Some(sabotage),
        ..setup
    });
    let (states, error) = (explored.states, explored.error);
    match &error {
        Some(events) => println!("{sabotage:?}: found after {states} states: {events:?}"),
        None => println!("{sabotage:?}: not found in {states} states"),
    }
    error.is_some()
}
