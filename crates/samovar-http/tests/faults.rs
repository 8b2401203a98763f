//! The server survives panics in every part of an application, clients that connect or disconnect
//! at any moment, and a lack of descriptors.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use samovar_http::Refusal;
use samovar_http::http::Status;
use samovar_http::{
    Batch, Body, Exchange, Head, Incident, Inline, Intake, Limits, Listener, Observer, Prepared,
    Progress, Reply, Request, Response, Server, Service, Source, Turn,
};
use support::{Reader, connect, serve};

/// A service that panics or blocks at the point named by the request path.
struct Trouble {
    prepared: Prepared,
    gate: Option<Mutex<Receiver<()>>>,
    entered: AtomicUsize,
}

impl Trouble {
    fn new() -> Self {
        Self {
            prepared: Prepared::new(Status::OK, &[], b"inline\n"),
            gate: None,
            entered: AtomicUsize::new(0),
        }
    }

    fn gated() -> (Self, Sender<()>) {
        let (sender, receiver) = channel();
        let gate = Some(Mutex::new(receiver));
        (
            Self {
                gate,
                ..Self::new()
            },
            sender,
        )
    }

    fn wait_at_gate(&self) {
        self.entered.fetch_add(1, Ordering::SeqCst);
        if let Some(gate) = &self.gate {
            gate.lock().unwrap().recv().unwrap();
        }
    }
}

/// A source that panics in the method with this name.
struct TroubledSource(&'static str);

impl Source for TroubledSource {
    fn len(&self) -> Option<u64> {
        assert_ne!(self.0, "len", "on purpose");
        None
    }

    fn pull(&mut self, batch: &mut Batch) -> std::io::Result<Progress> {
        assert_ne!(self.0, "pull", "on purpose");
        batch.put(b"source");
        Ok(Progress::End)
    }
}

impl Drop for TroubledSource {
    fn drop(&mut self) {
        assert_ne!(self.0, "drop", "on purpose");
    }
}

impl Service for Trouble {
    type Local = ();

    fn local(&self) {}

    fn inline(&self, _: &mut (), _: Turn, head: Head<'_>, reply: Reply<'_>) -> Inline {
        match head.path() {
            b"/inline" | b"/inline/exchanged" => reply.prepared(&self.prepared),
            b"/inline/panic" => panic!("on purpose"),
            b"/inline/gate" => {
                self.wait_at_gate();
                reply.prepared(&self.prepared)
            }
            _ => reply.dispatch(),
        }
    }

    fn handle(&self, request: &mut Request) -> Response {
        let source =
            |place| Response::new(Status::OK, Body::Source(Box::new(TroubledSource(place))));
        match request.head().path() {
            b"/gate" => {
                self.wait_at_gate();
                Response::text(Status::OK, "worker\n")
            }
            b"/handle" | b"/incident" => panic!("on purpose"),
            b"/source/len" => source("len"),
            b"/source/pull" => source("pull"),
            b"/source/drop" => source("drop"),
            _ => Response::text(Status::OK, "worker\n"),
        }
    }

    fn intake(&self, head: Head<'_>) -> Intake {
        assert_ne!(head.path(), b"/body_len_max", "on purpose");
        Intake::Buffered(0)
    }

    fn observer(&self) -> &dyn Observer {
        self
    }
}

impl Observer for Trouble {
    fn observes(&self) -> bool {
        true
    }

    fn exchanged(&self, exchange: &Exchange<'_>) {
        assert!(!exchange.head.path().ends_with(b"/exchanged"), "on purpose");
    }

    fn incident(&self, incident: &Incident<'_>) {
        if let Incident::HandlerPanicked { head, .. } = incident {
            assert_ne!(head.path(), b"/incident", "on purpose");
        }
        let refusal = Refusal::Host;
        let is_host =
            matches!(incident, Incident::Refused { refusal: seen, .. } if *seen == refusal);
        assert!(!is_host, "on purpose");
    }
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

/// Waits until a condition holds that other threads cause.
#[track_caller]
fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::yield_now();
    }
}

/// Sends one request and reads until the connection ends or is reset.
fn provoke(addr: std::net::SocketAddr, request: &str) -> Vec<u8> {
    let mut stream = connect(addr);
    stream.write_all(request.as_bytes()).unwrap();
    // The connection may already be reset.
    drop(stream.shutdown(Shutdown::Write));
    let mut answer = Vec::new();
    drop(stream.read_to_end(&mut answer));
    answer
}

#[test]
fn a_panic_affects_only_its_own_connection() {
    let (server, addr) = serve(Trouble::new(), |builder| builder.workers(1).io_threads(1));
    let with_body = "POST /body_len_max HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx";
    let refused = "GET / HTTP/1.1\r\n\r\n";
    let mut requests = vec![with_body.to_owned(), refused.to_owned()];
    for path in [
        "/inline/panic",
        "/inline/exchanged",
        "/exchanged",
        "/handle",
        "/incident",
        "/source/len",
        "/source/pull",
        "/source/drop",
    ] {
        requests.push(get(path));
    }
    for request in &requests {
        for _ in 0..3 {
            provoke(addr, request);
        }
        for path in ["/inline", "/"] {
            let answer = provoke(addr, &get(path));
            assert!(answer.starts_with(b"HTTP/1.1 200"), "after {request:?}");
        }
    }
    eventually("all connections are forgotten", || {
        server.connection_count() == 0
    });
}

#[test]
fn a_panic_on_head_sends_no_body() {
    let (_server, addr) = serve(Trouble::new(), |builder| builder);
    let mut client = Reader::new(connect(addr));
    for path in ["/inline/panic", "/handle"] {
        client.send(format!(
            "HEAD {path} HTTP/1.1\r\nHost: a\r\n\r\n{}",
            get("/inline")
        ));
        assert_eq!(client.next(true).unwrap().status, 500);
        assert_eq!(client.next(false).unwrap().body, b"inline\n");
    }
}

#[test]
fn an_overload_answer_to_head_has_no_body() {
    let (service, release) = Trouble::gated();
    let limits = Limits {
        queue_len_max: 0,
        ..Limits::default()
    };
    let (_server, addr) = serve(service, |builder| builder.limits(limits));
    let mut client = Reader::new(connect(addr));
    client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.next(true).unwrap().status, 503);
    client.expect_end();
    drop(release);
}

#[test]
fn a_drain_serves_requests_that_have_already_arrived() {
    let (service, release) = Trouble::gated();
    let (server, addr) = serve(service, |builder| builder.io_threads(1));
    let mut kept = Reader::new(connect(addr));
    kept.send(get("/inline"));
    assert_eq!(kept.next(false).unwrap().status, 200);
    let mut gate = Reader::new(connect(addr));
    gate.send(get("/inline/gate"));
    eventually("the thread is busy", || {
        server.service().entered.load(Ordering::SeqCst) == 1
    });
    // More connections than one call of the accept loop takes, all with requests already sent.
    let mut waiting: Vec<Reader> = (0..100).map(|_| Reader::new(connect(addr))).collect();
    for client in waiting.iter_mut().chain([&mut kept]) {
        client.send(get("/inline"));
    }
    std::thread::scope(|scope| {
        let drained = scope.spawn(|| server.drain(Duration::from_secs(20)));
        scope.spawn(|| {
            // The drain message must be queued before the I/O thread continues.
            assert!(!server.answers_within(Duration::from_millis(100)));
            release.send(()).unwrap();
        });
        for client in waiting.iter_mut().chain([&mut kept, &mut gate]) {
            assert_eq!(client.next(false).map(|answer| answer.status), Some(200));
            client.expect_end();
        }
        drop((waiting, kept, gate));
        drained.join().unwrap();
    });
    assert_eq!(server.connection_count(), 0);
}

#[test]
fn a_drain_leaves_new_connections_time_to_send_a_request() {
    let (server, addr) = serve(Trouble::new(), |builder| builder.io_threads(1));
    let mut fresh = Reader::new(connect(addr));
    eventually("accepted", || server.connection_count() == 1);
    std::thread::scope(|scope| {
        let drained = scope.spawn(|| server.drain(Duration::from_secs(20)));
        eventually("no more are accepted", || {
            std::net::TcpStream::connect(addr).is_err()
        });
        fresh.send(get("/inline"));
        let answer = fresh.next(false).unwrap();
        assert_eq!(
            (answer.status, answer.header("connection")),
            (200, Some("close"))
        );
        fresh.expect_end();
        drop(fresh);
        drained.join().unwrap();
    });
}

#[test]
fn a_drain_does_not_wait_long_for_an_incomplete_head() {
    let (server, addr) = serve(Trouble::new(), |builder| builder.io_threads(1));
    let mut half = Reader::new(connect(addr));
    half.send("GET / HT");
    let mut blank = Reader::new(connect(addr));
    blank.send("\r\n");
    let mut served = Reader::new(connect(addr));
    served.send(get("/inline"));
    assert_eq!(served.next(false).unwrap().status, 200);
    served.send("\r\n");
    let mut finished = Reader::new(connect(addr));
    finished.send("GET /inline HT");
    eventually("accepted", || server.connection_count() == 4);
    for _ in 0..3 {
        assert!(server.answers_within(Duration::from_secs(10)));
    }
    let start = Instant::now();
    std::thread::scope(|scope| {
        let drained = scope.spawn(|| server.drain(Duration::from_secs(20)));
        eventually("no more are accepted", || {
            std::net::TcpStream::connect(addr).is_err()
        });
        finished.send("TP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(finished.next(false).unwrap().status, 200);
        served.expect_end();
        assert_eq!(half.next(false).unwrap().status, 408);
        half.expect_end();
        blank.expect_end();
        drop((half, finished));
        drained.join().unwrap();
    });
    assert!(
        start.elapsed() < Duration::from_secs(9),
        "{:?}",
        start.elapsed()
    );
}

/// Records the turn number of every request answered inline.
struct Turns(Prepared, Mutex<Vec<Turn>>);

impl Service for Turns {
    type Local = ();

    fn local(&self) {}

    fn inline(&self, _: &mut (), turn: Turn, head: Head<'_>, reply: Reply<'_>) -> Inline {
        if head.path() != b"/inline" {
            return reply.dispatch();
        }
        self.1.lock().unwrap().push(turn);
        reply.prepared(&self.0)
    }

    fn handle(&self, _: &mut Request) -> Response {
        Response::text(Status::OK, "worker\n")
    }
}

#[test]
fn requests_that_waited_for_a_worker_belong_to_a_later_turn() {
    let prepared = Prepared::new(Status::OK, &[], b"inline\n");
    let service = Turns(prepared, Mutex::default());
    let (server, addr) = serve(service, |builder| builder.io_threads(1));
    let mut client = Reader::new(connect(addr));
    client.send(get("/inline").repeat(2) + &get("/") + &get("/inline").repeat(2));
    for _ in 0..5 {
        assert_eq!(client.next(false).unwrap().status, 200);
    }
    let turns = server.service().1.lock().unwrap();
    assert_eq!((turns[0], turns[2]), (turns[1], turns[3]));
    assert_ne!(turns[1], turns[2]);
}

/// A source that blocks in the middle of the body.
struct GatedSource(Receiver<()>);

impl Source for GatedSource {
    fn len(&self) -> Option<u64> {
        Some(1)
    }

    fn pull(&mut self, batch: &mut Batch) -> std::io::Result<Progress> {
        // Dropping the sender also releases the source.
        self.0.recv().unwrap_or_default();
        batch.put(b"x");
        Ok(Progress::End)
    }
}

/// Responds to its only request with a [`GatedSource`].
struct OneSource(Mutex<Option<Receiver<()>>>, AtomicUsize);

impl Service for OneSource {
    type Local = ();
    fn local(&self) {}
    fn handle(&self, _: &mut Request) -> Response {
        let gate = self.0.lock().unwrap().take().unwrap();
        self.1.fetch_add(1, Ordering::SeqCst);
        Response::new(Status::OK, Body::Source(Box::new(GatedSource(gate))))
    }
}

#[test]
fn a_body_in_progress_is_aborted_when_the_io_threads_end() {
    let (release, gate) = channel();
    let service = OneSource(Mutex::new(Some(gate)), AtomicUsize::new(0));
    let (server, addr) = serve(service, |builder| builder);
    let mut stream = connect(addr);
    stream.write_all(get("/").as_bytes()).unwrap();
    eventually("the body is under way", || {
        server.service().1.load(Ordering::SeqCst) == 1
    });
    server.drain(Duration::ZERO);
    release.send(()).unwrap();
    eventually("the connection is forgotten", || {
        server.connection_count() == 0
    });
    // End of file and reset are both correct, but the socket must not stay open.
    drop(stream.read_to_end(&mut Vec::new()));
}

#[test]
fn a_drain_accepts_the_longest_timeout() {
    let (server, _addr) = serve(Trouble::new(), |builder| builder);
    assert!(server.answers_within(Duration::MAX));
    server.drain(Duration::MAX);
}

#[test]
fn a_client_refused_at_the_connection_limit_receives_the_503() {
    let (service, release) = Trouble::gated();
    let limits = Limits {
        connections_max: 1,
        ..Limits::default()
    };
    let (server, addr) = serve(service, |builder| builder.io_threads(1).limits(limits));
    let mut gate = Reader::new(connect(addr));
    gate.send(get("/inline/gate"));
    eventually("the thread is busy", || {
        server.service().entered.load(Ordering::SeqCst) == 1
    });
    // The server has not read the request when it sends the refusal; closing at once would send
    // RST.
    let mut refused = Reader::new(connect(addr));
    refused.send(get("/inline"));
    release.send(()).unwrap();
    assert_eq!(refused.next(false).unwrap().status, 503);
    refused.expect_end();
    assert_eq!(gate.next(false).unwrap().status, 200);
}

#[test]
fn a_client_in_the_middle_of_an_upload_receives_the_refusal() {
    let limits = Limits {
        linger_time: Duration::from_secs(60),
        ..Limits::default()
    };
    let (_server, addr) = serve(Trouble::new(), |builder| builder.limits(limits));
    for framing in ["Content-Length: 4000000", "Transfer-Encoding: chunked"] {
        let mut client = Reader::new(connect(addr));
        client.send(format!(
            "PUT / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n3d0900\r\n"
        ));
        // More bytes than the socket buffers hold, so the server must read on for the client to
        // come to the response.
        client.stream.write_all(&vec![b'x'; 40_000_000]).unwrap();
        assert_eq!(client.next(false).unwrap().status, 413, "{framing}");
    }
}

#[test]
fn a_new_connection_has_head_time_for_its_first_request() {
    let limits = Limits {
        idle_time: Duration::from_millis(1),
        ..Limits::default()
    };
    let (_server, addr) = serve(Trouble::new(), |builder| {
        builder.io_threads(1).limits(limits)
    });
    let mut fresh = Reader::new(connect(addr));
    let mut served = Reader::new(connect(addr));
    served.send(get("/inline"));
    assert_eq!(served.next(false).unwrap().status, 200);
    // This connection was closed for being idle, so the time limits were checked after the other
    // connection was accepted.
    served.expect_end();
    fresh.send(get("/inline"));
    assert_eq!(fresh.next(false).map(|answer| answer.status), Some(200));
}

#[test]
fn an_expectation_of_100_continue_is_answered_before_the_body() {
    let (_server, addr) = serve(Trouble::new(), |builder| builder);
    let mut client = Reader::new(connect(addr));
    // RFC 9110, 10.1.1: "an origin server MUST send either: an immediate response with a final
    // status code […] or an immediate 100 (Continue) response".
    client.send(
        "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n",
    );
    assert_eq!(client.next(false).unwrap().status, 100);
    client.send("0\r\n\r\n");
    assert_eq!(client.next(false).unwrap().status, 200);
}

#[test]
fn a_socket_that_does_not_listen_is_refused() {
    let bound = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    assert!(
        Listener::inherited(bound).is_err(),
        "it would be readable for ever"
    );
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(Listener::inherited(file.into()).is_err());
}

#[test]
fn an_inherited_socket_does_not_delay_answers() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let listener = Listener::inherited(socket.try_clone().unwrap().into()).unwrap();
    assert!(rustix::net::sockopt::tcp_nodelay(&socket).unwrap());
    let addr = listener.local_addr().unwrap();
    let server = Server::builder(Trouble::new())
        .listen(listener)
        .io_threads(2)
        .start()
        .unwrap();
    // Both threads poll the same socket, and either of them may accept a connection.
    for _ in 0..100 {
        assert!(provoke(addr, &get("/")).starts_with(b"HTTP/1.1 200"));
    }
    server.drain(Duration::from_secs(20));
    assert_eq!(server.connection_count(), 0);
}

#[test]
fn the_unix_socket_of_a_hanging_server_counts_as_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let hung = Listener::unix(&path, 0).unwrap();
    // This connection fills the backlog; another connect would block forever.
    let _waiting = UnixStream::connect(&path).unwrap();
    let error = Listener::unix(&path, 0).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    drop(hung);
}

#[test]
fn the_server_stops_reading_from_a_client_that_never_reads() {
    let (server, addr) = serve(Trouble::new(), |builder| builder.io_threads(1).workers(1));
    let mut flood = connect(addr);
    flood
        .set_write_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let requests = get("/inline").repeat(10_000) + &get("/").repeat(10_000);
    let mut sent_len = 0;
    // The server stops reading, so the socket buffers fill up.
    let is_stopped = (0..1000).any(|_| match flood.write(requests.as_bytes()) {
        Ok(len) => {
            sent_len += len;
            false
        }
        Err(_) => true,
    });
    assert!(
        is_stopped,
        "took {sent_len} bytes of requests from a peer that does not read"
    );
    assert!(server.answers_within(Duration::from_secs(10)));
    assert!(provoke(addr, &get("/")).starts_with(b"HTTP/1.1 200"));
    drop(flood);
    eventually("the flood is forgotten", || server.connection_count() == 0);
}

#[test]
fn resets_at_any_moment_leak_no_connection() {
    let (server, addr) = serve(Trouble::new(), |builder| builder);
    for request in [
        String::new(),
        "GET / HT".into(),
        get("/inline"),
        get("/"),
        get("/source/none").repeat(50),
        get("/").repeat(50),
        "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc".into(),
    ] {
        for _ in 0..20 {
            let mut stream = connect(addr);
            stream.write_all(request.as_bytes()).unwrap();
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        }
    }
    eventually("all are forgotten", || server.connection_count() == 0);
    assert!(provoke(addr, &get("/")).starts_with(b"HTTP/1.1 200"));
}
