//! With [`Limits::half_close`], a client that has shut down its sending side gets the response that
//! waits for the application, however long that takes. A client that has closed its connection is
//! still detected as soon as the server sends something.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_tls;

use std::io::{self, Read, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender as Queue, channel};
use std::time::Duration;

use samovar_http::http::Status;
use samovar_http::{
    Body, Builder, End, Exchange, Limits, Listener, Observer, Request, Responder, Response, Sender,
    Server, Service,
};
use support::h2::{self, Client};
use support::{Reader, connect, eventually, serve};

/// What completes a response.
enum Waiting {
    Later(Responder),
    Channel(Sender),
    Reader(Queue<&'static [u8]>),
}

impl Waiting {
    /// Completes the response with `done`.
    fn answer(self) {
        match self {
            Self::Later(responder) => responder.respond(Response::text(Status::OK, "done")),
            Self::Channel(sender) => {
                sender.send("done").unwrap();
                sender.finish();
            }
            Self::Reader(pieces) => pieces.send(b"done").unwrap(),
        }
    }
}

/// A reader that waits for each piece.
struct Pieces(Receiver<&'static [u8]>);

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let piece = self.0.recv().unwrap_or_default();
        buffer[..piece.len()].copy_from_slice(piece);
        Ok(piece.len())
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
                (Waiting::Channel(sender), Response::new(Status::OK, body))
            }
            b"/reader" => {
                let (pieces, reader) = channel();
                let body = Body::reader(Pieces(reader));
                (Waiting::Reader(pieces), Response::new(Status::OK, body))
            }
            _ => return Response::text(Status::OK, "prompt"),
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
        self.ends.lock().unwrap().send(exchange.end).ok();
    }
}

struct Fixture {
    server: Server<App>,
    addr: SocketAddr,
    waiting: Receiver<Waiting>,
    ends: Receiver<End>,
}

const PATHS: [&str; 3] = ["/later", "/channel", "/reader"];

fn start(configure: impl FnOnce(Builder<App>) -> Builder<App>) -> Fixture {
    let (waiting_in, waiting) = channel();
    let (ends_in, ends) = channel();
    let app = App {
        waiting: Mutex::new(waiting_in),
        ends: Mutex::new(ends_in),
    };
    // Without `half_close`, each of the first two times would end a response that waits.
    let limits = Limits {
        half_close: true,
        linger_time: Duration::from_millis(10),
        stall_time: Duration::from_millis(100),
        head_time: Duration::from_millis(500),
        ..Limits::default()
    };
    let (server, addr) = serve(app, |builder| {
        configure(builder.limits(limits).io_threads(1))
    });
    Fixture {
        server,
        addr,
        waiting,
        ends,
    }
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

impl Fixture {
    /// Waits until the only I/O thread has checked all time limits.
    fn pass_time(&self) {
        let mut client = Reader::new(connect(self.addr));
        client.send("GET");
        assert_eq!(client.next(false).unwrap().status, 408);
    }
}

#[test]
fn a_client_that_only_reads_gets_the_response_that_waits() {
    let fixture = start(|builder| builder);
    for path in PATHS {
        for is_pipelined in [false, true] {
            let mut client = Reader::new(connect(fixture.addr));
            client.send(get(path));
            if is_pipelined {
                client.send(get("/prompt"));
            }
            client.stream.shutdown(Shutdown::Write).unwrap();
            let waiting = fixture.waiting.recv().unwrap();
            fixture.pass_time();
            waiting.answer();
            assert_eq!(client.next(false).unwrap().body, b"done", "{path}");
            assert_eq!(fixture.ends.recv().unwrap(), End::Complete, "{path}");
            if is_pipelined {
                assert_eq!(client.next(false).unwrap().body, b"prompt");
                assert_eq!(fixture.ends.recv().unwrap(), End::Complete);
            }
            client.expect_end();
        }
    }
    eventually("all closed", || fixture.server.connection_count() == 0);
}

#[test]
fn a_tls_client_that_only_reads_gets_the_response_that_waits() {
    let authority = support_tls::Authority::new("half_close");
    let config = authority.sign(&["a.test"]).builder().build().unwrap();
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 128).unwrap();
    let fixture = start(|builder| builder.listen(listener.tls(config)));
    let addr = fixture.server.local_addrs()[1];
    for path in PATHS {
        let mut client = authority.client().connect(addr).unwrap();
        client.write_all(get(path).as_bytes()).unwrap();
        let waiting = fixture.waiting.recv().unwrap();
        client.conn.send_close_notify();
        client.flush().unwrap();
        client.sock.shutdown(Shutdown::Write).unwrap();
        fixture.pass_time();
        waiting.answer();
        let mut response = String::new();
        client.read_to_string(&mut response).unwrap();
        assert!(response.contains("done"), "{path}: {response}");
        assert_eq!(fixture.ends.recv().unwrap(), End::Complete, "{path}");
    }
}

#[test]
fn an_http2_client_that_only_reads_gets_the_response_that_waits() {
    let fixture = start(|builder| builder);
    for path in PATHS {
        let stream = TcpStream::connect(fixture.addr).unwrap();
        stream.set_nonblocking(true).unwrap();
        let socket = stream.try_clone().unwrap();
        let mut client = Client::over(stream, &::h2::client::Builder::new());
        // The acknowledgement of the settings is sent before the end.
        assert_eq!(client.ask(h2::get("/prompt")).text(), "prompt");
        assert_eq!(fixture.ends.recv().unwrap(), End::Complete);
        let (mut future, _) = client.start(h2::get(path), true);
        let waiting = client.drive(|_| match fixture.waiting.try_recv() {
            Ok(waiting) => std::task::Poll::Ready(waiting),
            Err(_) => std::task::Poll::Pending,
        });
        socket.shutdown(Shutdown::Write).unwrap();
        fixture.pass_time();
        waiting.answer();
        let mut head = client.head(&mut future).unwrap();
        let body = client.data(head.body_mut()).unwrap().unwrap();
        assert_eq!(&*body, b"done", "{path}");
        assert_eq!(fixture.ends.recv().unwrap(), End::Complete, "{path}");
    }
}

#[test]
fn a_client_that_has_closed_its_connection_is_detected_by_sending() {
    let fixture = start(|builder| builder);
    let mut client = connect(fixture.addr);
    client.write_all(get("/channel").as_bytes()).unwrap();
    let Waiting::Channel(sender) = fixture.waiting.recv().unwrap() else {
        unreachable!("a channel");
    };
    // The head is read, because a close with unread bytes would reset the connection.
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    drop(client);
    fixture.pass_time();
    assert!(!sender.is_gone());
    sender.send("more").unwrap();
    eventually("gone", || sender.is_gone());
    assert_eq!(fixture.ends.recv().unwrap(), End::Left);
    eventually("closed", || fixture.server.connection_count() == 0);
}
