//! A new process takes over the sockets of an old one, and no connection is lost.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::net::RecvFlags;
use samovar_http::handover;
use samovar_http::http::Status;
use samovar_http::{Intake, Listener, Request, Response, Server};
use support::{By, Reader, connect, eventually};

type Handler = Box<dyn Fn(&mut Request) -> Response + Send + Sync>;

fn named(name: &'static str) -> By<Handler> {
    By {
        handle: Box::new(move |_| Response::text(Status::OK, name)),
        intake: Intake::Buffered(0),
    }
}

fn start(name: &'static str, io_threads: usize, listeners: Vec<Listener>) -> Server<By<Handler>> {
    let mut builder = Server::builder(named(name)).io_threads(io_threads);
    for listener in listeners {
        builder = builder.listen(listener);
    }
    builder.start().unwrap()
}

#[test]
fn an_upgrade_refuses_no_connection() {
    // The new process has fewer threads, more threads, or as many as the old one.
    for (old_threads, new_threads) in [(3, 2), (2, 3), (2, 2)] {
        let dir = tempfile::tempdir().unwrap();
        let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 128).unwrap();
        let socket_path = dir.path().join("http");
        let unix = Listener::unix(&socket_path, 128).unwrap();
        let old = start("old", old_threads, vec![listener, unix]);
        let addr = old.local_addrs()[0];
        let (answered, is_done) = (Arc::new(AtomicUsize::new(0)), AtomicBool::new(false));
        let new = std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_done.load(Ordering::SeqCst) {
                        let mut client = Reader::new(connect(addr));
                        client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
                        let answer = client.next(false).expect("no connection is lost");
                        assert_eq!(answer.status, 200);
                        answered.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            let some_more = || {
                let before = answered.load(Ordering::SeqCst);
                eventually("answers", || answered.load(Ordering::SeqCst) > before + 100);
            };
            some_more();
            let (ours, theirs) = UnixStream::pair().unwrap();
            let old = &old;
            let drained = scope.spawn(move || {
                assert!(handover::give(&ours, old).unwrap());
                old.drain(Duration::from_secs(20));
            });
            let (listeners, predecessor) = handover::take(theirs).unwrap();
            assert_eq!(listeners.len(), 2);
            let new = start("new", new_threads, listeners);
            some_more();
            predecessor.release().unwrap();
            drained.join().unwrap();
            some_more();
            is_done.store(true, Ordering::SeqCst);
            new
        });
        // From here on, only the new process serves.
        for _ in 0..20 {
            let mut client = Reader::new(connect(addr));
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(client.next(false).unwrap().body, b"new");
        }
        assert!(std::os::unix::net::UnixStream::connect(&socket_path).is_ok());
        drop(new);
    }
}

#[test]
fn a_failed_successor_does_not_affect_the_running_server() {
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 128).unwrap();
    let old = start("old", 1, vec![listener]);
    let addr = old.local_addrs()[0];
    for releases in [false, false, false, true] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let given = scope.spawn(|| handover::give(&ours, &old));
            let (_listeners, predecessor) = handover::take(theirs).unwrap();
            if releases {
                predecessor.release().unwrap();
            } else {
                drop(predecessor);
            }
            assert_eq!(given.join().unwrap().unwrap(), releases);
        });
        let mut client = Reader::new(connect(addr));
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.next(false).unwrap().body, b"old");
    }
}

#[test]
fn several_servers_share_one_port() {
    let first = Listener::tcp_shared("127.0.0.1:0".parse().unwrap(), 128).unwrap();
    let addr = first.local_addr().unwrap();
    assert!(
        Listener::tcp(addr, 128).is_err(),
        "shared with those who say so"
    );
    let second = Listener::tcp_shared(addr, 128).unwrap();
    let _first = start("first", 1, vec![first]);
    let _second = start("second", 1, vec![second]);
    let mut counts = [0, 0];
    eventually("both are asked", || {
        let mut client = Reader::new(connect(addr));
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let is_second = client.next(false).unwrap().body == b"second";
        counts[usize::from(is_second)] += 1;
        counts.iter().all(|count| *count > 0)
    });
}

/// If the successor ends early at any point, the old process gets a result rather than an I/O
/// error.
#[test]
fn give_returns_false_if_the_successor_ends_early() {
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 128).unwrap();
    let server = start("old", 1, vec![listener]);

    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    assert!(!handover::give(&ours, &server).unwrap());

    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let given = scope.spawn(|| handover::give(&ours, &server));
        let mut byte = [0];
        eventually("the message waits unread", || {
            rustix::net::recv(&theirs, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT).is_ok()
        });
        drop(theirs);
        assert!(!given.join().unwrap().unwrap());
    });
}
