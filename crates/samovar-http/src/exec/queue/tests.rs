use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

use super::*;
use crate::head::{Head, Peer};
use crate::io::slab::Key;
use crate::io::transport::Transport;
use crate::proto::head::HeadIndex;

fn conn() -> Box<Conn> {
    let (socket, _) = UnixStream::pair().unwrap();
    let key = Key::from_bits(0);
    let transport = Transport::Plain(socket.into());
    Box::new(Conn::new(transport, Peer::Unix, 0, key, Instant::now()))
}

fn request() -> Job {
    let index = HeadIndex::default();
    let head = Head::new(b"", &index, Peer::Unix);
    Job::Handle(conn(), Box::new(head.to_request()))
}

fn letter(job: &Job) -> char {
    if job.is_request() { 'h' } else { 'p' }
}

/// As if a thread had been started that is about to look.
fn add_thread(queue: &Queue) {
    queue.lock().thread_count += 1;
}

#[test]
fn answers_under_way_and_new_requests_take_turns() {
    let queue = Queue::new(4, 8, 0);
    add_thread(&queue);
    for _ in 0..4 {
        queue.push(request()).unwrap();
    }
    assert!(queue.push(request()).is_err());
    for _ in 0..3 {
        queue.push(Job::Pump(conn())).unwrap();
    }
    queue.close();
    let mut has_finished = false;
    let order: String = std::iter::from_fn(|| {
        let job = queue.pop(has_finished);
        has_finished = true;
        job
    })
    .map(|job| letter(&job))
    .collect();
    assert_eq!(order, "phphphh");
    assert_eq!(queue.lock().thread_count, 0);
}

#[test]
fn a_job_that_waits_gives_its_place_to_another_thread() {
    let queue = Arc::new(Queue::new(4, 1, 1));
    let (started, starts) = channel();
    queue.set_start(Box::new(move || {
        started.send(()).unwrap();
        Ok(())
    }));
    queue.start_worker().unwrap();
    starts.recv().unwrap();

    queue.push(request()).unwrap();
    assert!(queue.pop(false).is_some());
    queue.push(request()).unwrap();
    assert!(starts.try_recv().is_err(), "one worker, and it runs");
    let place = queue.give_place().unwrap();
    starts.try_recv().unwrap();
    // The new thread.
    assert!(queue.pop(false).is_some());
    let load = queue.load();
    assert_eq!((load.running_count, load.waiting_count), (1, 1));
    queue.push(request()).unwrap();
    assert!(queue.give_place().is_none(), "one may wait");
    assert!(starts.try_recv().is_err());
    drop(place);
    assert_eq!(queue.load().running_count, 2);
    // One thread too many: the first to finish ends although a job waits.
    assert!(queue.pop(true).is_none());
    assert!(queue.pop(true).is_some());
    assert_eq!(queue.lock().thread_count, 1);
}

#[test]
fn a_thread_that_cannot_be_started_is_not_counted() {
    let queue = Queue::new(4, 1, 1);
    queue.set_start(Box::new(|| Err(io::Error::other("no memory"))));
    assert!(queue.start_worker().is_err());
    queue.push(request()).unwrap();
    assert_eq!(queue.lock().thread_count, 0);
}
