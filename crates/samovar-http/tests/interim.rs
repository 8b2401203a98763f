//! Interim responses (1xx) of a handler reach the client before the final response, while the
//! handler still runs, in the order of the requests. HTTP/1.0 clients get none.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_tls;

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use samovar_http::http::Status;
use samovar_http::{Body, Builder, Intake, Listener, Request, Response, Server};
use support::{By, Reader, connect, h2, serve};

const LINK: (&str, &str) = ("Link", "</style.css>; rel=preload; as=style");

type Handle = fn(&mut Request) -> Response;

fn start(handle: Handle, intake: Intake) -> (Server<By<Handle>>, SocketAddr) {
    serve(By { handle, intake }, |builder| builder.io_threads(1))
}

/// Sends hints, then responds with the path.
fn hint(request: &mut Request) -> Response {
    request.inform(Status::EARLY_HINTS, &[LINK]).unwrap();
    request.inform(Status::PROCESSING, &[]).unwrap();
    let path = String::from_utf8(request.head().path().to_vec()).unwrap();
    Response::text(Status::OK, path)
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

#[track_caller]
fn expect_hints(client: &mut Reader) {
    let early = client.next(false).unwrap();
    assert_eq!(early.status, 103);
    assert!(
        early.head.starts_with("HTTP/1.1 103 Early Hints\r\n"),
        "{}",
        early.head
    );
    assert_eq!(early.header("link"), Some(LINK.1));
    // RFC 9110, 8.6: "A server MUST NOT send a Content-Length header field in any response with a
    // status code of 1xx (Informational) or 204 (No Content)."
    assert_eq!(early.header("content-length"), None);
    assert_eq!(client.next(false).unwrap().status, 102);
}

#[test]
fn pipelined_requests_get_their_interim_responses_in_order() {
    let (_server, addr) = start(hint, Intake::Buffered(0));
    let mut client = Reader::new(connect(addr));
    client.send(get("/1") + &get("/2") + &get("/3"));
    for path in ["/1", "/2", "/3"] {
        expect_hints(&mut client);
        assert_eq!(client.next(false).unwrap().body, path.as_bytes());
    }
    client.send("HEAD /4 HTTP/1.1\r\nHost: a\r\n\r\n");
    expect_hints(&mut client);
    let head = client.next(true).unwrap();
    assert_eq!(
        (head.status, head.header("content-length")),
        (200, Some("2"))
    );
    client.send(get("/5"));
    expect_hints(&mut client);
    assert_eq!(client.next(false).unwrap().body, b"/5");
}

#[test]
fn a_client_of_http_1_0_gets_no_interim_response() {
    let (_server, addr) = start(hint, Intake::Buffered(0));
    // RFC 9110, 15.2: "Since HTTP/1.0 did not define any 1xx status codes, a server MUST NOT send a
    // 1xx response to an HTTP/1.0 client."
    let mut client = Reader::new(connect(addr));
    client.send("GET /old HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    let answer = client.next(false).unwrap();
    assert_eq!((answer.status, &*answer.body), (200, &b"/old"[..]));
}

#[test]
fn hints_arrive_while_the_handler_still_runs() {
    let (gate_in, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    let handle = move |request: &mut Request| {
        request.inform(Status::EARLY_HINTS, &[LINK]).unwrap();
        gate.lock().unwrap().recv().unwrap();
        Response::text(Status::OK, "final")
    };
    let intake = Intake::Buffered(0);
    let authority = support_tls::Authority::new("interim");
    let config = authority.sign(&["a.test"]).builder().build().unwrap();
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 128).unwrap();
    let tls = |builder: Builder<_>| builder.listen(listener.tls(config));
    let (server, addr) = serve(By { handle, intake }, tls);
    let open = |gate: &Sender<()>| gate.send(()).unwrap();

    let mut client = Reader::new(connect(addr));
    client.send(get("/"));
    assert_eq!(client.next(false).unwrap().status, 103);
    open(&gate_in);
    assert_eq!(client.next(false).unwrap().body, b"final");

    let mut client = h2::Client::connect(addr);
    let (mut future, _) = client.start(h2::get("/"), true);
    let early = client.drive(|context| future.poll_informational(context));
    let early = early.unwrap().unwrap();
    assert_eq!(early.status().as_u16(), 103);
    assert_eq!(early.headers()["link"], LINK.1);
    open(&gate_in);
    assert_eq!(client.whole(future).unwrap().text(), "final");

    let mut client = authority.client().connect(server.local_addrs()[1]).unwrap();
    client.write_all(get("/").as_bytes()).unwrap();
    let mut early = Vec::new();
    while !early.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        early.extend(byte);
    }
    assert!(early.starts_with(b"HTTP/1.1 103 "));
    open(&gate_in);
    let mut rest = [0; 12];
    client.read_exact(&mut rest).unwrap();
    assert_eq!(&rest, b"HTTP/1.1 200");
}

#[test]
fn hints_precede_100_continue_and_responses_that_wait() {
    let handle: Handle = |request| {
        request.inform(Status::EARLY_HINTS, &[LINK]).unwrap();
        let mut body = String::new();
        request.reader().read_to_string(&mut body).unwrap();
        request.inform(Status::PROCESSING, &[]).unwrap();
        let (sender, channel) = Body::channel();
        let (responder, response) = Response::later();
        std::thread::spawn(move || {
            responder.respond(Response::new(Status::OK, channel));
            sender.send(body).unwrap();
            sender.finish();
        });
        response
    };
    let (_server, addr) = start(handle, Intake::Streamed(100));
    let mut client = Reader::new(connect(addr));
    client.send("PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    assert_eq!(client.next(false).unwrap().status, 103);
    assert_eq!(client.next(false).unwrap().status, 100);
    client.send("tea");
    assert_eq!(client.next(false).unwrap().status, 102);
    assert_eq!(client.next(false).unwrap().body, b"tea");
}

#[test]
fn an_inline_handler_can_send_hints() {
    let (_server, addr) = start(hint, Intake::Inline(100));
    let mut client = Reader::new(connect(addr));
    client.send("PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\ntea");
    expect_hints(&mut client);
    assert_eq!(client.next(false).unwrap().body, b"/a");
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let handle: Handle = |request| {
        let mut refused = |status: Status, field: (&str, &str)| {
            let error = request.inform(status, &[field]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{status} {field:?}");
        };
        // Only the engine sends 100 and 101, and others are final.
        for status in [Status::CONTINUE, Status::SWITCHING_PROTOCOLS, Status::OK] {
            refused(status, LINK);
        }
        for field in [
            ("A", "b\r\nC: d"),
            ("A B", "c"),
            ("Content-Length", "5"),
            ("Transfer-Encoding", "chunked"),
            ("Connection", "close"),
        ] {
            refused(Status::EARLY_HINTS, field);
        }
        for status in [99, 100, 101, 200] {
            assert_eq!(Status::interim(status), None);
        }
        let own = Status::interim(199).unwrap();
        request.inform(own, &[]).unwrap();
        // A client need not read what the handler sends, so its length is limited.
        let long = "x".repeat(10_000);
        let sent = |request: &mut Request| request.inform(own, &[("Link", &long)]).is_ok();
        let count = (0..100).filter(|_| sent(request)).count();
        Response::text(Status::OK, count.to_string())
    };
    let (_server, addr) = start(handle, Intake::Buffered(0));
    let mut client = Reader::new(connect(addr));
    client.send(get("/"));
    for _ in 0..7 {
        assert_eq!(client.next(false).unwrap().status, 199);
    }
    assert_eq!(client.next(false).unwrap().body, b"6");
}
