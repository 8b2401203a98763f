#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test helper fails by panicking"
)]
#![allow(
    dead_code,
    unused_imports,
    clippy::allow_attributes,
    reason = "each test file is a crate of its own and uses a part"
)]
//! An application with one handler for each kind of response.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};

use samovar_http::http::{Status, Version};
use samovar_http::{
    Batch, Body, End, Exchange, Head, Incident, Inline, Intake, Limits, Observer, Prepared,
    Progress, Reply, Request, Responder, Response, Server, Service, Source, Turn,
};

use super::serve;

/// State shared by the handlers and the test.
#[derive(Default)]
pub(crate) struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub(crate) fn pass(&self) {
        let mut is_open = self.is_open.lock().unwrap();
        while !*is_open {
            is_open = self.opened.wait(is_open).unwrap();
        }
    }

    pub(crate) fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

pub(crate) struct App {
    pub(crate) ready: Prepared,
    pub(crate) gate: Gate,
    pub(crate) running: AtomicUsize,
    pub(crate) started: AtomicUsize,
    pub(crate) read_len: AtomicU64,
    pub(crate) responder: Mutex<Option<Responder>>,
    pub(crate) sender: Mutex<Option<samovar_http::Sender>>,
    pub(crate) reports: Mutex<Vec<String>>,
}

impl App {
    pub(crate) fn new() -> Self {
        Self {
            ready: Prepared::new(Status::OK, &[("X-Inline", "yes")], b"ready"),
            gate: Gate::default(),
            running: AtomicUsize::new(0),
            started: AtomicUsize::new(0),
            read_len: AtomicU64::new(0),
            responder: Mutex::default(),
            sender: Mutex::default(),
            reports: Mutex::default(),
        }
    }
}

/// A source that yields this many bytes, or fails earlier if the request demands it.
struct Pattern {
    left: u64,
    fails: bool,
}

impl Source for Pattern {
    fn len(&self) -> Option<u64> {
        Some(self.left)
    }

    fn pull(&mut self, batch: &mut Batch) -> std::io::Result<Progress> {
        let len = batch.room_len().min(usize::try_from(self.left).unwrap());
        batch.room()[..len].fill(b'p');
        batch.advance(len);
        self.left -= len as u64;
        if self.fails {
            return Err(std::io::Error::other("failed on purpose"));
        }
        Ok(if self.left == 0 {
            Progress::End
        } else {
            Progress::More
        })
    }
}

impl Service for App {
    type Local = ();

    fn local(&self) {}

    fn inline(&self, _: &mut (), _: Turn, head: Head<'_>, reply: Reply<'_>) -> Inline {
        match head.path() {
            b"/inline" => reply.prepared(&self.ready),
            b"/inline-panic" => panic!("on purpose"),
            _ => reply.dispatch(),
        }
    }

    fn intake(&self, head: Head<'_>) -> Intake {
        match head.path() {
            b"/echo" => Intake::Buffered(1 << 20),
            b"/count" | b"/half" => Intake::Streamed(64 << 20),
            b"/gated-count" => Intake::Streamed(64 << 20),
            _ => Intake::Buffered(10),
        }
    }

    fn handle(&self, request: &mut Request) -> Response {
        let ok = |body| Response::new(Status::OK, body);
        let path = String::from_utf8(request.head().path().to_vec()).unwrap();
        let number = |prefix: &str| path.strip_prefix(prefix)?.parse::<u64>().ok();
        if let Some(len) = number("/pattern/") {
            let fails = false;
            return ok(Body::Source(Box::new(Pattern { left: len, fails })));
        }
        if let Some(code) = number("/status/") {
            return Response::new(
                Status::new(u16::try_from(code).unwrap()).unwrap(),
                Body::Empty,
            );
        }
        match path.as_str() {
            "/echo" => ok(Body::Bytes(request.body().to_vec().into())),
            "/count" => {
                let len = std::io::copy(&mut request.reader(), &mut std::io::sink());
                Response::text(Status::OK, format!("{:?}", len.ok()))
            }
            "/half" => {
                let mut half = [0; 4];
                request.reader().read_exact(&mut half).unwrap();
                ok(Body::Bytes(half.to_vec().into()))
            }
            "/gated-count" => {
                self.started.fetch_add(1, Ordering::SeqCst);
                self.gate.pass();
                let len = std::io::copy(&mut request.reader(), &mut std::io::sink()).unwrap();
                self.read_len.store(len, Ordering::SeqCst);
                Response::text(Status::OK, format!("{len}"))
            }
            "/gated" => {
                self.running.fetch_add(1, Ordering::SeqCst);
                self.started.fetch_add(1, Ordering::SeqCst);
                self.gate.pass();
                self.running.fetch_sub(1, Ordering::SeqCst);
                Response::text(Status::OK, "late")
            }
            "/panic" => panic!("on purpose"),
            "/later" => {
                let (responder, response) = Response::later();
                *self.responder.lock().unwrap() = Some(responder);
                response
            }
            "/channel" => {
                let (sender, body) = Body::channel();
                *self.sender.lock().unwrap() = Some(sender);
                ok(body)
            }
            "/reader" => ok(Body::reader(std::io::repeat(b'w').take(1_000_000))),
            "/fails" => {
                let fails = true;
                ok(Body::Source(Box::new(Pattern { left: 9, fails })))
            }
            "/short" => ok(Body::reader_of_len(&b"short"[..], 1_000_000)),
            "/file" => ok(Body::file(std::fs::File::open("Cargo.toml").unwrap()).unwrap()),
            "/shared" => ok(Body::Shared(vec![b's'; 300_000].into())),
            "/see" => {
                let head = request.head();
                assert_eq!(head.version(), Version::Http2);
                let fields: Vec<String> = head
                    .headers()
                    .map(|(name, value)| {
                        format!("{}={}", name.escape_ascii(), value.escape_ascii())
                    })
                    .collect();
                let query = head.query().unwrap_or_default().escape_ascii().to_string();
                Response::text(Status::OK, format!("{query} {}", fields.join(" ")))
            }
            _ => Response::text(Status::NOT_FOUND, "nothing here"),
        }
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
        let Exchange {
            head,
            status,
            body_len,
            end,
            ..
        } = exchange;
        let complete = *end == End::Complete;
        let line = format!("{head:?} {status} {body_len} {complete}");
        self.reports.lock().unwrap().push(line);
    }

    fn incident(&self, incident: &Incident<'_>) {
        self.reports.lock().unwrap().push(incident.to_string());
    }
}

pub(crate) fn start(limits: Limits) -> (Server<App>, SocketAddr) {
    serve(App::new(), |builder| {
        builder.limits(limits).workers(4).io_threads(1)
    })
}

pub(crate) fn start_default() -> (Server<App>, SocketAddr) {
    start(Limits::default())
}

pub(crate) use testkit::eventually as wait_until;
