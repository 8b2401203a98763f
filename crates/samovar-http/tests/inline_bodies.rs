//! A handler that runs on the I/O thread once its request body is in memory can return every kind
//! of response.

mod support;

use std::time::Duration;

use samovar_http::http::Status;
use samovar_http::{Intake, Request, Response, Route, Router};
use support::{By, Reader, connect, eventually, promising, serve};

const LEN_MAX: u64 = 100_000;

fn post(path: &str, body: &str) -> String {
    let len = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n{body}")
}

/// Responds with the name of the current thread and the request body.
fn tell(request: &mut Request) -> Response {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or_default();
    let body = String::from_utf8_lossy(request.body()).into_owned();
    Response::text(Status::OK, format!("{name} {body}"))
}

fn by(handle: fn(&mut Request) -> Response) -> By<fn(&mut Request) -> Response> {
    By {
        handle,
        intake: Intake::Inline(LEN_MAX),
    }
}

#[test]
fn the_io_thread_calls_the_handler_once_the_body_is_complete() {
    let (_server, addr) = serve(by(tell), |builder| builder.io_threads(1));
    let mut client = Reader::new(connect(addr));
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
                   2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
    for message in [post("/", "abc"), chunked.to_owned()] {
        for end in [message.len(), message.len() / 2, message.len() - 1] {
            client.send(&message[..end]);
            client.send(&message[end..]);
            let answer = client.next(false).unwrap();
            assert_eq!(String::from_utf8_lossy(&answer.body), "io-0 abc");
        }
    }
    // A worker handles a request without a body: on the I/O thread, only `Service::inline` could
    // answer it.
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = client.next(false).unwrap();
    assert!(answer.body.starts_with(b"worker"), "{answer:?}");
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    const COUNT: usize = 300;
    let (_server, addr) = serve(by(tell), |builder| builder.io_threads(1));
    let mut client = Reader::new(connect(addr));
    let messages: String = (0..COUNT).map(|it| post("/", &it.to_string())).collect();
    client.send(messages);
    for number in 0..COUNT {
        let answer = client.next(false).unwrap();
        let expected = format!("io-0 {number}");
        assert_eq!(String::from_utf8_lossy(&answer.body), expected);
    }
}

#[test]
fn an_inline_handler_can_defer_its_response() {
    const COUNT: usize = 500;
    let (service, promised) = promising(Intake::Inline(LEN_MAX));
    let (_server, addr) = serve(service, |builder| builder.io_threads(1));
    let answering = std::thread::spawn(move || {
        for responder in promised.iter().take(4 * COUNT) {
            responder.respond(Response::text(Status::OK, "here"));
        }
    });
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = Reader::new(connect(addr));
                for _ in 0..COUNT {
                    client.send(post("/", "a"));
                    assert_eq!(client.next(false).unwrap().body, b"here");
                }
            });
        }
    });
    answering.join().unwrap();
}

#[test]
fn a_panic_in_an_inline_handler_causes_one_500() {
    let handle = |request: &mut Request| match request.body() {
        b"panic" => panic!("on purpose"),
        _ => tell(request),
    };
    let (server, addr) = serve(by(handle), |builder| builder.io_threads(1));
    let mut client = Reader::new(connect(addr));
    for _ in 0..3 {
        client.send(post("/", "panic"));
        assert_eq!(client.next(false).unwrap().status, 500);
        client.send(post("/", "a"));
        assert_eq!(client.next(false).unwrap().status, 200);
    }
    drop(client);
    eventually("it is gone", || server.load().connection_count == 0);
}

#[test]
fn an_inline_body_above_the_limit_gets_413() {
    let (_server, addr) = serve(by(tell), |builder| builder);
    for (len, status) in [(LEN_MAX, 200), (LEN_MAX + 1, 413)] {
        let mut client = Reader::new(connect(addr));
        let body = "x".repeat(usize::try_from(len).unwrap());
        client.send(post("/", &body));
        assert_eq!(client.next(false).unwrap().status, status, "{len}");
    }
}

#[test]
fn a_slow_reader_gets_all_of_a_large_answer() {
    const LEN: usize = 4 << 20;
    let large = |_: &mut Request| Response::new(Status::OK, vec![b'x'; LEN]);
    let (_server, addr) = serve(by(large), |builder| builder.io_threads(1));
    let mut slow = Reader::new(connect(addr));
    slow.send(post("/", "a"));
    // Meanwhile the server serves other connections.
    let mut other = Reader::new(connect(addr));
    other.send(post("/", "a"));
    assert_eq!(other.next(false).unwrap().body.len(), LEN);
    assert_eq!(slow.next(false).unwrap().body.len(), LEN);
}

#[test]
fn a_drain_waits_for_deferred_responses_of_inline_handlers() {
    let (service, promised) = promising(Intake::Inline(LEN_MAX));
    let (server, addr) = serve(service, |builder| builder.io_threads(1));
    let mut client = Reader::new(connect(addr));
    client.send(post("/", "a"));
    let responder = promised.recv().unwrap();
    let ending = std::thread::spawn(move || server.drain(Duration::from_secs(10)));
    responder.respond(Response::text(Status::OK, "here"));
    assert_eq!(client.next(false).unwrap().body, b"here");
    client.expect_end();
    ending.join().unwrap();
}

#[test]
fn middleware_applies_to_routes_with_inline_bodies() {
    let route = Route::post("/here", tell).inline_body(LEN_MAX);
    let router = Router::new()
        .route(route)
        .wrap(|request, next| next.run(request).header("X-Seen", "yes"));
    let (_server, addr) = serve(router, |builder| builder.io_threads(1));
    let mut client = Reader::new(connect(addr));
    client.send(post("/here", "a"));
    let answer = client.next(false).unwrap();
    assert_eq!(answer.header("x-seen"), Some("yes"));
    assert_eq!(answer.body, b"io-0 a");
}
