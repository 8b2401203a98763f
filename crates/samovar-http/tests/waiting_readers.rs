//! A reader that waits, such as one of an upstream server or of a log that grows, occupies no
//! worker slot, and the server notices that its client has left.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_tls;

use std::io::{self, Read, Write as _};
use std::net::{Shutdown, SocketAddr};
use std::sync::mpsc::{Receiver, Sender as Queue, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use samovar_http::http::Status;
use samovar_http::{
    Body, Builder, End, Exchange, Limits, Listener, Observer, Request, Response, Server, Service,
};
use support::h2::{Client, get};
use support::{Reader, connect, eventually, serve};

const WORKERS: usize = 2;

/// A reader that waits for each piece.
struct Pieces(Receiver<Vec<u8>>);

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Ok(piece) = self.0.recv() else {
            return Ok(0);
        };
        match &piece[..] {
            b"fail" => return Err(io::Error::other("failed")),
            b"panic" => std::panic::resume_unwind(Box::new("a reader panics")),
            _ => {}
        }
        buffer[..piece.len()].copy_from_slice(&piece);
        Ok(piece.len())
    }
}

struct App {
    readers: Mutex<Queue<Queue<Vec<u8>>>>,
    ends: Mutex<Queue<End>>,
}

impl Service for App {
    type Local = ();

    fn local(&self) {}

    fn handle(&self, request: &mut Request) -> Response {
        if request.head().path() == b"/prompt" {
            return Response::text(Status::OK, "prompt");
        }
        let (pieces, reader) = channel();
        self.readers.lock().unwrap().send(pieces).unwrap();
        let body = match request.head().path() {
            b"/iterator" => Body::pieces(std::iter::from_fn(move || reader.recv().ok().map(Ok))),
            b"/keeping" => Body::reader(Pieces(reader)).keeping_slot(),
            _ => Body::reader(Pieces(reader)),
        };
        Response::new(Status::OK, body)
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
        // The end of a server reports exchanges that no test expects any more.
        self.ends.lock().unwrap().send(exchange.end).ok();
    }
}

struct Fixture {
    server: Server<App>,
    addr: SocketAddr,
    readers: Receiver<Queue<Vec<u8>>>,
    ends: Receiver<End>,
}

fn start(configure: impl FnOnce(Builder<App>) -> Builder<App>) -> Fixture {
    let (readers_in, readers) = channel();
    let (ends_in, ends) = channel();
    let app = App {
        readers: Mutex::new(readers_in),
        ends: Mutex::new(ends_in),
    };
    let (server, addr) = serve(app, |builder| configure(builder.workers(WORKERS)));
    Fixture {
        server,
        addr,
        readers,
        ends,
    }
}

fn text(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

impl Fixture {
    fn ask(&self, path: &str) -> (Reader, Queue<Vec<u8>>) {
        let mut client = Reader::new(connect(self.addr));
        client.send(text(path));
        (client, self.readers.recv().unwrap())
    }
}

#[test]
fn silent_readers_occupy_no_slots_and_their_clients_leave() {
    let fixture = start(|builder| builder);
    for path in ["/reader", "/iterator"] {
        let (clients, readers): (Vec<_>, Vec<_>) =
            (0..4 * WORKERS).map(|_| fixture.ask(path)).unzip();
        let mut other = Reader::new(connect(fixture.addr));
        other.send(text("/prompt"));
        assert_eq!(other.next(false).unwrap().body, b"prompt");
        assert_eq!(fixture.ends.recv().unwrap(), End::Complete);
        drop((clients, other));
        eventually("closed", || fixture.server.connection_count() == 0);
        for _ in &readers {
            assert_eq!(fixture.ends.recv().unwrap(), End::Left);
        }
        drop(readers);
        eventually("no reader waits", || {
            fixture.server.load().waiting_count == 0
        });
    }
}

/// The slots limit how many readers compute at the same time.
#[test]
fn readers_that_keep_their_slots_are_limited_to_them() {
    let fixture = start(|builder| builder);
    let (clients, readers): (Vec<_>, Vec<_>) =
        (0..WORKERS).map(|_| fixture.ask("/keeping")).unzip();
    let mut other = Reader::new(connect(fixture.addr));
    other.send(text("/prompt"));
    let loads = |queued_count| {
        let load = fixture.server.load();
        let slots = (load.running_count, load.waiting_count);
        (slots, load.queued_count) == ((WORKERS, 0), queued_count)
    };
    eventually("the other request is queued", || loads(1));
    for (mut client, reader) in clients.into_iter().zip(readers) {
        reader.send(b"piece".to_vec()).unwrap();
        drop(reader);
        assert_eq!(client.next(false).unwrap().body, b"piece");
    }
    assert_eq!(other.next(false).unwrap().body, b"prompt");
}

#[test]
fn a_client_of_a_silent_reader_leaves_over_tls() {
    let authority = support_tls::Authority::new("waiting-readers");
    let config = authority.sign(&["a.test"]).builder().build().unwrap();
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 128).unwrap();
    let fixture = start(|builder| builder.listen(listener.tls(config)));
    let addr = fixture.server.local_addrs()[1];
    let mut client = authority.client().connect(addr).unwrap();
    client.write_all(text("/reader").as_bytes()).unwrap();
    let reader = fixture.readers.recv().unwrap();
    client.conn.send_close_notify();
    client.flush().unwrap();
    client.sock.shutdown(Shutdown::Both).unwrap();
    eventually("closed", || fixture.server.connection_count() == 0);
    drop(reader);
}

#[test]
fn a_client_of_a_silent_reader_leaves_over_http2() {
    let fixture = start(|builder| builder);
    let mut client = Client::connect(fixture.addr);
    let (response, _) = client.start(get("/reader"), true);
    let reader = client.drive(|_| match fixture.readers.try_recv() {
        Ok(reader) => std::task::Poll::Ready(reader),
        Err(_) => std::task::Poll::Pending,
    });
    drop((client, response));
    eventually("closed", || fixture.server.connection_count() == 0);
    drop(reader);
}

#[test]
fn each_piece_arrives_when_the_reader_yields_it() {
    let fixture = start(|builder| builder);
    let (mut client, pieces) = fixture.ask("/reader");
    client.send(text("/prompt"));
    for piece in ["first", "second"] {
        pieces.send(piece.into()).unwrap();
        let mut read = Vec::new();
        while !read.ends_with(piece.as_bytes()) {
            let mut byte = [0];
            client.stream.read_exact(&mut byte).unwrap();
            read.extend(byte);
        }
    }
    // The rest of the chunk, and the last one.
    drop(pieces);
    let mut rest = [0; 7];
    client.stream.read_exact(&mut rest).unwrap();
    assert_eq!(&rest, b"\r\n0\r\n\r\n");
    assert_eq!(client.next(false).unwrap().body, b"prompt");
}

#[test]
fn a_client_that_ends_its_side_gets_what_the_reader_yields_soon() {
    let fixture = start(|builder| builder);
    let (mut client, pieces) = fixture.ask("/reader");
    client.stream.shutdown(Shutdown::Write).unwrap();
    for _ in 0..100 {
        pieces.send(vec![b'x'; 1000]).unwrap();
    }
    drop(pieces);
    assert_eq!(client.next(false).unwrap().body, vec![b'x'; 100_000]);
    assert_eq!(fixture.ends.recv().unwrap(), End::Complete);
}

#[test]
fn a_reader_that_fails_after_a_wait_fails_as_any_other() {
    let fixture = start(|builder| {
        builder.limits(Limits {
            linger_time: Duration::from_secs(60),
            ..Limits::default()
        })
    });
    for fault in ["fail", "panic"] {
        for ends_first in [false, true] {
            let (mut client, pieces) = fixture.ask("/reader");
            if ends_first {
                client.stream.shutdown(Shutdown::Write).unwrap();
            }
            pieces.send(fault.into()).unwrap();
            assert_eq!(client.next(false).unwrap().status, 503);
            assert_eq!(fixture.ends.recv().unwrap(), End::Complete);
            let (mut client, pieces) = fixture.ask("/reader");
            pieces.send(b"begun".into()).unwrap();
            let mut read = Vec::new();
            while !read.ends_with(b"begun") {
                let mut byte = [0];
                client.stream.read_exact(&mut byte).unwrap();
                read.extend(byte);
            }
            pieces.send(fault.into()).unwrap();
            client.stream.read_to_end(&mut read).unwrap_err();
            assert_eq!(fixture.ends.recv().unwrap(), End::Cut);
        }
    }
}

#[test]
fn a_long_body_of_a_reader_is_complete() {
    let fixture = start(|builder| builder);
    let (mut client, pieces) = fixture.ask("/reader");
    let expected: Vec<u8> = (0..20_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
    for piece in expected.chunks(10_000) {
        pieces.send(piece.into()).unwrap();
    }
    drop(pieces);
    assert!(client.next(false).unwrap().body == expected);
}

#[test]
fn the_bytes_of_a_response_whose_client_has_left_are_reported() {
    let (server, addr) = serve(Lengths(Mutex::default()), |builder| builder);
    let mut client = Reader::new(connect(addr));
    client.send(text("/reader"));
    let mut read = Vec::new();
    while !read.ends_with(b"begun") {
        let mut byte = [0];
        client.stream.read_exact(&mut byte).unwrap();
        read.extend(byte);
    }
    drop(client);
    eventually("reported", || server.service().0.lock().unwrap().is_some());
    assert_eq!(*server.service().0.lock().unwrap(), Some(5));
}

/// A service that sends five bytes and then waits; records the number of bytes sent.
struct Lengths(Mutex<Option<u64>>);

impl Service for Lengths {
    type Local = ();

    fn local(&self) {}

    fn handle(&self, _: &mut Request) -> Response {
        let (sender, pieces) = channel();
        sender.send(b"begun".to_vec()).unwrap();
        let waiting = Arc::new(sender);
        let body = Body::pieces(std::iter::from_fn(move || {
            let _open = &waiting;
            pieces.recv_timeout(Duration::from_secs(20)).ok().map(Ok)
        }));
        Response::new(Status::OK, body)
    }

    fn observer(&self) -> &dyn Observer {
        self
    }
}

impl Observer for Lengths {
    fn observes(&self) -> bool {
        true
    }

    fn exchanged(&self, exchange: &Exchange<'_>) {
        *self.0.lock().unwrap() = Some(exchange.body_len);
    }
}
