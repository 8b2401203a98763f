#![expect(clippy::unwrap_used, reason = "a test's helper fails by panicking")]
//! Threads are not woken without need. An I/O thread is not woken when a worker returns a
//! connection that has nothing left to read or whose response is deferred; no worker is woken for a
//! deferred response in memory; the monitor is not woken while slots are free; and with wake-up
//! coalescing, many requests share a wake-up. The tests have their own file, because they find
//! threads by name.

mod support;

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use samovar_http::http::Status;
use samovar_http::{Intake, Request, Response};
use support::{By, Reader, connect, eventually, promising, serve};
use testkit::limit;

/// Delay of coalesced wake-ups.
const DELAY: Duration = Duration::from_millis(50);

/// Returns how often the only thread with this name has gone to sleep.
fn sleep_count(name: &str) -> u64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let mut folders = tasks.map(|task| task.unwrap().path());
    let thread = folders
        .find(|task| fs::read_to_string(task.join("comm")).is_ok_and(|it| it.trim_end() == name))
        .expect("the thread");
    let status = fs::read_to_string(thread.join("status")).unwrap();
    let mut fields = status.lines().filter_map(|line| line.split_once(':'));
    let (_, count) = fields
        .find(|(name, _)| *name == "voluntary_ctxt_switches")
        .unwrap();
    count.trim().parse().unwrap()
}

/// Returns the maximum number of checks of the time limits since then: one per 250 ms.
fn check_count(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_millis() / 250).unwrap() + 1
}

#[test]
fn the_return_of_an_answered_connection_wakes_no_thread() {
    const COUNT: u64 = 200;
    let service = By {
        handle: |_: &mut Request| Response::text(Status::OK, "here"),
        intake: Intake::Buffered(0),
    };
    let (server, addr) = serve(service, |builder| builder.io_threads(1));
    let mut client = Reader::new(connect(addr));
    let mut ask = || {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.next(false).unwrap().body, b"here");
        // The worker returns the connection before it takes the next job.
        eventually("the worker is done", || server.load().running_count == 0);
    };
    ask();
    let (before, started) = (sleep_count("io-0"), Instant::now());
    eventually("the monitor sleeps", || sleep_count("monitor") > 0);
    let monitor_before = sleep_count("monitor");
    (0..COUNT).for_each(|_| ask());
    let count = sleep_count("io-0") - before;
    // No request has waited for a worker. The monitor may have slept once more at its start.
    let monitor_count = sleep_count("monitor") - monitor_before;
    limit::count_at_most("wake-ups of the monitor", monitor_count, 1);
    // One wake-up per request, plus those for checks of the time limits.
    let most = COUNT * 3 / 2 + check_count(started);
    limit::count_at_most("wake-ups of the I/O thread", count, most);
}

#[test]
fn a_deferred_response_causes_one_wake_up() {
    const COUNT: u64 = 200;
    let (service, promised) = promising(Intake::Buffered(0));
    let (server, addr) = serve(service, |builder| {
        builder.io_threads(1).workers(1).name("later-")
    });
    let mut client = Reader::new(connect(addr));
    let mut ask = || {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let responder = promised.recv().unwrap();
        eventually("the worker is done", || server.load().running_count == 0);
        responder.respond(Response::text(Status::OK, "here"));
        assert_eq!(client.next(false).unwrap().body, b"here");
    };
    ask();
    let sleep_counts = || [sleep_count("later-io-0"), sleep_count("later-worker")];
    let (before, started) = (sleep_counts(), Instant::now());
    (0..COUNT).for_each(|_| ask());
    let [io, worker] = sleep_counts();
    let (io, worker) = (io - before[0], worker - before[1]);
    // One wake-up for the request and one for the response, plus those for checks of the time
    // limits.
    let most = COUNT * 5 / 2 + check_count(started);
    limit::count_at_most("wake-ups of the I/O thread", io, most);
    limit::count_at_most("wake-ups of the worker", worker, COUNT * 3 / 2);
}

/// Sends requests on `client_count` connections in turn, in 40 rounds. Returns the times of the
/// rounds, sorted, and the number of times that the I/O thread went to sleep. The server coalesces
/// wake-ups for [`DELAY`].
fn with_coalescing(name: &str, client_count: usize, pause: Duration) -> (Vec<Duration>, u64) {
    let service = By {
        handle: |_: &mut Request| Response::text(Status::OK, "here"),
        intake: Intake::Buffered(0),
    };
    let (_server, addr) = serve(service, |builder| {
        let builder = builder.io_threads(1).name(name);
        builder.coalescing(DELAY)
    });
    let thread = format!("{name}io-0");
    let clients = 0..client_count;
    let mut clients: Vec<_> = clients.map(|_| Reader::new(connect(addr))).collect();
    let ask = |client: &mut Reader| client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    // The thread sets its own name, so it has the name once the first response has arrived.
    ask(&mut clients[0]);
    clients[0].next(false).unwrap();
    let before = sleep_count(&thread);
    let mut times = Vec::new();
    for round in 0..40 {
        let started = Instant::now();
        for client in &mut clients {
            ask(client);
            std::thread::sleep(pause);
        }
        for client in &mut clients {
            assert_eq!(client.next(false).unwrap().body, b"here", "round {round}");
        }
        times.push(started.elapsed());
    }
    times.sort_unstable();
    (times, sleep_count(&thread) - before)
}

#[test]
fn coalescing_delays_requests_on_many_connections() {
    // With this pause, each request arrives alone.
    let (times, count) = with_coalescing("many-", 64, Duration::from_micros(200));
    let time: Duration = times.iter().sum();
    // Two sleeps per delay: the delay, and the wait for the next request.
    let most = 2 * time.as_millis() / DELAY.as_millis() + 10;
    limit::count_at_most("wake-ups", count, most.try_into().unwrap());
}

#[test]
fn coalescing_does_not_delay_requests_on_few_connections() {
    let (times, _) = with_coalescing("few-", 63, Duration::ZERO);
    // Other work on the machine may delay some rounds; coalescing would delay every round.
    assert!(times[3] < DELAY, "{times:?}");
}

#[test]
fn a_deferred_response_may_be_complete_before_its_connection_returns() {
    const CLIENTS: usize = 16;
    const COUNT: usize = 500;
    let (service, promised) = promising(Intake::Buffered(0));
    let (_server, addr) = serve(service, |builder| builder.io_threads(1).name("early-"));
    std::thread::spawn(move || {
        for responder in promised {
            responder.respond(Response::text(Status::OK, "here"));
        }
    });
    let run = || {
        let slow_count = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    let mut client = Reader::new(connect(addr));
                    for _ in 0..COUNT {
                        let asked = Instant::now();
                        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
                        assert_eq!(client.next(false).unwrap().body, b"here");
                        let is_slow = asked.elapsed() > Duration::from_millis(100);
                        slow_count.fetch_add(usize::from(is_slow), Ordering::Relaxed);
                    }
                });
            }
        });
        slow_count.into_inner()
    };
    // After a lost wake-up, the server would notice the event only at the next check of the time
    // limits. Other work on the machine may delay some runs; a lost wake-up would delay every run.
    let mut slow_counts = std::iter::repeat_with(run).take(5);
    let is_prompt = slow_counts.any(|count| count < CLIENTS * COUNT / 100);
    assert!(is_prompt, "too many slow responses in every run");
}
