//! If a client closes its connection (FIN, with nothing unread) while its response waits for the
//! application, the server detects that at once. Clients that only shut down their sending side get
//! other responses completely. If the client's machine vanishes without FIN, the server detects
//! that within [`Limits::silence_time`].
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;
mod support_tls;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender as Queue, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use samovar_http::http::Status;
use samovar_http::{
    Body, Builder, End, Exchange, Limits, Observer, Request, Responder, Response, Sender, Server,
    Service,
};
use support::{Reader, connect, eventually, serve};

/// A handle that the handler has passed to the test, to complete the response.
enum Waiting {
    Later(Responder),
    Channel(Sender),
}

impl Waiting {
    fn is_gone(&self) -> bool {
        match self {
            Self::Later(responder) => responder.is_abandoned(),
            Self::Channel(sender) => sender.is_gone(),
        }
    }

    /// Completes the response with `done`.
    fn answer(self) {
        match self {
            Self::Later(responder) => responder.respond(Response::text(Status::OK, "done")),
            Self::Channel(sender) => {
                sender.send("done").unwrap();
                sender.finish();
            }
        }
    }
}

struct App {
    waiting: Mutex<Queue<Waiting>>,
    ends: Mutex<Queue<End>>,
}

impl Service for App {
    type Local = ();

    fn local(&self) {}

    fn handle(&self, request: &mut Request) -> Response {
        let (waiting, response) = match request.head().path() {
            b"/later" => {
                let (responder, response) = Response::later();
                (Waiting::Later(responder), response)
            }
            b"/channel" => {
                let (sender, body) = Body::channel();
                sender.send("begun ").unwrap();
                (Waiting::Channel(sender), Response::new(Status::OK, body))
            }
            b"/silent" => {
                let (sender, body) = Body::channel();
                (Waiting::Channel(sender), Response::new(Status::OK, body))
            }
            b"/slow" => {
                std::thread::sleep(Duration::from_millis(100));
                return Response::text(Status::OK, "slow");
            }
            _ => return Response::text(Status::OK, "x".repeat(8_000_000)),
        };
        self.waiting.lock().unwrap().send(waiting).unwrap();
        response
    }

    fn observer(&self) -> &dyn Observer {
        self
    }
}

impl Observer for App {
    fn observes(&self) -> bool {
        true
    }

    fn exchanged(&self, exchange: &Exchange<'_>) {
        self.ends.lock().unwrap().send(exchange.end).unwrap();
    }
}

struct Fixture {
    server: Arc<Server<App>>,
    addr: SocketAddr,
    waiting: Receiver<Waiting>,
    ends: Receiver<End>,
}

fn start(configure: impl FnOnce(Builder<App>) -> Builder<App>) -> Fixture {
    let (waiting_in, waiting) = channel();
    let (ends_in, ends) = channel();
    let app = App {
        waiting: Mutex::new(waiting_in),
        ends: Mutex::new(ends_in),
    };
    let (server, addr) = serve(app, configure);
    Fixture {
        server: Arc::new(server),
        addr,
        waiting,
        ends,
    }
}

fn with_limits(limits: Limits) -> Fixture {
    start(|builder| builder.limits(limits).io_threads(1))
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

const WAITING: [&str; 3] = ["/later", "/channel", "/silent"];

impl Fixture {
    /// Sends a request, and reads the part of the response that is sent at once.
    fn ask(&self, path: &str) -> (Reader, Waiting) {
        let mut client = Reader::new(connect(self.addr));
        client.send(get(path));
        let waiting = self.waiting.recv().unwrap();
        read_beginning(&mut client.stream, path);
        (client, waiting)
    }

    /// Waits until the only I/O thread has processed all earlier events, by sending a request on
    /// another connection.
    fn wait_for_io(&self) {
        let mut client = Reader::new(connect(self.addr));
        client.send(get("/slow"));
        assert_eq!(client.next(false).unwrap().body, b"slow");
        assert_eq!(self.ends.recv().unwrap(), End::Complete);
    }
}

/// Reads everything available, so that a later close sends FIN, not RST.
fn read_beginning(stream: &mut impl Read, path: &str) {
    let mut read = Vec::new();
    let end: &[u8] = match path {
        "/channel" => b"begun \r\n",
        "/silent" => b"\r\n\r\n",
        _ => return,
    };
    while !read.ends_with(end) {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        read.extend(byte);
    }
}

#[test]
fn a_closed_connection_is_detected_while_its_response_waits() {
    let fixture = start(|builder| builder);
    for path in WAITING {
        let (client, waiting) = fixture.ask(path);
        assert!(!waiting.is_gone());
        drop(client);
        eventually(path, || waiting.is_gone());
        eventually("closed", || fixture.server.connection_count() == 0);
        assert_eq!(fixture.ends.recv().unwrap(), End::Left, "{path}");
        if let Waiting::Channel(sender) = &waiting {
            sender.send("more").unwrap_err();
        }
    }
}

#[test]
fn a_connection_closed_before_its_response_waits_is_detected() {
    let fixture = start(|builder| builder);
    for path in ["/later", "/silent"] {
        let mut client = connect(fixture.addr);
        client.write_all(get(path).as_bytes()).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let waiting = fixture.waiting.recv().unwrap();
        eventually(path, || waiting.is_gone());
        assert_eq!(fixture.ends.recv().unwrap(), End::Left, "{path}");
    }
}

#[test]
fn a_drain_does_not_wait_for_clients_that_have_left() {
    let fixture = start(|builder| builder);
    let _kept: Vec<_> = WAITING.map(|path| fixture.ask(path).1).into();
    let start = Instant::now();
    fixture.server.drain(Duration::from_secs(600));
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_response_finished_after_its_client_has_disconnected_is_not_complete() {
    let fixture = start(|builder| builder);
    let (client, waiting) = fixture.ask("/channel");
    drop(client);
    eventually("it is known", || waiting.is_gone());
    if let Waiting::Channel(sender) = waiting {
        sender.finish();
    }
    assert_eq!(fixture.ends.recv().unwrap(), End::Left);
}

#[test]
fn other_responses_are_complete_although_the_client_has_shut_down_its_sending_side() {
    let fixture = start(|builder| builder);
    for (path, expected_len) in [("/slow", 4), ("/large", 8_000_000)] {
        let mut client = Reader::new(connect(fixture.addr));
        client.send(get(path));
        client.stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.next(false).unwrap().body.len(), expected_len);
        client.expect_end();
        assert_eq!(fixture.ends.recv().unwrap(), End::Complete, "{path}");
    }
}

#[test]
fn unread_requests_delay_the_detection_until_they_are_read() {
    let fixture = with_limits(Limits::default());
    let (mut client, waiting) = fixture.ask("/later");
    client.send(get("/slow"));
    client.stream.shutdown(Shutdown::Write).unwrap();
    fixture.wait_for_io();
    assert!(!waiting.is_gone());
    waiting.answer();
    assert_eq!(client.next(false).unwrap().body, b"done");
    assert_eq!(client.next(false).unwrap().body, b"slow");
    client.expect_end();
}

#[test]
fn unread_requests_delay_the_detection_by_one_stall_time_at_most() {
    let fixture = with_limits(Limits {
        stall_time: Duration::from_millis(300),
        ..Limits::default()
    });
    for path in WAITING {
        let (mut client, waiting) = fixture.ask(path);
        client.send(get("/slow"));
        drop(client);
        eventually(path, || waiting.is_gone());
        eventually("closed", || fixture.server.connection_count() == 0);
        assert_eq!(fixture.ends.recv().unwrap(), End::Left, "{path}");
    }
}

/// Number of clients that vanish: as many as the server may have.
const VANISHED: usize = 320;

/// Makes the client's kernel drop all packets, as if its machine had lost its power.
fn vanish(client: &TcpStream) {
    /// The instruction that returns the number of bytes to keep of a packet.
    const RETURN: u16 = 0x06;
    let keep_nothing = socket2::SockFilter::new(RETURN, 0, 0, 0);
    let socket = socket2::SockRef::from(client);
    socket.attach_filter(&[keep_nothing]).unwrap();
}

#[test]
fn vanished_clients_are_detected_while_their_responses_wait() {
    let fixture = with_limits(Limits {
        silence_time: Duration::from_secs(2),
        stall_time: Duration::from_secs(2),
        connections_max: VANISHED,
        ..Limits::default()
    });
    // HTTP/2 and WebSockets use the same sockets. For a part of the connections, the server has
    // sent data that the client never acknowledges.
    let clients: Vec<_> = (0..VANISHED)
        .map(|index| {
            let (client, waiting) = fixture.ask(WAITING[index % WAITING.len()]);
            vanish(&client.stream);
            if let (Waiting::Channel(sender), 0..160) = (&waiting, index) {
                sender.send("more").unwrap();
            }
            (client, waiting)
        })
        .collect();
    eventually("all closed", || fixture.server.connection_count() == 0);
    eventually("all gone", || {
        clients.iter().all(|(_, waiting)| waiting.is_gone())
    });
    for _ in &clients {
        assert_eq!(fixture.ends.recv().unwrap(), End::Left);
    }
    // All connections that the server may have were occupied.
    let (mut client, waiting) = fixture.ask("/later");
    waiting.answer();
    assert_eq!(client.next(false).unwrap().body, b"done");
}

#[test]
fn a_silent_client_that_is_there_waits_longer_than_the_time_of_silence() {
    let fixture = with_limits(Limits {
        silence_time: Duration::from_secs(1),
        ..Limits::default()
    });
    let (vanished, gone) = fixture.ask("/silent");
    let (mut client, waiting) = fixture.ask("/later");
    vanish(&vanished.stream);
    eventually("the other client is gone", || gone.is_gone());
    waiting.answer();
    assert_eq!(client.next(false).unwrap().body, b"done");
}

#[test]
fn a_response_during_a_drain_has_connection_close() {
    let fixture = start(|builder| builder);
    let (mut client, waiting) = fixture.ask("/later");
    let server = Arc::clone(&fixture.server);
    let drain = std::thread::spawn(move || server.drain(Duration::from_secs(20)));
    eventually("it drains", || fixture.server.is_draining());
    std::thread::sleep(Duration::from_millis(50));
    waiting.answer();
    let answer = client.next(false).unwrap();
    assert_eq!(answer.header("connection"), Some("close"));
    client.expect_end();
    drain.join().unwrap();
}

#[test]
fn a_close_notify_is_detected_while_the_response_waits() {
    let authority = support_tls::Authority::new("departures");
    let config = authority.sign(&["a.test"]).builder().build().unwrap();
    let listener = samovar_http::Listener::tcp("127.0.0.1:0".parse().unwrap(), 128).unwrap();
    let fixture = start(|builder| builder.listen(listener.tls(config)));
    let addr = fixture.server.local_addrs()[1];
    for says_goodbye in [true, false] {
        for path in WAITING {
            let mut client = authority.client().connect(addr).unwrap();
            client.write_all(get(path).as_bytes()).unwrap();
            let waiting = fixture.waiting.recv().unwrap();
            read_beginning(&mut client, path);
            assert!(!waiting.is_gone());
            if says_goodbye {
                client.conn.send_close_notify();
                client.flush().unwrap();
            }
            client.sock.shutdown(Shutdown::Both).unwrap();
            drop(client);
            eventually(path, || waiting.is_gone());
            eventually("closed", || fixture.server.connection_count() == 0);
            assert_eq!(fixture.ends.recv().unwrap(), End::Left, "{path}");
        }
    }
}
