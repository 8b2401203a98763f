//! A client that is still sending when the server has sent its last response gets this response:
//! the server reads on for [`Limits::linger_time`], however much the client sends, and serves other
//! clients meanwhile.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_tls;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use samovar_http::{Builder, Limits, Listener, Route, Router, Server};
use support::{Reader, connect, eventually, h2, serve};

/// Length of a body that fits into no buffer of the kernel, in bytes.
const BODY_LEN: usize = 40_000_000;

fn start(linger_time: Duration) -> (Server<Router>, SocketAddr) {
    configured(linger_time, |builder| builder)
}

fn configured(
    linger_time: Duration,
    configure: impl FnOnce(Builder<Router>) -> Builder<Router>,
) -> (Server<Router>, SocketAddr) {
    let router = Router::new()
        .get("/", |_| "here")
        .route(Route::post("/refused", |_| "").body_len_max(1000))
        .route(Route::post("/unread", |_| "unread").streaming(u64::MAX));
    let limits = Limits {
        linger_time,
        ..Limits::default()
    };
    serve(router, |builder| {
        configure(builder.io_threads(1).limits(limits))
    })
}

/// Writes a whole request before reading a byte, like most clients.
fn write_all_then_read(mut stream: impl Read + Write, path: &str, body_len: usize) -> String {
    let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {BODY_LEN}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let piece = [b'x'; 50_000];
    for _ in 0..body_len / piece.len() {
        stream.write_all(&piece).unwrap();
    }
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

#[test]
fn a_client_that_writes_everything_first_gets_the_response() {
    let (_server, addr) = start(Duration::from_secs(60));
    for (path, start) in [
        ("/refused", "HTTP/1.1 413 "),
        ("/unread", "HTTP/1.1 200 "),
        ("/none", "HTTP/1.1 404 "),
    ] {
        let response = write_all_then_read(connect(addr), path, BODY_LEN);
        assert!(response.starts_with(start), "{path}: {response}");
        assert!(response.contains("Connection: close"), "{response}");
    }
}

#[test]
fn a_tls_client_that_writes_everything_first_gets_the_response() {
    let authority = support_tls::Authority::new("lingering");
    let config = authority.sign(&["a.test"]).builder().build().unwrap();
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 128).unwrap();
    let time = Duration::from_secs(60);
    let (server, _) = configured(time, |builder| builder.listen(listener.tls(config)));
    let stream = authority.client().connect(server.local_addrs()[1]).unwrap();
    let response = write_all_then_read(stream, "/refused", BODY_LEN / 4);
    assert!(response.starts_with("HTTP/1.1 413 "), "{response}");
}

#[test]
fn an_http2_client_that_writes_on_gets_the_goaway() {
    let (_server, addr) = start(Duration::from_secs(60));
    let mut raw = h2::Raw::connect(addr);
    // The number of a stream that a client cannot open.
    raw.send(&h2::frame(h2::HEADERS, 5, 2, h2::POST));
    let unknown = h2::frame(0xfa, 0, 0, &[0; 16_000]);
    for _ in 0..BODY_LEN / unknown.len() {
        raw.send(&unknown);
    }
    const PROTOCOL_ERROR: u32 = 1;
    assert_eq!(raw.goaway_code(), PROTOCOL_ERROR);
    assert_eq!(raw.next_frame(), None);
}

#[test]
fn a_client_that_never_stops_is_closed_and_delays_nobody() {
    let linger_time = Duration::from_secs(1);
    let (server, addr) = start(linger_time);
    let floods: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(move || {
                let mut stream = connect(addr);
                let head =
                    "POST /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999999\r\n\r\n";
                stream.write_all(head.as_bytes()).unwrap();
                let started = Instant::now();
                let piece = [b'x'; 50_000];
                while stream.write_all(&piece).is_ok() {}
                started.elapsed()
            })
        })
        .collect();
    let mut other = Reader::new(connect(addr));
    for _ in 0..100 {
        other.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(other.next(false).unwrap().body, b"here");
    }
    for flood in floods {
        let time = flood.join().unwrap();
        assert!(time >= linger_time / 2, "{time:?}");
    }
    other.stream.shutdown(Shutdown::Both).unwrap();
    eventually("all are closed", || server.connection_count() == 0);
}
