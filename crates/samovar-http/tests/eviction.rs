//! At the connection limit, idle connections are evicted for new ones.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use samovar_http::http::Status;
use samovar_http::{
    Head, Incident, Inline, Limits, Observer, Prepared, Reply, Request, Response, Server, Service,
    Turn,
};
use support::{Reader, connect, eventually, serve};

struct Counting {
    prepared: Prepared,
    gave_way: AtomicUsize,
    gate: Mutex<()>,
}

impl Service for Counting {
    type Local = ();

    fn local(&self) {}

    fn inline(&self, _: &mut (), _: Turn, head: Head<'_>, reply: Reply<'_>) -> Inline {
        match head.path() {
            b"/worker" | b"/gate" => reply.dispatch(),
            _ => reply.prepared(&self.prepared),
        }
    }

    fn handle(&self, request: &mut Request) -> Response {
        if request.head().path() == b"/gate" {
            drop(self.gate.lock().unwrap());
        }
        Response::text(Status::OK, "ok")
    }

    fn observer(&self) -> &dyn Observer {
        self
    }
}

impl Observer for Counting {
    fn incident(&self, incident: &Incident<'_>) {
        if matches!(incident, Incident::GaveWay { .. }) {
            self.gave_way.fetch_add(1, Ordering::SeqCst);
        }
    }
}

const MAX: usize = 8;

fn start(rest_time_min: Duration) -> (Server<Counting>, SocketAddr) {
    let limits = Limits {
        connections_max: MAX,
        rest_time_min,
        ..Limits::default()
    };
    let service = Counting {
        prepared: Prepared::new(Status::OK, &[], b"ok"),
        gave_way: AtomicUsize::new(0),
        gate: Mutex::new(()),
    };
    serve(service, |builder| {
        builder.io_threads(1).workers(MAX).limits(limits)
    })
}

/// Requests a path, and returns the client with its connection open.
fn get_from(addr: SocketAddr, path: &str) -> Reader {
    let mut client = Reader::new(connect(addr));
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_eq!(client.next(false).unwrap().status, 200);
    client
}

fn evicted_count(server: &Server<Counting>) -> usize {
    server.service().gave_way.load(Ordering::SeqCst)
}

fn is_open(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let peeked = stream.peek(&mut [0]);
    stream.set_nonblocking(false).unwrap();
    matches!(peeked, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

#[test]
fn the_longest_idle_connection_is_evicted() {
    for path in ["/inline", "/worker"] {
        let (server, addr) = start(Duration::ZERO);
        let mut clients: Vec<Reader> = (0..MAX).map(|_| get_from(addr, path)).collect();
        // All connections fit, so none is evicted yet.
        assert_eq!(
            (server.connection_count(), evicted_count(&server)),
            (MAX, 0)
        );
        assert!(clients.iter().all(|client| is_open(&client.stream)));
        // The first client sends another request, so the second connection is now idle for longest.
        clients[0].send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(clients[0].next(false).unwrap().status, 200);
        for number in 1..=3 {
            let newcomer = get_from(addr, path);
            assert_eq!(evicted_count(&server), number, "{path}");
            // The time at which a connection returns from its worker is only accurate to a quarter
            // of a second.
            if path == "/inline" {
                clients[number].expect_end();
            }
            clients.push(newcomer);
        }
        eventually("as many are open as may be", || {
            let open = clients.iter().filter(|client| is_open(&client.stream));
            open.count() == MAX
        });
        assert_eq!(server.connection_count(), MAX);
    }
}

#[test]
fn connections_with_an_incomplete_head_are_evicted() {
    let (server, addr) = start(Duration::ZERO);
    let slow: Vec<Reader> = (0..MAX)
        .map(|_| {
            let mut client = Reader::new(connect(addr));
            client.send("GET / HTTP/1.1\r\nHo");
            client
        })
        .collect();
    eventually("all are there", || server.connection_count() == MAX);
    drop(get_from(addr, "/inline"));
    assert_eq!(evicted_count(&server), 1);
    eventually("one of them is closed", || {
        let open = slow.iter().filter(|client| is_open(&client.stream));
        open.count() == MAX - 1
    });
}

#[test]
fn a_connection_with_a_response_in_progress_is_not_evicted() {
    let (server, addr) = start(Duration::ZERO);
    let gate = server.service().gate.lock().unwrap();
    let mut busy: Vec<Reader> = (0..MAX)
        .map(|_| {
            let mut client = Reader::new(connect(addr));
            client.send("GET /gate HTTP/1.1\r\nHost: a\r\n\r\n");
            client
        })
        .collect();
    eventually("all are with workers", || {
        server.load().running_count == MAX && server.connection_count() == MAX
    });
    let mut refused = Reader::new(connect(addr));
    assert_eq!(refused.next(false).unwrap().status, 503);
    refused.expect_end();
    drop(gate);
    for client in &mut busy {
        assert_eq!(client.next(false).unwrap().status, 200);
    }
    assert_eq!(evicted_count(&server), 0);
}

#[test]
fn eviction_can_be_turned_off() {
    let (server, addr) = start(Duration::MAX);
    let clients: Vec<Reader> = (0..MAX).map(|_| get_from(addr, "/inline")).collect();
    let mut refused = Reader::new(connect(addr));
    assert_eq!(refused.next(false).unwrap().status, 503);
    assert!(clients.iter().all(|client| is_open(&client.stream)));
    assert_eq!(evicted_count(&server), 0);
}

/// If one address has more than half of all connections, they are evicted before their idle time is
/// over.
#[test]
fn an_address_with_more_than_half_of_all_connections_is_evicted_at_once() {
    let (server, addr) = start(Duration::from_secs(3600));
    let mut silent: Vec<TcpStream> = (0..MAX).map(|_| connect(addr)).collect();
    eventually("all are there", || server.connection_count() == MAX);
    for number in 1..=3 {
        drop(get_from(addr, "/inline"));
        assert_eq!(evicted_count(&server), number);
        eventually("it is gone", || server.connection_count() == MAX - 1);
        silent.push(connect(addr));
        eventually("it is full again", || server.connection_count() == MAX);
    }
}
