#![expect(clippy::unwrap_used, reason = "a test's helper fails by panicking")]
//! An I/O thread is not woken for what can wait: a connection that comes back answered, with
//! nothing left to read. Alone in its file, for its threads are found by name.

mod support;

use std::fs;

use samovar_http::http::Status;
use samovar_http::{Intake, Request, Response};
use support::{By, Reader, connect, eventually, serve};

/// How often the only I/O thread has gone to sleep.
fn sleep_count() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let mut folders = tasks.map(|task| task.unwrap().path());
    let io_thread = folders
        .find(|task| fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "io-0\n"))
        .expect("an I/O thread");
    let status = fs::read_to_string(io_thread.join("status")).unwrap();
    let mut fields = status.lines().filter_map(|line| line.split_once(':'));
    let (_, count) = fields
        .find(|(name, _)| *name == "voluntary_ctxt_switches")
        .unwrap();
    count.trim().parse().unwrap()
}

#[test]
fn an_answered_connection_comes_back_unnoticed() {
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
        // The connection is on its way home before the worker looks for more to do.
        eventually("the worker is done", || server.load().running_count == 0);
    };
    ask();
    let before = sleep_count();
    (0..COUNT).for_each(|_| ask());
    let count = sleep_count() - before;
    // Once for each request, and now and then to look at the clocks.
    assert!(count < COUNT * 3 / 2, "{count} times for {COUNT} requests");
}
