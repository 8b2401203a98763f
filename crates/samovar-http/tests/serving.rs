//! A server responds to valid requests over real sockets.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use samovar_http::http::Status;
use samovar_http::{
    Batch, Body, End, Exchange, Head, Inline, Intake, Limits, Listener, Observer, Prepared,
    Progress, Reply, Request, Response, Server, Service, Source, Turn,
};
use support::{Reader, connect, serve};

/// A service with one route for each kind of response.
struct Routes {
    prepared: Prepared,
    released: Mutex<Option<Receiver<()>>>,
    entered: AtomicUsize,
    observed: Mutex<Vec<(String, u16, u64, bool)>>,
}

impl Routes {
    fn new() -> Self {
        Self {
            prepared: Prepared::new(Status::OK, &[("Content-Type", "text/plain")], b"inline\n"),
            released: Mutex::new(None),
            entered: AtomicUsize::new(0),
            observed: Mutex::default(),
        }
    }

    fn gated() -> (Self, Sender<()>) {
        let (sender, receiver) = channel();
        (
            Self {
                released: Mutex::new(Some(receiver)),
                ..Self::new()
            },
            sender,
        )
    }
}

/// A source that announces `len` bytes and yields `actual` bytes; byte `i` is `i mod 251`.
struct Pattern {
    len: Option<u64>,
    actual: u64,
    at: u64,
}

impl Source for Pattern {
    fn len(&self) -> Option<u64> {
        self.len
    }

    fn pull(&mut self, batch: &mut Batch) -> std::io::Result<Progress> {
        let room = batch.room();
        let taken = room.len().min((self.actual - self.at) as usize);
        for (slot, i) in room[..taken].iter_mut().zip(self.at..) {
            *slot = (i % 251) as u8;
        }
        batch.advance(taken);
        self.at += taken as u64;
        Ok(if self.at == self.actual {
            Progress::End
        } else {
            Progress::More
        })
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

impl Service for Routes {
    type Local = ();

    fn local(&self) {}

    fn inline(&self, _: &mut (), _: Turn, head: Head<'_>, reply: Reply<'_>) -> Inline {
        match head.path() {
            b"/inline" => reply.prepared(&self.prepared),
            b"/inline-panic" => panic!("on purpose"),
            _ => reply.dispatch(),
        }
    }

    fn handle(&self, request: &mut Request) -> Response {
        let head = request.head();
        let path = std::str::from_utf8(head.path()).unwrap();
        let source = |len: Option<u64>, actual| {
            Response::new(
                Status::OK,
                Body::Source(Box::new(Pattern { len, actual, at: 0 })),
            )
        };
        match path.split('/').nth(1).unwrap() {
            "echo" => Response::new(Status::OK, Body::Bytes(request.body().to_vec().into())),
            "text" => Response::text(Status::OK, format!("{path}\n")),
            "big" => Response::new(Status::OK, Body::Shared(pattern(1_000_000).into())),
            "source" => source(Some(10_000_000), 10_000_000),
            // Longer than the socket buffers.
            "huge" => source(Some(200_000_000), 200_000_000),
            "short" => source(Some(3_000_000), 2_999_999),
            "long" => source(Some(3_000_000), 3_000_001),
            "unknown" => source(None, 1_000_000),
            "none" => source(None, 0),
            "panic" => panic!("on purpose"),
            "gate" => {
                self.entered.fetch_add(1, Ordering::SeqCst);
                if let Some(receiver) = &*self.released.lock().unwrap() {
                    receiver.recv().unwrap();
                }
                Response::text(Status::OK, "released\n")
            }
            _ => Response::new(Status::NO_CONTENT, Body::Empty),
        }
    }

    fn intake(&self, _: Head<'_>) -> Intake {
        Intake::Buffered(100_000)
    }

    fn observer(&self) -> &dyn Observer {
        self
    }
}

impl Observer for Routes {
    fn observes(&self) -> bool {
        true
    }

    fn exchanged(&self, exchange: &Exchange<'_>) {
        let path = String::from_utf8_lossy(exchange.head.path()).into_owned();
        let seen = (
            path,
            exchange.status.code(),
            exchange.body_len,
            exchange.end == End::Complete,
        );
        self.observed.lock().unwrap().push(seen);
    }
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

#[test]
fn responses_keep_the_order_of_pipelined_requests() {
    let (server, addr) = serve(Routes::new(), |builder| builder.workers(8));
    let mut client = Reader::new(connect(addr));
    let paths: Vec<String> = (0..200)
        .map(|i| {
            if i % 3 == 0 {
                "/inline".into()
            } else {
                format!("/text/{i}")
            }
        })
        .collect();
    client.send(paths.iter().map(|path| get(path)).collect::<String>());
    for path in &paths {
        let expected = if path == "/inline" {
            "inline\n".into()
        } else {
            format!("{path}\n")
        };
        let answer = client.next(false).unwrap();
        assert_eq!((answer.status, answer.body), (200, expected.into_bytes()));
    }
    // The exchange is reported after its last byte was sent, so the client may be ahead of the
    // report.
    let start = Instant::now();
    while server.service().observed.lock().unwrap().len() < 200 {
        assert!(start.elapsed() < Duration::from_secs(60));
    }
}

#[test]
fn head_has_the_length_and_no_body() {
    let (_server, addr) = serve(Routes::new(), |builder| builder);
    let mut client = Reader::new(connect(addr));
    for (path, len) in [
        ("/inline", 7),
        ("/text/x", 8),
        ("/source", 10_000_000),
        ("/big", 1_000_000),
    ] {
        client.send(format!(
            "HEAD {path} HTTP/1.1\r\nHost: a\r\n\r\n{}",
            get("/text/next")
        ));
        let answer = client.next(true).unwrap();
        assert_eq!(
            answer.header("content-length"),
            Some(&*len.to_string()),
            "{path}"
        );
        assert_eq!(client.next(false).unwrap().body, b"/text/next\n");
    }
}

#[test]
fn bodies_of_every_kind() {
    let (_server, addr) = serve(Routes::new(), |builder| builder);
    let mut client = Reader::new(connect(addr));
    for (path, len) in [
        ("/big", 1_000_000),
        ("/source", 10_000_000),
        ("/unknown", 1_000_000),
        ("/none", 0),
    ] {
        client.send(get(path));
        assert!(client.next(false).unwrap().body == pattern(len), "{path}");
    }
    client.send(get("/"));
    let answer = client.next(false).unwrap();
    assert_eq!(
        (answer.status, answer.header("content-length")),
        (204, None)
    );
}

#[test]
fn a_slow_reader_occupies_no_worker_slot() {
    let (_server, addr) = serve(Routes::new(), |builder| builder.workers(1).io_threads(1));
    let mut slow: Vec<Reader> = (0..20).map(|_| Reader::new(connect(addr))).collect();
    for reader in &mut slow {
        reader.send(get("/source"));
    }
    // All these responses are blocked on their sockets, and the only worker serves other clients.
    let mut client = Reader::new(connect(addr));
    for i in 0..100 {
        client.send(get(&format!("/text/{i}")));
        assert_eq!(
            client.next(false).unwrap().body,
            format!("/text/{i}\n").into_bytes()
        );
    }
    for reader in &mut slow {
        assert!(reader.next(false).unwrap().body == pattern(10_000_000));
    }
}

#[test]
fn a_body_of_the_wrong_length_resets_the_connection() {
    let (server, addr) = serve(Routes::new(), |builder| builder);
    for path in ["/short", "/long"] {
        let mut stream = connect(addr);
        stream.write_all(get(path).as_bytes()).unwrap();
        let mut received = Vec::new();
        let outcome = stream.read_to_end(&mut received);
        let head_len = received
            .windows(4)
            .position(|part| part == b"\r\n\r\n")
            .map_or(0, |at| at + 4);
        assert!(
            received.len() - head_len < 3_000_000,
            "{path} looks complete"
        );
        assert!(outcome.is_err(), "{path} ended without a reset");
    }
    let observed = server.service().observed.lock().unwrap();
    assert!(
        observed.iter().all(|(.., complete)| !complete),
        "{observed:?}"
    );
}

#[test]
fn a_panic_affects_no_other_request() {
    let (_server, addr) = serve(Routes::new(), |builder| builder.workers(1).io_threads(1));
    let mut client = Reader::new(connect(addr));
    for path in ["/panic", "/inline-panic"] {
        for _ in 0..5 {
            client.send(get(path));
            assert_eq!(client.next(false).unwrap().status, 500);
        }
    }
    client.send(get("/text/alive"));
    assert_eq!(client.next(false).unwrap().status, 200);
}

#[test]
fn request_bodies() {
    let (_server, addr) = serve(Routes::new(), |builder| builder);
    let mut client = Reader::new(connect(addr));
    let body = "x".repeat(100_000);
    client.send(format!(
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n{body}"
    ));
    assert_eq!(client.next(false).unwrap().body, body.as_bytes());
    client.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
    client.send("2\r\nde\r\n0\r\n\r\n");
    assert_eq!(client.next(false).unwrap().body, b"abcde");
    client.send(
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n",
    );
    assert_eq!(client.next(false).unwrap().status, 100);
    client.send("ok");
    assert_eq!(client.next(false).unwrap().body, b"ok");
    client.send(
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 100001\r\nExpect: 100-continue\r\n\r\n",
    );
    let answer = client.next(false).unwrap();
    assert_eq!(
        (answer.status, answer.header("connection")),
        (413, Some("close"))
    );
    client.expect_end();
}

#[test]
fn a_client_that_has_shut_down_its_sending_side_gets_its_response() {
    let (server, addr) = serve(Routes::new(), |builder| builder);
    for path in ["/inline", "/text/x", "/source"] {
        let mut client = Reader::new(connect(addr));
        client.send(get(path));
        client.stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.next(false).unwrap().status, 200, "{path}");
        client.expect_end();
    }
    // Must be long before any time limit.
    let start = Instant::now();
    while server.connection_count() > 0 {
        assert!(start.elapsed() < Duration::from_secs(10));
        std::thread::yield_now();
    }
}

#[test]
fn a_drain_completes_responses_in_progress() {
    let (routes, release) = Routes::gated();
    let (server, addr) = serve(routes, |builder| builder.io_threads(2));
    let mut idle = Reader::new(connect(addr));
    idle.send(get("/inline"));
    assert_eq!(idle.next(false).unwrap().status, 200);
    let mut busy = Reader::new(connect(addr));
    busy.send(get("/gate"));
    let mut reading = Reader::new(connect(addr));
    reading.send(get("/source"));
    while server.connection_count() < 3 {
        std::thread::yield_now();
    }
    std::thread::scope(|scope| {
        let drained = scope.spawn(|| server.drain(Duration::from_secs(60)));
        idle.expect_end();
        while std::net::TcpStream::connect(addr).is_ok() {
            std::thread::yield_now();
        }
        assert!(reading.next(false).unwrap().body == pattern(10_000_000));
        reading.expect_end();
        assert!(!drained.is_finished());
        release.send(()).unwrap();
        assert_eq!(busy.next(false).unwrap().body, b"released\n");
        busy.expect_end();
        drained.join().unwrap();
    });
    assert_eq!(server.connection_count(), 0);
}

#[test]
fn a_drain_ends_at_its_timeout() {
    let (server, addr) = serve(Routes::new(), |builder| builder);
    let mut stuck = connect(addr);
    stuck.write_all(get("/huge").as_bytes()).unwrap();
    let mut first = [0; 1];
    stuck.read_exact(&mut first).unwrap();
    server.drain(Duration::from_millis(50));
    let mut rest = Vec::new();
    assert!(stuck.read_to_end(&mut rest).is_err(), "cut off by a reset");
    assert!(rest.len() < 200_000_000);
}

#[test]
fn a_request_to_a_full_queue_gets_503() {
    let (routes, release) = Routes::gated();
    let limits = Limits {
        queue_len_max: 1,
        ..Limits::default()
    };
    let (server, addr) = serve(routes, |builder| {
        builder.workers(1).io_threads(1).limits(limits)
    });
    let mut clients: Vec<Reader> = Vec::new();
    // One request is handled by the worker, and one waits in the queue.
    for count in 1..=2 {
        let mut client = Reader::new(connect(addr));
        client.send(get("/gate"));
        clients.push(client);
        while server.connection_count() < count
            || server.service().entered.load(Ordering::SeqCst) == 0
        {
            std::thread::yield_now();
        }
        // The server may respond to the first two checks before it has read the request.
        for _ in 0..3 {
            assert!(server.answers_within(Duration::from_secs(10)));
        }
    }
    let mut refused = Reader::new(connect(addr));
    refused.send(get("/gate"));
    let answer = refused.next(false).unwrap();
    assert_eq!(
        (answer.status, answer.header("retry-after")),
        (503, Some("1"))
    );
    refused.expect_end();
    release.send(()).unwrap();
    release.send(()).unwrap();
    for mut client in clients {
        assert_eq!(client.next(false).unwrap().status, 200);
    }
}

#[test]
fn a_connection_past_the_limit_gets_503() {
    let limits = Limits {
        connections_max: 3,
        rest_time_min: Duration::MAX,
        ..Limits::default()
    };
    let (server, addr) = serve(Routes::new(), |builder| builder.limits(limits));
    let mut clients: Vec<Reader> = (0..3).map(|_| Reader::new(connect(addr))).collect();
    for client in &mut clients {
        client.send(get("/inline"));
        assert_eq!(client.next(false).unwrap().status, 200);
    }
    let mut refused = Reader::new(connect(addr));
    assert_eq!(refused.next(false).unwrap().status, 503);
    refused.expect_end();
    clients.pop();
    while server.connection_count() > 2 {
        std::thread::yield_now();
    }
    let mut client = Reader::new(connect(addr));
    client.send(get("/inline"));
    assert_eq!(client.next(false).unwrap().status, 200);
}

#[test]
fn clients_that_exceed_a_time_limit_are_disconnected() {
    let limits = Limits {
        head_time: Duration::from_millis(1500),
        idle_time: Duration::from_millis(1500),
        stall_time: Duration::from_millis(1500),
        ..Limits::default()
    };
    let (server, addr) = serve(Routes::new(), |builder| builder.limits(limits));
    let mut idle = Reader::new(connect(addr));
    idle.expect_end();
    let mut slow_head = Reader::new(connect(addr));
    slow_head.send("GET / HT");
    assert_eq!(slow_head.next(false).unwrap().status, 408);
    slow_head.expect_end();
    let mut slow_body = Reader::new(connect(addr));
    slow_body.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc");
    assert_eq!(slow_body.next(false).unwrap().status, 408);
    slow_body.expect_end();
    let mut slow_reader = connect(addr);
    slow_reader.write_all(get("/huge").as_bytes()).unwrap();
    let start = Instant::now();
    while server.service().observed.lock().unwrap().is_empty() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "a peer that does not read is kept"
        );
    }
    let mut received = Vec::new();
    assert!(
        slow_reader.read_to_end(&mut received).is_err(),
        "cut off by a reset"
    );
    assert!(received.len() < 200_000_000);
}

#[test]
fn http_1_0() {
    let (_server, addr) = serve(Routes::new(), |builder| builder);
    for path in ["/inline", "/text/x"] {
        let mut client = Reader::new(connect(addr));
        client.send(format!(
            "GET {path} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
        ));
        let answer = client.next(false).unwrap();
        assert_eq!(answer.header("connection"), Some("keep-alive"));
        client.send(format!("GET {path} HTTP/1.0\r\n\r\n"));
        assert_eq!(
            client.next(false).unwrap().header("connection"),
            Some("close")
        );
        client.expect_end();
    }
    let mut stream = connect(addr);
    stream
        .write_all(b"GET /unknown HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        .unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    assert!(received.ends_with(&pattern(1_000_000)));
    assert!(!String::from_utf8_lossy(&received[..300]).contains("chunked"));
}

#[test]
fn unix_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listen = || Listener::unix(&path, 16);
    let server = Server::builder(Routes::new())
        .listen(listen().unwrap())
        .io_threads(2)
        .start()
        .unwrap();
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET /inline HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("inline\n"), "{answer}");
    assert_eq!(listen().unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    drop(server);
    assert!(path.exists(), "left for the next server to replace");
    drop(listen().unwrap());
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "precious").unwrap();
    assert_eq!(
        listen().unwrap_err().kind(),
        std::io::ErrorKind::AlreadyExists
    );
}

#[test]
fn a_port_in_use_is_refused() {
    let (_server, addr) = serve(Routes::new(), |builder| builder);
    let error = Listener::tcp(addr, 16).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
}
