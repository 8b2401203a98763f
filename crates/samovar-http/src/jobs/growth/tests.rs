use proptest::prelude::*;

use super::*;

const BASE: usize = 16;
const MAX: usize = 512;

/// A lane in which `demand` clients each always have one request, and a part of the running
/// handlers computes.
struct World {
    growth: Growth,
    now: Instant,
    slots: usize,
}

impl World {
    fn new() -> Self {
        Self {
            growth: Growth::new(BASE, MAX),
            now: Instant::now(),
            slots: BASE,
        }
    }

    /// Looks once, while `percent` of the running handlers compute, and lets the time until the
    /// next look pass.
    fn look(&mut self, demand: usize, percent: usize) -> Outcome {
        let running = demand.min(self.slots);
        let outcome = self.growth.look(Sight {
            now: self.now,
            queued: demand - running,
            running,
            examined: running,
            computing: running * percent / 100,
        });
        self.slots = outcome.slots;
        self.now += outcome.next.unwrap_or_default();
        outcome
    }
}

#[test]
fn a_hundred_sleeping_handlers_run_after_some_milliseconds() {
    let mut world = World::new();
    let start = world.now;
    while world.slots < 100 {
        world.look(100, 0);
    }
    assert!(
        world.now - start <= 3 * LOOK_TIME,
        "{:?}",
        world.now - start
    );
    assert_eq!(world.slots, 100, "no more slots than are needed");
}

#[test]
fn computing_handlers_get_no_further_slots() {
    let mut world = World::new();
    for _ in 0..1000 {
        assert_eq!(world.look(4000, 100).slots, BASE);
    }
    assert_eq!(world.growth.look_time, LOOK_TIME_MAX);
}

#[test]
fn handlers_that_compute_a_tenth_of_the_time_get_ten_times_as_many_slots() {
    let mut world = World::new();
    for _ in 0..1000 {
        world.look(4000, 10);
    }
    assert!(
        (8 * BASE..=11 * BASE).contains(&world.slots),
        "{}",
        world.slots
    );
}

#[test]
fn slots_for_sleeping_handlers_are_taken_from_computing_ones() {
    let mut world = World::new();
    while world.slots < 300 {
        world.look(300, 0);
    }
    // Also if no job waits.
    for _ in 0..10 {
        world.look(250, 100);
    }
    assert!(world.slots < 2 * BASE, "{}", world.slots);
}

#[test]
fn unused_slots_are_given_up_after_a_second_and_the_looks_end() {
    let mut world = World::new();
    while world.slots < 300 {
        world.look(300, 0);
    }
    let start = world.now;
    while world.look(100, 0).slots == 300 {}
    let time = world.now - start;
    assert!(
        time >= SETTLE_TIME && time <= SETTLE_TIME + 2 * QUIET_TIME_MAX,
        "{time:?}"
    );
    assert_eq!(world.slots, 100);
    let start = world.now;
    while world.look(0, 0).next.is_some() {}
    assert!(world.now - start <= 3 * SETTLE_TIME);
    assert_eq!(world.slots, BASE);
}

#[test]
fn at_the_maximum_handlers_that_hang_may_lend_their_slots() {
    let mut world = World::new();
    while world.slots < MAX {
        assert_eq!(world.look(600, 0).lendable, 0);
    }
    assert_eq!(world.look(600, 0).lendable, 88);
    assert_eq!(world.look(600, 100).lendable, 0, "not while they compute");
}

#[test]
fn if_nothing_is_known_of_the_threads_there_are_no_further_slots() {
    let now = Instant::now();
    let (queued, running, examined, computing) = (100, BASE, 0, 0);
    let outcome = Growth::new(BASE, MAX).look(Sight {
        now,
        queued,
        running,
        examined,
        computing,
    });
    assert_eq!((outcome.slots, outcome.lendable), (BASE, 0));
}

fn sight() -> impl Strategy<Value = (usize, usize, usize, usize, u64)> {
    (
        0..2000_usize,
        0..600_usize,
        0..20_usize,
        0..=100_usize,
        0..2000_u64,
    )
}

proptest! {
    #[test]
    fn the_number_of_slots_stays_within_its_limits(
        sights in prop::collection::vec(sight(), 1..200),
    ) {
        let mut growth = Growth::new(BASE, MAX);
        let mut now = Instant::now();
        for (queued, running, examined, percent, passed_ms) in sights {
            now += Duration::from_millis(passed_ms);
            let before = growth.slots;
            let computing = examined * percent / 100;
            let sight = Sight { now, queued, running, examined, computing };
            let is_starved = queued > 0 && running >= before;
            let outcome = growth.look(sight);
            prop_assert!((BASE..=MAX).contains(&outcome.slots));
            prop_assert!(outcome.slots <= 2 * before);
            prop_assert!(outcome.slots <= before || is_starved);
            prop_assert!(outcome.slots <= before + queued);
            prop_assert!(outcome.lendable == 0 || outcome.slots == MAX && is_starved);
            prop_assert!(!is_starved || outcome.next.is_some_and(|time| time <= LOOK_TIME_MAX));
            if sight.all_computing() >= BASE {
                prop_assert!(outcome.slots <= before && outcome.lendable == 0);
            }
        }
        // Without jobs, the lane is soon as at its start.
        for _ in 0..64 {
            now += QUIET_TIME_MAX;
            let (queued, running, examined, computing) = (0, 0, 0, 0);
            growth.look(Sight { now, queued, running, examined, computing });
        }
        prop_assert_eq!(growth.slots, BASE);
    }
}
