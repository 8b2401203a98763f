#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
//! A request that a handler sends back is handled as if no handler had had it.

mod support;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr};

use bytes::Bytes;
use samovar_http::http::Status;
use samovar_http::{
    Head, Inline, Intake, Prepared, Reply, Request, Response, Server, Service, Turn,
};
use support::{connect, h2, serve};

/// Sends requests below `/back` back, and no others. Answers both as the rest of the path says.
struct Twice;

/// Returns the part of the path that says how a request is answered, and whether it is sent back
/// first.
fn parts<'a>(head: &Head<'a>) -> (&'a [u8], bool) {
    match head.path().strip_prefix(b"/back") {
        Some(rest) => (rest, !head.was_sent_back()),
        None => (head.path().strip_prefix(b"/once").unwrap(), false),
    }
}

impl Service for Twice {
    type Local = ();

    fn local(&self) {}

    fn inline(&self, (): &mut (), _: Turn, head: Head<'_>, reply: Reply<'_>) -> Inline {
        match parts(&head) {
            (b"/inline", false) => reply.prepared(&Prepared::new(Status::OK, &[], b"inline")),
            _ => reply.dispatch(),
        }
    }

    fn intake(&self, head: Head<'_>) -> Intake {
        match parts(&head) {
            (_, true) => Intake::Streamed(u64::MAX),
            (b"/streamed", _) => Intake::Streamed(100_000),
            (b"/short", _) => Intake::Buffered(2),
            _ => Intake::Buffered(100_000),
        }
    }

    fn handle(&self, request: &mut Request) -> Response {
        if parts(&request.head()).1 || request.head().path() == b"/back/always" {
            return Response::send_back();
        }
        let mut body = Vec::new();
        match request.reader().read_to_end(&mut body) {
            Ok(_) => Response::new(Status::OK, body),
            Err(error) => Response::text(Status::BAD_REQUEST, error.to_string()),
        }
    }
}

fn server() -> (Server<Twice>, SocketAddr) {
    serve(Twice, |builder| builder.workers(2))
}

/// Sends the parts of the input one after the other, each after the first once the server has sent
/// something. Returns all that it sends, without dates.
fn sent(addr: SocketAddr, parts: &[&str]) -> String {
    let mut stream = connect(addr);
    let mut received = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        if number > 0 {
            let mut piece = [0; 4096];
            let len = stream.read(&mut piece).unwrap();
            received.extend_from_slice(&piece[..len]);
        }
        // The server may have closed the connection after its response.
        drop(stream.write_all(part.as_bytes()));
    }
    drop(stream.shutdown(Shutdown::Write));
    drop(stream.read_to_end(&mut received));
    let text = String::from_utf8(received).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with("Date: "));
    lines.collect::<Vec<_>>().join("\n")
}

/// Compares what is sent for a request that is sent back and for one that is not.
#[track_caller]
fn check(addr: SocketAddr, parts: &[&str]) -> String {
    let back: Vec<String> = parts
        .iter()
        .map(|part| part.replace("/X/", "/back/"))
        .collect();
    let once: Vec<String> = parts
        .iter()
        .map(|part| part.replace("/X/", "/once/"))
        .collect();
    let of = |parts: &[String]| sent(addr, &parts.iter().map(|part| &**part).collect::<Vec<_>>());
    let (back, once) = (of(&back), of(&once));
    assert_eq!(back, once, "{parts:?}");
    once
}

#[test]
fn over_http1() {
    let (_server, addr) = server();
    let next = "GET /once/inline HTTP/1.1\r\nHost: a\r\n\r\n";
    for way in ["inline", "buffered", "streamed", "short"] {
        for method in ["GET", "HEAD", "POST"] {
            let head = format!("{method} /X/{way} HTTP/1.1\r\nHost: a\r\n");
            check(addr, &[&format!("{head}\r\n{next}")]);
            check(
                addr,
                &[&format!("{head}Content-Length: 5\r\n\r\nhello{next}")],
            );
            let chunked = "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
            check(addr, &[&format!("{head}{chunked}{next}")]);
            check(
                addr,
                &[&format!("{head}Content-Length: 200000\r\n\r\nhello")],
            );
            // The body never arrives completely.
            check(addr, &[&format!("{head}Content-Length: 6\r\n\r\nhello")]);
            // The body follows the first bytes from the server.
            let expects = format!("{head}Expect: 100-continue\r\nContent-Length: 5\r\n\r\n");
            let text = check(addr, &[&expects, &format!("hello{next}")]);
            let is_asked = ["buffered", "streamed"].contains(&way);
            assert_eq!(text.starts_with("HTTP/1.1 100"), is_asked, "{text}");
        }
    }
    let text = sent(addr, &["GET /back/always HTTP/1.1\r\nHost: a\r\n\r\n"]);
    assert!(text.starts_with("HTTP/1.1 500"), "{text}");
}

#[test]
fn over_http2() {
    let (_server, addr) = server();
    for way in ["inline", "buffered", "streamed", "short"] {
        for len in [None, Some(0), Some(5), Some(90_000)] {
            // A body that is too long may be refused before it is sent.
            if way == "short" && len == Some(90_000) {
                continue;
            }
            let answer = |first: &str| {
                let mut client = h2::Client::connect(addr);
                let request = h2::post(&format!("/{first}/{way}"));
                let (mut future, mut send) = client.start(request, len.is_none());
                match len {
                    None => {}
                    // The response may come, and end the stream, before the body is sent.
                    Some(_) if way == "inline" => {}
                    Some(0) => send.send_data(Bytes::new(), true).unwrap(),
                    Some(len) => client.write(&mut send, Bytes::from(vec![b'x'; len]), true),
                }
                let head = client.head(&mut future).unwrap();
                let (mut head, mut stream) = head.into_parts();
                head.headers.remove("date");
                let mut body = Vec::new();
                while let Some(bytes) = client.data(&mut stream) {
                    body.extend(bytes.unwrap());
                }
                (head.status, format!("{:?}", head.headers), body)
            };
            assert_eq!(answer("back"), answer("once"), "{way} {len:?}");
        }
        // What the server sends before the body and for it.
        for fields in [vec![], h2::literal("expect", "100-continue")] {
            let frames = |first: &str| {
                let path = h2::literal(":path", &format!("/{first}/{way}"));
                let block = [b"\x83\x86\x41\x01a", &*path, &*fields].concat();
                let mut raw = h2::Raw::connect(addr);
                raw.send(&h2::frame(h2::HEADERS, 4, 1, &block));
                let mut frames = Vec::new();
                let mut is_sent = false;
                if fields.is_empty() {
                    raw.send(&h2::frame(h2::DATA, 1, 1, b"hello"));
                    is_sent = true;
                }
                while let Some(frame) = raw.next_frame() {
                    if frame.stream == 0 {
                        continue;
                    }
                    let is_end = frame.kind == h2::RST_STREAM || frame.flags & 1 == 1;
                    frames.push((frame.kind, frame.flags));
                    if is_end {
                        break;
                    }
                    if !is_sent {
                        raw.send(&h2::frame(h2::DATA, 1, 1, b"hello"));
                        is_sent = true;
                    }
                }
                frames
            };
            assert_eq!(frames("back"), frames("once"), "{way} {fields:?}");
        }
    }
}
