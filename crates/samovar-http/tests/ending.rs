//! A server that was drained ends although handlers, readers and inline handlers still wait, and
//! names the requests that it leaves behind. So does a process that serves until SIGTERM. Handlers
//! that wait for the rest of a request body are told in time to answer.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use samovar_http::http::Status;
use samovar_http::{
    Body, BodyError, Head, Intake, Listener, Request, Response, Route, Router, Server, Service,
    stop_signal,
};
use support::h2_app::Gate;
use support::{Reader, connect, eventually, h2, serve};

/// Longer than any end may take, and shorter than the limit of a test.
const PATIENCE: Duration = Duration::from_secs(60);

/// A service whose handlers and readers wait until the gate opens.
struct Hanging {
    gate: Arc<Gate>,
    started: AtomicBool,
    has_ended: Arc<AtomicBool>,
}

/// A reader that waits.
struct Silent(Arc<Gate>);

impl Read for Silent {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        self.0.pass();
        Ok(0)
    }
}

impl Service for Hanging {
    type Local = ();

    fn local(&self) {}

    fn intake(&self, head: Head<'_>) -> Intake {
        match head.path() {
            b"/inline" => Intake::Inline(10),
            _ => Intake::Buffered(10),
        }
    }

    fn handle(&self, request: &mut Request) -> Response {
        self.started.store(true, Ordering::Release);
        if request.head().path() == b"/reader" {
            let body = Body::reader(Silent(Arc::clone(&self.gate)));
            return Response::new(Status::OK, body);
        }
        self.gate.pass();
        self.has_ended.store(true, Ordering::Release);
        Response::text(Status::OK, "late")
    }
}

/// Opens the gate when dropped, so that a failing test does not hang.
struct Opened(Arc<Gate>);

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.open();
    }
}

fn start() -> (Server<Hanging>, SocketAddr, Opened) {
    let gate = Arc::new(Gate::default());
    let service = Hanging {
        gate: Arc::clone(&gate),
        started: AtomicBool::new(false),
        has_ended: Arc::default(),
    };
    let (server, addr) = serve(service, |builder| builder.workers(2).io_threads(1));
    (server, addr, Opened(gate))
}

/// Ends a server in another thread; fails if that takes too long.
fn end_in_time(server: Server<Hanging>) {
    let (ended, ends) = channel();
    std::thread::spawn(move || {
        drop(server);
        ended.send(()).unwrap();
    });
    ends.recv_timeout(PATIENCE).unwrap();
}

#[test]
fn a_drained_server_is_dropped_while_its_handlers_hang() {
    for path in ["/handler?x=1", "/reader"] {
        let (server, addr, _opened) = start();
        let mut client = Reader::new(connect(addr));
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        eventually("it runs", || {
            server.service().started.load(Ordering::Acquire)
        });
        server.drain(Duration::from_millis(50));
        let unfinished = server.unfinished();
        assert_eq!(unfinished.len(), 1);
        assert_eq!(unfinished[0].request, format!("GET {path}"));
        assert!(unfinished[0].duration >= Duration::from_millis(50));
        end_in_time(server);
    }
}

#[test]
fn a_drain_ends_although_an_inline_handler_hangs() {
    let (server, addr, _opened) = start();
    let mut client = Reader::new(connect(addr));
    client.send("POST /inline HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
    eventually("it runs", || {
        server.service().started.load(Ordering::Acquire)
    });
    let (ended, ends) = channel();
    std::thread::spawn(move || {
        server.drain(Duration::from_millis(50));
        drop(server);
        ended.send(()).unwrap();
    });
    ends.recv_timeout(PATIENCE).unwrap();
}

#[test]
fn a_server_that_is_dropped_without_a_drain_waits_for_its_handlers() {
    let (server, addr, opened) = start();
    let mut client = Reader::new(connect(addr));
    client.send("GET /handler HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually("it runs", || {
        server.service().started.load(Ordering::Acquire)
    });
    let has_ended = Arc::clone(&server.service().has_ended);
    let opening = std::thread::spawn(move || {
        eventually("the drop has begun", || TcpStream::connect(addr).is_err());
        drop(opened);
    });
    drop(server);
    assert!(has_ended.load(Ordering::Acquire));
    opening.join().unwrap();
}

/// Environment variable with the address of the upstream server. If it is set, the test program is
/// the server of [`a_process_ends_in_time_whatever_its_handlers_do`].
const UPSTREAM: &str = "SAMOVAR_TEST_UPSTREAM";
const DRAIN: Duration = Duration::from_secs(1);

/// Prints a line to the test that has started this process. `println` would be captured.
fn tell(line: &str) {
    let line = format!("{line}\n");
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}

/// Serves until SIGTERM, and prints its address and the requests that it leaves behind.
fn serve_until_told(upstream: String) {
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 16).unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new()
        .get("/hang", |_| -> Status {
            loop {
                std::thread::park();
            }
        })
        .get("/proxy", move |_: &mut Request| {
            let upstream = TcpStream::connect(&upstream).unwrap();
            Response::new(Status::OK, Body::reader(upstream))
        })
        .route(
            Route::put("/upload", |request| {
                let read = std::io::copy(&mut request.reader(), &mut std::io::sink());
                tell(&format!("upload: {}", read.unwrap_err()));
            })
            .streaming(u64::MAX),
        );
    let stop = stop_signal().unwrap();
    let wait = || {
        tell(&format!("address: {address}"));
        stop();
    };
    let builder = Server::builder(router).listen(listener);
    for request in builder.serve_until(wait, DRAIN).unwrap() {
        tell(&format!("left behind: {}", request.request));
    }
    // Not by a return, after which the test harness would wait for nothing, either.
    std::process::exit(0);
}

#[test]
fn a_process_ends_in_time_whatever_its_handlers_do() {
    if let Ok(upstream) = std::env::var(UPSTREAM) {
        return serve_until_told(upstream);
    }
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg("a_process_ends_in_time_whatever_its_handlers_do")
        .env(UPSTREAM, silent.local_addr().unwrap().to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let address = lines.find_map(|line| line.strip_prefix("address: ").map(str::to_owned));
    let addr: SocketAddr = address.unwrap().parse().unwrap();
    let ask = |request: &str| {
        let mut client = Reader::new(connect(addr));
        client.send(format!("{request} HTTP/1.1\r\nHost: a\r\n\r\n"));
        client
    };
    let _hanging = ask("GET /hang");
    let _reading = ask("GET /proxy");
    let mut uploading = Reader::new(connect(addr));
    uploading.send(
        "PUT /upload HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
    );
    // Once it is sent, the handler reads.
    uploading.stream.read_exact(&mut [0; 25]).unwrap();
    let _upstream = silent.accept().unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let started = Instant::now();
    let mut left: Vec<_> = lines.collect();
    assert!(child.wait().unwrap().success());
    let time = started.elapsed();
    assert!(time >= DRAIN / 2 && time < PATIENCE / 4, "{time:?}");
    left.retain(|line| line.starts_with("left behind: ") || line.starts_with("upload: "));
    left.sort_unstable();
    let expected = [
        "left behind: GET /hang",
        "left behind: GET /proxy",
        "upload: server is stopping",
    ];
    assert_eq!(left, expected);
}

#[test]
fn a_handler_that_waits_for_its_client_answers_before_a_drain_ends() {
    let route = Route::post("/", |request| {
        let read = std::io::copy(&mut request.reader(), &mut std::io::sink());
        let error = read.unwrap_err();
        let status = BodyError::of(&error).map_or(Status::OK, BodyError::status);
        Response::text(status, error.to_string())
    });
    let router = Router::new().route(route.streaming(u64::MAX));
    let (server, addr) = serve(router, |builder| builder);
    let mut clients: Vec<_> = [
        "Content-Length: 100\r\n\r\nabc",
        "Transfer-Encoding: chunked\r\n\r\n",
    ]
    .map(|rest| {
        let mut client = Reader::new(connect(addr));
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{rest}"));
        client
    })
    .into();
    let mut multiplexed = h2::Client::connect(addr);
    let (future, _body) = multiplexed.start(h2::post("/"), false);
    eventually("all wait", || server.load().waiting_count == 3);
    let started = Instant::now();
    let drain = std::thread::spawn(move || {
        server.drain(DRAIN);
        server.unfinished()
    });
    let whole = multiplexed.whole(future).unwrap();
    assert_eq!((whole.status(), whole.text()), (503, "server is stopping"));
    for client in &mut clients {
        let answer = client.next(false).unwrap();
        assert_eq!(answer.status, 503);
        assert_eq!(answer.body, b"server is stopping");
        client.expect_end();
    }
    assert!(started.elapsed() >= DRAIN / 2);
    drop((clients, multiplexed));
    assert_eq!(drain.join().unwrap(), []);
}
