use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use super::*;

const LONG: Duration = Duration::from_secs(60);

/// Waits by blocking the thread.
#[derive(Debug)]
struct Block;

impl Wait for Block {
    fn wait(&self, is_ready: &mut dyn FnMut(Duration) -> bool) -> io::Result<()> {
        while !is_ready(Duration::from_millis(200)) {}
        Ok(())
    }
}

/// Counts its calls and never waits.
#[derive(Debug)]
struct Counted<'a>(&'a AtomicUsize);

impl Wait for Counted<'_> {
    fn wait(&self, is_ready: &mut dyn FnMut(Duration) -> bool) -> io::Result<()> {
        assert!(!is_ready(Duration::ZERO));
        self.0.fetch_add(1, Ordering::Relaxed);
        Err(io::ErrorKind::ConnectionAborted.into())
    }
}

fn take(gate: &Gate, key: i64, amount: u64) -> Option<Permit<'_>> {
    gate.acquire(key, amount, Duration::ZERO, &Block).ok()
}

/// Waits until `count` callers wait at the gate.
fn await_waiting(gate: &Gate, count: usize) {
    while gate.state().waiting.len() != count {
        thread::yield_now();
    }
}

#[test]
fn a_key_and_all_keys_together_are_limited() {
    let gate = Gate::new((2, 3));
    let held = [take(&gate, 1, 1).unwrap(), take(&gate, 1, 1).unwrap()];
    assert!(take(&gate, 1, 1).is_none(), "limit of the key");
    let other = take(&gate, 2, 1).unwrap();
    assert!(take(&gate, 2, 1).is_none() && take(&gate, 3, 1).is_none());
    drop(other);
    assert!(take(&gate, 3, 1).is_some());
    drop(held);
    assert!(take(&gate, 1, 2).is_some());
    assert!(take(&gate, 1, 3).is_none(), "more than a key may ever have");
    let state = gate.state();
    assert!(state.sum == 0 && state.held.is_empty() && state.waiting.is_empty());
}

#[test]
fn callers_are_served_in_the_order_of_their_arrival() {
    let gate = Gate::new((4, 4));
    let first = take(&gate, 1, 4).unwrap();
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for (at, amount) in [3, 1, 4, 1].into_iter().enumerate() {
            let (gate, sender) = (&gate, sender.clone());
            scope.spawn(move || {
                let permit = gate.acquire(at as i64 + 2, amount, LONG, &Block).unwrap();
                sender.send(amount).unwrap();
                drop(permit);
            });
            await_waiting(gate, at + 1);
        }
        drop(first);
    });
    let order: Vec<u64> = receiver.try_iter().collect();
    // The first two acquire their amounts together. The last one does not overtake the third.
    assert_eq!(order.len(), 4);
    assert_eq!(order[3], 1, "{order:?}");
    assert_eq!(order[2], 4, "{order:?}");
}

#[test]
fn a_key_at_its_limit_keeps_no_other_key_waiting() {
    let gate = Gate::new((2, 4));
    let held = take(&gate, 1, 2).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| gate.acquire(1, 1, LONG, &Block).is_ok());
        await_waiting(&gate, 1);
        assert!(take(&gate, 2, 2).is_some());
        drop(held);
        assert!(waiting.join().unwrap());
    });
}

#[test]
fn a_caller_that_stops_waiting_leaves_the_queue() {
    let gate = Gate::new((1, 1));
    let held = take(&gate, 1, 1).unwrap();
    let calls = AtomicUsize::new(0);
    let stopped = gate.acquire(1, 1, LONG, &Counted(&calls)).unwrap_err();
    assert!(matches!(stopped, MemoryError::Stopped(_)));
    let patience = Duration::from_millis(1);
    let busy = gate.acquire(1, 1, patience, &Block).unwrap_err();
    assert!(matches!(busy, MemoryError::Busy));
    assert!(gate.state().waiting.is_empty());
    drop(held);
    assert!(take(&gate, 1, 1).is_some());
}

#[test]
fn the_number_of_waiting_callers_is_limited() {
    let gate = Gate::new((1, 1));
    let _held = take(&gate, 1, 1).unwrap();
    let wait_in_vain = |key| {
        let waited = AtomicUsize::new(0);
        let wait = Counted(&waited);
        let refused = gate.acquire(key, 1, LONG, &wait);
        assert!(matches!(
            refused,
            Err(MemoryError::Stopped(_)) | Err(MemoryError::Busy)
        ));
        waited.into_inner() == 1
    };
    let fill = |key, count| {
        for _ in 0..count {
            let ticket = u64::MAX - gate.state().waiting.len() as u64;
            let amount = 1;
            gate.state().waiting.push_back(Waiting {
                ticket,
                key,
                amount,
            });
        }
    };
    fill(1, WAITING_MAX.0 - 1);
    assert!(wait_in_vain(1), "one below the limit of a key");
    fill(1, 1);
    assert!(!wait_in_vain(1), "at the limit of a key");
    fill(2, WAITING_MAX.1 - WAITING_MAX.0 - 1);
    assert!(wait_in_vain(3), "one below the limit of all");
    fill(3, 1);
    assert!(!wait_in_vain(3), "at the limit of all");
}

#[test]
fn uploads_of_a_token_and_of_all_are_limited() {
    let admission = Admission::default();
    let admit = |token| admission.admit(token, &Block, Duration::ZERO);
    let mut of_one: Vec<_> = (0..64).map(|_| admit(1).unwrap()).collect();
    assert!(matches!(admit(1), Err(MemoryError::Busy)));
    of_one.pop();
    of_one.push(admit(1).unwrap());
    let others: Vec<_> = (64..512).map(|at| admit(at / 64 + 1).unwrap()).collect();
    assert!(matches!(admit(0), Err(MemoryError::Busy)));
    drop(of_one);
    assert!(admit(0).is_ok());
    drop(others);
}

#[test]
fn uploads_in_progress_and_waiting_ones_are_counted() {
    let admission = Admission::default();
    let usage = |running, waiting| Usage {
        running,
        running_max: UPLOADS_MAX.1,
        waiting,
    };
    let mut first = admission.admit(1, &Block, LONG).unwrap();
    first.reserve(MEMORY_MAX.0).unwrap();
    assert_eq!(admission.usage(), usage(1, 0));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut second = admission.admit(1, &Block, LONG).unwrap();
            second.reserve(1).is_ok()
        });
        await_waiting(&admission.memory, 1);
        assert_eq!(admission.usage(), usage(2, 1));
        drop(first);
        assert!(waiting.join().unwrap());
    });
    assert_eq!(admission.usage(), usage(0, 0));
}

#[test]
fn tokens_take_turns_alternately() {
    let gate = Gate {
        alternates: true,
        ..Gate::new((1, 1))
    };
    let first = take(&gate, 1, 1).unwrap();
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for (at, key) in [1, 1, 1, 2, 3, 2].into_iter().enumerate() {
            let (gate, sender) = (&gate, sender.clone());
            scope.spawn(move || {
                let permit = gate.acquire(key, 1, LONG, &Block).unwrap();
                sender.send(key).unwrap();
                drop(permit);
            });
            await_waiting(gate, at + 1);
        }
        drop(first);
    });
    let order: Vec<i64> = receiver.try_iter().collect();
    assert_eq!(order, [2, 1, 3, 1, 2, 1]);
}

#[test]
fn an_upload_has_a_turn_while_it_works_and_none_while_it_rests() {
    let admission = Admission::default();
    let turns = || admission.turns.state().sum;
    let mut upload = admission.admit(1, &Block, LONG).unwrap();
    upload.work(TURN_FREE_LEN - 1).unwrap();
    assert_eq!(turns(), 0, "a small NAR");
    upload.work(TURN_FREE_LEN).unwrap();
    assert_eq!(turns(), 1);
    upload.rest();
    assert_eq!(turns(), 0);
    upload.work(2 * TURN_FREE_LEN).unwrap();
    let start = |upload: &Admitted<'_>| upload.turn.as_ref().map(|(_, start)| *start);
    upload.work(2 * TURN_FREE_LEN + TURN_LEN - 1).unwrap();
    assert_eq!(start(&upload), Some(2 * TURN_FREE_LEN));
    upload.work(2 * TURN_FREE_LEN + TURN_LEN).unwrap();
    assert_eq!(start(&upload), Some(2 * TURN_FREE_LEN + TURN_LEN));
    drop(upload);
    assert_eq!(turns(), 0);
}

#[test]
fn memory_of_a_token_and_of_all_is_limited() {
    let admission = Admission::default();
    let admit = |token| admission.admit(token, &Block, Duration::ZERO).unwrap();
    let mib = |count: u64| count << 20;
    let (mut first, mut second) = (admit(1), admit(1));
    first.reserve(mib(128)).unwrap();
    second.reserve(mib(32) + 1).unwrap_err();
    second.reserve(mib(32)).unwrap();
    let (mut third, mut fourth) = (admit(2), admit(3));
    third.reserve(mib(96) + 1).unwrap_err();
    third.reserve(mib(96)).unwrap();
    fourth.reserve(1).unwrap_err();
    drop(first);
    fourth.reserve(mib(128) + 1).unwrap_err();
    fourth.reserve(mib(128)).unwrap();
}

#[test]
fn an_upload_that_holds_memory_does_not_wait_for_more() {
    let admission = Admission::default();
    let admit = |token| admission.admit(token, &Block, LONG).unwrap();
    let (mut first, mut second) = (admit(1), admit(2));
    first.reserve(100 << 20).unwrap();
    second.reserve(100 << 20).unwrap();
    first.reserve(156 << 20).unwrap();
    assert!(matches!(
        second.reserve((100 << 20) + 1),
        Err(MemoryError::Busy)
    ));
    drop(first);
    second.reserve(160 << 20).unwrap();
    assert!(matches!(
        second.reserve((160 << 20) + 1),
        Err(MemoryError::Busy)
    ));
    drop(second);
    let state = admission.memory.state();
    assert!(state.sum == 0 && state.held.is_empty());
}
