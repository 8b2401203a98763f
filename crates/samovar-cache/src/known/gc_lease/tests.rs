//! Requests wait for leases only while the daemon replies in time, and missing leases are counted.

use std::thread;

use samovar_nix::HashPart;

use super::*;
use crate::tests::recorder::Recorder;

/// Makes leases without a keeper thread; tests reply in its place.
fn leases() -> (Leases, Arc<Shared>, Arc<Recorder>) {
    let events = Arc::new(Recorder::default());
    let shared = Arc::new(Shared {
        published: AtomicU32::new(0),
        table: Mutex::default(),
        wake: WakeUp::new().unwrap(),
        observer: Arc::<Recorder>::clone(&events),
    });
    let leases = Leases {
        shared: Some(Arc::clone(&shared)),
    };
    (leases, shared, events)
}

fn path(number: u8) -> StorePath {
    let hash_part = HashPart::from_bytes([number; 20]);
    StorePath::from_base_name(&format!("{hash_part}-a")).unwrap()
}

/// Requests leases while another thread replies as a daemon would.
fn announce(
    leases: &Leases,
    shared: &Shared,
    paths: &[StorePath],
    is_granted: bool,
) -> LeaseResult {
    thread::scope(|scope| {
        let asking = scope.spawn(|| leases.announce(paths));
        let mut left = paths.len();
        while left > 0 {
            let queue = shared.table.locked().take_queue();
            left -= queue.len();
            for wanted in queue {
                if is_granted {
                    shared.change(|table| table.note_leased(&wanted.path));
                }
                wanted.waiter.unwrap().answer(is_granted);
            }
            thread::yield_now();
        }
        asking.join().unwrap()
    })
}

#[test]
fn without_a_daemon_no_request_waits_and_nothing_is_counted() {
    let (leases, shared, events) = leases();
    for leases in [&leases, &Leases::default()] {
        assert!(!leases.is_on());
        assert_eq!(leases.announce(&[path(1)]), LeaseResult::NONE);
        assert!(!leases.send(&path(1)).has_waited);
        assert_eq!(leases.generation(), 0);
    }
    assert_eq!(events.take(), [""; 0]);
    shared.change(Table::begin_leasing);
    assert!(leases.is_on());
    assert_ne!(leases.generation(), 0);
}

#[test]
fn a_request_waits_for_all_of_its_leases_and_the_next_request_does_not_wait() {
    let (leases, shared, events) = leases();
    shared.change(Table::begin_leasing);
    let paths = [path(1), path(2), path(3)];
    let generation = leases.generation();
    let first = announce(&leases, &shared, &paths, true);
    let expected = LeaseResult {
        generation,
        has_waited: true,
    };
    assert_eq!(first, expected);
    let second = leases.announce(&paths);
    let expected = LeaseResult {
        generation,
        has_waited: false,
    };
    assert_eq!(second, expected);
    assert_eq!(leases.announce(&[]), LeaseResult::NONE);
    assert_eq!(events.take(), [""; 0]);
}

#[test]
fn a_refused_lease_is_counted_as_a_missing_one() {
    let (leases, shared, events) = leases();
    shared.change(Table::begin_leasing);
    let result = announce(&leases, &shared, &[path(1), path(2)], false);
    let expected = LeaseResult {
        generation: 0,
        has_waited: true,
    };
    assert_eq!(result, expected);
    assert_eq!(events.take(), ["unleased"]);
}

#[test]
fn one_refused_lease_among_granted_ones_counts_as_refused() {
    let waiter = Waiter::default();
    waiter.answer(true);
    waiter.answer(false);
    waiter.answer(true);
    assert_eq!(waiter.wait(3), Outcome::Refused);
    let waiter = Waiter::default();
    waiter.answer(true);
    assert_eq!(waiter.wait(1), Outcome::Leased);
}

#[test]
fn after_one_request_waited_in_vain_no_other_waits_until_the_daemon_answers() {
    let (leases, shared, events) = leases();
    shared.change(Table::begin_leasing);
    assert!(leases.announce(&[path(1)]).has_waited);
    assert_eq!(leases.announce(&[path(2)]), LeaseResult::NONE);
    assert!(!leases.send(&path(3)).has_waited);
    assert_eq!(events.take(), ["unleased"; 3]);
    // Not 0, so I/O threads still send requests to workers, which queue leases: a late reply of
    // the daemon grants a lease, too.
    assert_ne!(leases.generation(), 0);
    let queue = shared.table.locked().take_queue();
    assert_eq!(queue.len(), 3);
    shared.change(|table| table.note_leased(&queue[0].path));
    assert!(announce(&leases, &shared, &[path(4)], true).has_waited);
}

#[test]
fn a_lost_connection_publishes_no_generation_and_counts_responses_without_a_lease() {
    let (leases, shared, events) = leases();
    shared.change(Table::begin_leasing);
    shared.change(Table::lose_present);
    assert_eq!(leases.generation(), 0);
    assert!(leases.is_on());
    assert_eq!(leases.announce(&[path(1)]), LeaseResult::NONE);
    assert_eq!(events.take(), ["unleased"]);
}

#[test]
fn a_nar_is_leased_by_each_generation_until_its_response_ends() {
    let (leases, shared, _events) = leases();
    shared.change(|table| table.note_leased(&path(1)));
    let (first, second) = (leases.send(&path(1)), leases.send(&path(1)));
    let renewed = || shared.change(Table::begin_generation).len();
    assert_eq!(renewed(), 1);
    drop(first);
    assert_eq!(renewed(), 1);
    drop(second);
    assert_eq!(renewed(), 0);
}
