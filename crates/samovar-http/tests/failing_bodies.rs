//! If a body fails before any byte of the response is sent, the client gets 503, even if the socket
//! buffer is full.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use samovar_http::http::Status;
use samovar_http::{
    Batch, Body, End, Exchange, Head, Inline, Intake, Observer, Prepared, Progress, Reply, Request,
    Response, Service, Source, Turn,
};
use support::{By, Reader, connect, serve};

struct Routes {
    prepared: Prepared,
    observed: Mutex<Vec<(String, u16, u64, bool)>>,
}

impl Routes {
    fn new() -> Self {
        Self {
            prepared: Prepared::new(Status::OK, &[], b"inline\n"),
            observed: Mutex::default(),
        }
    }
}

/// A source that fails at once.
struct Failing(Option<u64>);

impl Source for Failing {
    fn len(&self) -> Option<u64> {
        self.0
    }

    fn pull(&mut self, batch: &mut Batch) -> std::io::Result<Progress> {
        batch.put(b"not to be seen");
        Err(std::io::Error::other("on purpose"))
    }
}

/// A source that always yields four bytes, regardless of its announced length.
struct Tail(u64);

impl Source for Tail {
    fn len(&self) -> Option<u64> {
        Some(self.0)
    }

    fn pull(&mut self, batch: &mut Batch) -> std::io::Result<Progress> {
        batch.put(b"tail");
        Ok(Progress::End)
    }
}

/// Returns `len` letters; the letter changes after every thousand.
fn letters(len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| b"abcdefghijklmnopqrstuvwxyz"[i / 1000 % 26])
        .collect()
}

impl Service for Routes {
    type Local = ();

    fn local(&self) {}

    fn inline(&self, _: &mut (), _: Turn, head: Head<'_>, reply: Reply<'_>) -> Inline {
        match head.path() {
            b"/inline" => reply.prepared(&self.prepared),
            _ => reply.dispatch(),
        }
    }

    fn handle(&self, request: &mut Request) -> Response {
        let source: Box<dyn Source> = match request.head().path() {
            b"/failing" => Box::new(Failing(Some(100))),
            b"/failing-unknown" => Box::new(Failing(None)),
            b"/short" => Box::new(Tail(100)),
            b"/long" => Box::new(Tail(3)),
            b"/head" => {
                return Response::new(Status::OK, Body::Source(Box::new(Tail(4))))
                    .header("X-Letters", letters(20_000_000));
            }
            _ => return Response::text(Status::OK, "worker\n"),
        };
        Response::new(Status::OK, Body::Source(source))
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
        self.observed.lock().unwrap().push((
            String::from_utf8_lossy(exchange.head.path()).into_owned(),
            exchange.status.code(),
            exchange.body_len,
            exchange.end == End::Complete,
        ));
    }
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

#[test]
fn a_body_that_fails_before_its_head_is_sent_becomes_a_503() {
    let (server, addr) = serve(Routes::new(), |builder| builder.workers(1).io_threads(1));
    let mut client = Reader::new(connect(addr));
    for path in ["/failing", "/failing-unknown", "/short", "/long"] {
        client.send(get("/inline") + &get(path) + &get("/worker"));
        assert_eq!(client.next(false).unwrap().body, b"inline\n");
        let answer = client.next(false).unwrap();
        assert_eq!(
            (answer.status, answer.header("retry-after")),
            (503, Some("1")),
            "{path}"
        );
        assert_eq!(answer.header("content-type"), Some("text/plain"));
        assert_eq!(answer.body, b"temporarily unavailable, try again\n");
        assert_eq!(client.next(false).unwrap().body, b"worker\n");
    }
    let observed = server.service().observed.lock().unwrap();
    assert!(observed.contains(&("/failing".into(), 503, 35, true)));
    drop(observed);
    // HEAD does not pull the source, so no failure occurs.
    client.send("HEAD /failing HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = client.next(true).unwrap();
    assert_eq!(
        (answer.status, answer.header("content-length")),
        (200, Some("100"))
    );
    client.send("GET /failing HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    let answer = client.next(false).unwrap();
    assert_eq!(
        (answer.status, answer.header("connection")),
        (503, Some("keep-alive"))
    );
    client.send("GET /failing-unknown HTTP/1.0\r\n\r\n");
    assert_eq!(client.next(false).unwrap().status, 503);
    client.expect_end();
}

#[test]
fn a_head_longer_than_the_socket_buffers_precedes_its_body() {
    let (_server, addr) = serve(Routes::new(), |builder| builder);
    let mut stream = connect(addr);
    let request = "GET /head HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    // The head is longer than the socket buffers, so the server blocks in the middle of it.
    std::thread::sleep(Duration::from_secs(1));
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    let start = received.windows(2).position(|pair| pair == b": ").unwrap() + 2;
    assert!(received[start..].starts_with(&letters(20_000_000)));
    assert!(received.ends_with(b"tail"));
}

/// A source with a file that is shorter than the announced length.
struct ShortFile {
    file: Arc<std::fs::File>,
    failure_count: Arc<AtomicUsize>,
}

impl Source for ShortFile {
    fn len(&self) -> Option<u64> {
        Some(2000)
    }

    fn pull(&mut self, batch: &mut Batch) -> std::io::Result<Progress> {
        batch.file(Arc::clone(&self.file), 0, 2000);
        Ok(Progress::End)
    }

    fn file_failed(&mut self, error: &std::io::Error) {
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
        self.failure_count.fetch_add(1, Ordering::SeqCst);
    }
}

/// The source must be notified of the failure: on a connection without TLS, the kernel reads the
/// file.
#[test]
fn file_failed_is_called_if_the_kernel_cannot_read_the_file() {
    let failure_count = Arc::new(AtomicUsize::new(0));
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[b'x'; 1999]).unwrap();
    let (file, counter) = (Arc::new(file), Arc::clone(&failure_count));
    let service = By {
        handle: move |_: &mut Request| {
            let (file, failure_count) = (Arc::clone(&file), Arc::clone(&counter));
            Response::new(
                Status::OK,
                Body::Source(Box::new(ShortFile {
                    file,
                    failure_count,
                })),
            )
        },
        intake: Intake::Buffered(0),
    };
    let (_server, addr) = serve(service, |builder| builder.workers(1));
    let mut client = connect(addr);
    client.write_all(get("/").as_bytes()).unwrap();
    let mut bytes = Vec::new();
    assert!(client.read_to_end(&mut bytes).is_err());
    assert_eq!(failure_count.load(Ordering::SeqCst), 1);
}
