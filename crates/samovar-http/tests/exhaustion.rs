//! A process without free descriptors pauses accepting, and resumes once descriptors are free.
//!
//! The test has its own file, because the descriptor limit applies to the whole process.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use samovar_http::http::Status;
use samovar_http::{
    Head, Incident, Inline, Observer, Prepared, Reply, Request, Response, Service, Turn,
};
use support::{Reader, connect, eventually, serve};

struct Counting {
    prepared: Prepared,
    gate: Mutex<Receiver<()>>,
    entered: AtomicUsize,
    failed: AtomicUsize,
}

impl Service for Counting {
    type Local = ();

    fn local(&self) {}

    fn inline(&self, _: &mut (), _: Turn, head: Head<'_>, reply: Reply<'_>) -> Inline {
        if head.path() == b"/gate" {
            self.entered.fetch_add(1, Ordering::SeqCst);
            self.gate.lock().unwrap().recv().unwrap();
        }
        reply.prepared(&self.prepared)
    }

    fn handle(&self, _: &mut Request) -> Response {
        Response::text(Status::OK, "")
    }

    fn observer(&self) -> &dyn Observer {
        self
    }
}

impl Observer for Counting {
    fn incident(&self, incident: &Incident<'_>) {
        if matches!(incident, Incident::AcceptFailed { .. }) {
            self.failed.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[test]
fn without_descriptors_accepting_pauses_and_resumes() {
    const CLIENTS: usize = 20;
    const SPARE: usize = 4;
    let (release, gate) = channel();
    let service = Counting {
        prepared: Prepared::new(Status::OK, &[], b"ok"),
        gate: Mutex::new(gate),
        entered: AtomicUsize::new(0),
        failed: AtomicUsize::new(0),
    };
    let (server, addr) = serve(service, |builder| builder.io_threads(1).workers(1));
    let mut first = Reader::new(connect(addr));
    first.send("GET /gate HTTP/1.1\r\nHost: a\r\n\r\n");
    while server.service().entered.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    // The kernel completes these TCP handshakes; the server accepts the connections after the limit
    // is set.
    let clients: Vec<TcpStream> = (0..CLIENTS).map(|_| connect(addr)).collect();
    let open_count = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = getrlimit(Resource::Nofile);
    let limit = Rlimit {
        current: Some((open_count - 1 + SPARE) as u64),
        maximum: before.maximum,
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    release.send(()).unwrap();
    let mut clients: Vec<Reader> = clients.into_iter().map(Reader::new).collect();
    while server.service().failed.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    // Accepted clients are served; their descriptors then serve the waiting clients.
    for mut client in clients.drain(..) {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.next(false).unwrap().status, 200);
    }
    let failures = server.service().failed.load(Ordering::SeqCst);
    assert!(failures < 1000, "{failures} attempts: it spins");
    setrlimit(Resource::Nofile, before).unwrap();
    assert_eq!(first.next(false).unwrap().status, 200);

    // If no connection ends, the waiting clients get 503 after a while.
    first.send("GET /gate HTTP/1.1\r\nHost: a\r\n\r\n");
    while server.service().entered.load(Ordering::SeqCst) == 1 {
        std::thread::yield_now();
    }
    let clients: Vec<TcpStream> = (0..CLIENTS).map(|_| connect(addr)).collect();
    let open_count = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let limit = Rlimit {
        current: Some((open_count - 1 + SPARE) as u64),
        maximum: before.maximum,
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    release.send(()).unwrap();
    let has_answer = |client: &TcpStream| {
        client.set_nonblocking(true).unwrap();
        client.peek(&mut [0]).is_ok_and(|len| len > 0)
    };
    eventually("the clients that were not accepted get 503", || {
        // The number of clients with a response depends on the descriptor numbers that are free.
        clients.iter().any(has_answer)
    });
    setrlimit(Resource::Nofile, before).unwrap();
    for client in clients.into_iter().filter(has_answer) {
        client.set_nonblocking(false).unwrap();
        let answer = Reader::new(client).next(false).unwrap();
        assert_eq!(answer.status, 503);
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
}
