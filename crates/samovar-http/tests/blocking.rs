#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
//! Handlers that block need no setting: hundreds of them run at the same time, and a request is
//! answered while more handlers hang than there are slots. Handlers that compute get no further
//! threads, and a maximum that the application sets holds.

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use samovar_http::{Request, Router, Server};
use support::h2_app::Gate;
use support::{Reader, connect, eventually, serve};

/// Number of handlers that hang: more than there are slots.
const HANGING: usize = 600;

fn allow_descriptors(count: u64) {
    let limit = getrlimit(Resource::Nofile);
    let enough = Rlimit {
        current: limit
            .maximum
            .map_or(Some(count), |max| Some(count.min(max))),
        ..limit
    };
    setrlimit(Resource::Nofile, enough).unwrap();
}

/// Opens the gate when dropped, so that a failing test does not hang.
struct Opened(Arc<Gate>);

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Returns a router whose handler `/wait` waits for the gate.
fn waiting() -> (Router, Opened) {
    let gate = Arc::new(Gate::default());
    let opened = Opened(Arc::clone(&gate));
    let router = Router::new()
        .get("/", |_| "here")
        .get("/wait", move |_: &mut Request| gate.pass());
    (router, opened)
}

fn ask(addr: SocketAddr, path: &str) -> Reader {
    let mut client = Reader::new(connect(addr));
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    client
}

fn check_answered(addr: SocketAddr) {
    assert_eq!(ask(addr, "/").next(false).unwrap().body, b"here");
}

fn eventually_hang(server: &Server<Router>, count: usize) {
    eventually("all handlers run", || {
        let load = server.load();
        load.running_count + load.waiting_count == count
    });
}

#[test]
fn a_request_is_answered_while_more_handlers_hang_than_there_are_slots() {
    allow_descriptors(4096);
    let (router, opened) = waiting();
    let (server, addr) = serve(router, |builder| builder.io_threads(1));
    let mut hanging: Vec<_> = (0..HANGING).map(|_| ask(addr, "/wait")).collect();
    eventually_hang(&server, HANGING);
    check_answered(addr);
    // The handlers whose slots were lent complete as usual.
    drop(opened);
    for client in &mut hanging {
        assert_eq!(client.next(false).unwrap().status, 204);
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    for client in &mut hanging {
        assert_eq!(client.next(false).unwrap().body, b"here");
    }
    eventually_hang(&server, 0);
}

#[test]
fn a_maximum_that_the_application_sets_holds() {
    let (router, opened) = waiting();
    let cores = available_parallelism().unwrap().get();
    let max = 8 * cores + 8;
    let (server, addr) = serve(router, |builder| builder.io_threads(1).workers(max));
    let mut hanging: Vec<_> = (0..2 * max).map(|_| ask(addr, "/wait")).collect();
    // Among them, some must wait for slots beyond the initial ones.
    eventually("the maximum runs, and the others wait", || {
        let load = server.load();
        load.running_count == max && load.queued_count == max
    });
    assert_eq!(server.load().worker_count, max);
    assert_eq!(server.load().waiting_count, 0);
    drop(opened);
    for client in &mut hanging {
        assert_eq!(client.next(false).unwrap().status, 204);
    }
}

#[test]
fn handlers_that_compute_get_no_further_threads() {
    let cores = available_parallelism().unwrap().get();
    let running = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let compute = {
        let (running, most) = (Arc::clone(&running), Arc::clone(&most));
        move |_: &mut Request| {
            let count = running.fetch_add(1, Ordering::Relaxed) + 1;
            most.fetch_max(count, Ordering::Relaxed);
            let started = Instant::now();
            while started.elapsed() < Duration::from_millis(50) {
                std::hint::spin_loop();
            }
            running.fetch_sub(1, Ordering::Relaxed);
        }
    };
    let router = Router::new().get("/", compute);
    let (_server, addr) = serve(router, |builder| builder.io_threads(1));
    for _ in 0..3 {
        let mut clients: Vec<_> = (0..100 * cores).map(|_| ask(addr, "/")).collect();
        for client in &mut clients {
            assert_eq!(client.next(false).unwrap().status, 204);
        }
    }
    // Twice the number of initial slots; without the rule, all would run.
    let most = most.load(Ordering::Relaxed);
    assert!(
        most <= 16 * cores,
        "{most} handlers computed at the same time"
    );
}
