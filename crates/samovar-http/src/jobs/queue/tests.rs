use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

use super::*;
use crate::client::{Claimant, Peer};
use crate::conn::Conn;
use crate::head::Head;
use crate::jobs::LentSlot;
use crate::net::key::Key;
use crate::net::transport::Transport;
use crate::observer::Tag;
use crate::proto::head::HeadIndex;
use crate::request::Request;
use crate::response::Place;

fn conn() -> Box<Conn> {
    let (socket, _) = UnixStream::pair().unwrap();
    let key = Key::from_bits(0);
    let transport = Transport::Plain(socket.into());
    Box::new(Conn::new(
        transport,
        Peer::Unix(None),
        0,
        key,
        Instant::now(),
    ))
}

fn request(lane: Lane) -> Job {
    let index = HeadIndex::default();
    let head = Head::new(b"", &index, Peer::Unix(None), None);
    Job::Handle(conn(), Box::new(Request::of(head, lane, Tag::default())))
}

/// A request for a computation for the client with this address.
fn computation(address: &str, comes_first: bool) -> Job {
    let claimant = Claimant::of(Some(address.parse().unwrap()));
    let place = Place {
        lane: Lane::Costly,
        claimant: Some(if comes_first {
            claimant.first()
        } else {
            claimant
        }),
    };
    let index = HeadIndex::default();
    let head = Head::new(b"", &index, Peer::Unix(None), None);
    Job::Handle(conn(), Box::new(Request::of(head, place, Tag::default())))
}

fn letter(job: &Job) -> char {
    if job.is_request() { 'h' } else { 'p' }
}

/// Counts a new thread, which has not checked the queue yet.
fn add_thread(queue: &Queue) {
    queue.lock().thread_count += 1;
}

#[test]
fn responses_in_progress_and_new_requests_alternate() {
    let queue = Queue::new(4, Slots::fixed(8), 0);
    add_thread(&queue);
    for _ in 0..4 {
        queue.push(request(Lane::Prompt)).unwrap();
    }
    assert!(queue.push(request(Lane::Prompt)).is_err());
    for _ in 0..3 {
        queue.push(Job::Pump(conn())).unwrap();
    }
    queue.close();
    let mut finished = None;
    let order: String = std::iter::from_fn(|| {
        let job = queue.pop(finished);
        finished = Some(Finished::In(Lane::Prompt));
        job
    })
    .map(|job| letter(&job))
    .collect();
    assert_eq!(order, "phphphh");
    assert_eq!(queue.lock().thread_count, 0);
}

#[test]
fn a_job_that_waits_lends_its_slot_to_another_thread() {
    let queue = Arc::new(Queue::new(4, Slots::fixed(1), 1));
    let (started, starts) = channel();
    queue.set_start(Box::new(move || {
        started.send(()).unwrap();
        Ok(())
    }));
    queue.start_worker().unwrap();
    starts.recv().unwrap();

    queue.push(request(Lane::Prompt)).unwrap();
    assert!(queue.pop(None).is_some());
    queue.push(request(Lane::Prompt)).unwrap();
    queue.wake();
    assert!(starts.try_recv().is_err(), "one place, and it is taken");
    let place = LentSlot::lend(&queue, Lane::Prompt, Wait::Other).unwrap();
    starts.try_recv().unwrap();
    // The first call of the new thread.
    assert!(queue.pop(None).is_some());
    let load = queue.load();
    assert_eq!((load.running_count, load.waiting_count), (1, 1));
    queue.push(request(Lane::Prompt)).unwrap();
    assert!(
        LentSlot::lend(&queue, Lane::Prompt, Wait::Other).is_none(),
        "one may wait"
    );
    assert!(starts.try_recv().is_err());
    // Jobs that read what they send have places of their own.
    let reading = LentSlot::lend(&queue, Lane::Prompt, Wait::Reading);
    assert!(reading.is_some());
    let more = LentSlot::lend(&queue, Lane::Prompt, Wait::Reading);
    assert!(more.is_none(), "one may read");
    drop(reading);
    drop(place);
    assert_eq!(queue.load().running_count, 2);
    // No other job starts until one of them ends.
    assert_eq!(queue.lock().take().map(drop), None);
    queue.lock().lane(Lane::Prompt).running_count -= 1;
    assert!(queue.pop(Some(Finished::In(Lane::Prompt))).is_some());
}

#[test]
fn a_thread_that_cannot_be_started_is_not_counted() {
    let queue = Queue::new(4, Slots::fixed(1), 1);
    queue.set_start(Box::new(|| Err(io::Error::other("no memory"))));
    assert!(queue.start_worker().is_err());
    queue.push(request(Lane::Prompt)).unwrap();
    queue.wake();
    let state = queue.lock();
    assert_eq!(state.thread_count, 0);
    assert!(!state.is_waking, "the next job tries again");
}

#[test]
fn hanging_jobs_of_one_lane_occupy_no_slot_of_another() {
    let queue = Arc::new(Queue::new(2, Slots::fixed(2), 0));
    let (started, starts) = channel();
    queue.set_start(Box::new(move || {
        started.send(()).unwrap();
        Ok(())
    }));
    for _ in 0..2 {
        queue.push(request(Lane::Slow)).unwrap();
        queue.wake();
        starts.try_recv().unwrap();
        assert!(queue.pop(None).is_some());
    }
    // Both jobs hang, and the queue fills up behind them.
    for _ in 0..2 {
        queue.push(request(Lane::Slow)).unwrap();
    }
    assert!(queue.push(request(Lane::Slow)).is_err());
    queue.wake();
    assert!(starts.try_recv().is_err(), "no place, so no thread");
    for _ in 0..2 {
        queue.push(request(Lane::Prompt)).unwrap();
        queue.wake();
        starts.try_recv().unwrap();
        assert!(queue.pop(None).is_some());
    }
    assert_eq!(queue.lock().thread_count, 4);
    // One slow job ends, and its thread continues with the next slow job.
    let job = queue.pop(Some(Finished::In(Lane::Slow))).unwrap();
    assert_eq!(job.lane(), Lane::Slow);
}

#[test]
fn the_costly_lane_has_one_slot_per_sixteen_initial_workers() {
    for (workers, expected) in [(1, 1), (16, 1), (17, 2), (64, 4)] {
        let slots = Slots {
            base: workers,
            max: 512,
            lends: true,
        };
        let queue = Queue::new(64, slots, 0);
        for _ in 0..8 {
            queue.push(request(Lane::Costly)).unwrap();
        }
        let taken = (0..8).filter(|_| queue.lock().take().is_some()).count();
        assert_eq!(taken, expected, "{workers} workers");
        queue.push(request(Lane::Slow)).unwrap();
        let job = queue.lock().take().unwrap();
        assert_eq!(job.lane(), Lane::Slow);
    }
}

#[test]
fn a_thread_that_is_being_started_is_not_started_twice() {
    let queue = Queue::new(4, Slots::fixed(4), 0);
    let (started, starts) = channel();
    queue.set_start(Box::new(move || {
        started.send(()).unwrap();
        Ok(())
    }));
    for _ in 0..3 {
        queue.push(request(Lane::Prompt)).unwrap();
        queue.wake();
    }
    assert_eq!(starts.try_iter().count(), 1);
    // This thread's check starts another thread for the remaining jobs.
    assert!(queue.pop(None).is_some());
    assert_eq!(starts.try_iter().count(), 1);
}

#[test]
fn a_thread_that_slept_when_the_queue_was_closed_ends() {
    let queue = Arc::new(Queue::new(4, Slots::fixed(1), 0));
    add_thread(&queue);
    queue.push(request(Lane::Prompt)).unwrap();
    assert!(queue.pop(None).is_some());
    // No slot is free for this job, so no second thread is woken.
    queue.push(request(Lane::Prompt)).unwrap();
    add_thread(&queue);
    let second = Arc::clone(&queue);
    let second = std::thread::spawn(move || second.pop(None).is_none());
    while queue.lock().idle.is_empty() {
        std::thread::yield_now();
    }
    queue.close();
    while queue.lock().idle.is_empty() {
        std::thread::yield_now();
    }
    assert!(queue.pop(Some(Finished::In(Lane::Prompt))).is_some());
    assert!(queue.pop(Some(Finished::In(Lane::Prompt))).is_none());
    assert!(second.join().unwrap());
    assert_eq!(queue.lock().thread_count, 0);
}

#[test]
fn networks_take_turns_in_the_costly_lane() {
    let queue = Queue::new(100, Slots::fixed(16), 0);
    let (a, b, c) = ("192.0.2.1", "2001:db8:1::1", "192.0.2.2");
    let (same_b, other) = ("2001:db8:1:2::2", "198.51.100.1");
    let jobs = [
        (other, false),
        (a, true),
        (a, true),
        (a, true),
        (b, true),
        (same_b, true),
        (c, true),
        (other, false),
        (c, false),
    ];
    for (address, comes_first) in jobs {
        queue.push(computation(address, comes_first)).unwrap();
    }
    let taken = std::iter::from_fn(|| {
        let mut state = queue.lock();
        let job = state.take()?;
        state.lane(Lane::Costly).running_count -= 1;
        Some(job.claimant())
    });
    let of = |address: &str| Claimant::of(Some(address.parse().unwrap()));
    let first = [a, b, c, a, b, a].map(|address| of(address).first());
    let last = [other, c, other].map(of);
    assert_eq!(taken.collect::<Vec<_>>(), [&first[..], &last].concat());
}

/// A network gets at most as many places as are still free, and so do all that do not come first.
#[test]
fn no_client_takes_all_places_of_the_costly_lane() {
    let queue = Queue::new(64, Slots::fixed(16), 0);
    let fill = |address: &str, comes_first| {
        let push = || queue.push(computation(address, comes_first)).is_ok();
        (0..100).take_while(|_| push()).count()
    };
    assert_eq!(fill("192.0.2.1", false), 32);
    assert_eq!(fill("192.0.2.2", false), 0);
    assert_eq!(fill("192.0.2.1", true), 16);
    assert_eq!(fill("192.0.2.2", true), 8);
    assert_eq!(fill("192.0.2.3", true), 4);
    // A service that names no client.
    assert!(queue.push(request(Lane::Costly)).is_ok());
}

/// A queue with one slot, which may become four.
fn growing() -> Arc<Queue> {
    let slots = Slots {
        base: 1,
        max: 4,
        lends: true,
    };
    let queue = Arc::new(Queue::new(8, slots, 1));
    queue.set_start(Box::new(|| Ok(())));
    queue
}

#[test]
fn the_monitor_sleeps_until_a_job_waits_for_a_slot() {
    let queue = growing();
    let (rested, rests) = channel();
    let monitor = Arc::clone(&queue);
    let monitor = std::thread::spawn(move || {
        while monitor.rest(None) {
            rested.send(()).unwrap();
        }
    });
    let until_resting = || {
        while queue.lock().monitor.is_none() {
            std::thread::yield_now();
        }
    };
    until_resting();
    queue.push(request(Lane::Prompt)).unwrap();
    queue.wake();
    assert!(queue.pop(None).is_some());
    assert!(queue.lock().monitor.is_some(), "no job waits");
    queue.push(request(Lane::Prompt)).unwrap();
    queue.wake();
    rests.recv().unwrap();
    // The waiting job starts, and a further one waits.
    queue.set_slots(Lane::Prompt, 2);
    assert!(queue.pop(None).is_some());
    until_resting();
    queue.push(request(Lane::Prompt)).unwrap();
    queue.wake();
    rests.recv().unwrap();
    queue.close();
    monitor.join().unwrap();
}

#[test]
fn the_slot_of_a_thread_whose_handler_hangs_is_lent_and_reclaimed() {
    let queue = growing();
    let slots = [Slot::default(), Slot::default()];
    for slot in &slots {
        queue.push(request(Lane::Prompt)).unwrap();
        queue.start_worker().unwrap();
        assert!(queue.pop(None).is_some());
        slot.occupy(Lane::Prompt);
        assert!(queue.lend_for_thread(slot) || queue.load().waiting_count == 1);
    }
    let counts = || (queue.load().running_count, queue.load().waiting_count);
    assert_eq!(counts(), (1, 1), "one slot may be lent");
    // A job that has ended meanwhile lends none.
    let ended = slots[0].finish();
    assert_eq!(ended, Some(Finished::Hanging));
    queue.close();
    assert!(queue.pop(ended).is_none());
    assert_eq!(counts(), (1, 0));
    assert!(queue.lend_for_thread(&slots[0]));
    assert_eq!(counts(), (1, 0));
    assert!(queue.lend_for_thread(&slots[1]));
    assert_eq!(counts(), (0, 1));
}

#[test]
fn threads_beyond_the_initial_slots_end_after_some_time_without_a_job() {
    let queue = growing();
    let initial = queue.threads_base;
    let threads: Vec<_> = (0..initial + 3)
        .map(|_| {
            add_thread(&queue);
            let queue = Arc::clone(&queue);
            std::thread::spawn(move || assert!(queue.pop(None).is_none()))
        })
        .collect();
    while queue.lock().thread_count > initial {
        std::thread::yield_now();
    }
    queue.close();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}
