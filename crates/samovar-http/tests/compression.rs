//! A compressed response decodes to the handler's bytes, and only clients that accept a coding get
//! one.

#![cfg(feature = "compression")]
#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it only inside functions marked as tests"
)]

mod support;

use std::io::{Cursor, Read, Write};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Mutex, mpsc};

use samovar_http::http::Status;
use samovar_http::{
    Batch, Body, Progress, Request, Response, Route, Router, Sender, Server, Service, Source,
};

use support::{Answer, Reader, connect, eventually, serve};

/// Serves text in every kind of body.
struct Texts {
    events: Mutex<Option<Sender>>,
}

impl Service for Texts {
    type Local = ();

    fn local(&self) {}

    fn handle(&self, request: &mut Request) -> Response {
        let path = String::from_utf8(request.head().path().to_vec()).unwrap();
        let html = |body| Response::new(Status::OK, body).header("Content-Type", "text/html");
        match path.as_str() {
            "/short" => html(Body::Bytes(text(20_000).into())).header("ETag", "\"v1\""),
            "/long" => html(Body::Bytes(text(3_000_000).into())),
            "/file" => {
                let mut file = tempfile::tempfile().unwrap();
                file.write_all(&text(3_000_000)).unwrap();
                html(Body::file(file).unwrap())
            }
            "/secret" => html(Body::Bytes(text(20_000).into())).uncompressed(),
            "/truncated" => {
                let short = Cursor::new(text(300_000));
                html(Body::reader_of_len(short, 300_001))
            }
            "/broken" => html(Body::Source(Box::new(Broken(0)))),
            "/reader" => Response::new(Status::OK, Body::reader(Cursor::new(text(500_000))))
                .header("Content-Type", "application/json"),
            "/events" => {
                let (sender, body) = Body::channel();
                *self.events.lock().unwrap() = Some(sender);
                Response::new(Status::OK, body).header("Content-Type", "text/event-stream")
            }
            "/later" => {
                let (responder, response) = Response::later();
                responder.respond(html(Body::Bytes(text(20_000).into())));
                response
            }
            _ => Response::text(Status::NOT_FOUND, "no\n"),
        }
    }
}

/// A source that fails after a megabyte.
struct Broken(u32);

impl Source for Broken {
    fn len(&self) -> Option<u64> {
        None
    }

    fn pull(&mut self, batch: &mut Batch) -> std::io::Result<Progress> {
        self.0 += 1;
        if self.0 > 100 {
            return Err(std::io::Error::other("disk on fire"));
        }
        batch.put(&text(10_000));
        Ok(Progress::More)
    }
}

/// Generates words that compress about as well as HTML.
fn text(len: usize) -> Vec<u8> {
    let mut seed = 7_u32;
    let mut text = Vec::with_capacity(len + 16);
    while text.len() < len {
        seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        write!(text, "<li>{} ", seed >> 20).unwrap();
    }
    text.truncate(len);
    text
}

fn start() -> (Server<Texts>, SocketAddr) {
    let texts = Texts {
        events: Mutex::default(),
    };
    serve(texts, |builder| builder.compression())
}

fn ask(addr: SocketAddr, method: &str, path: &str, accepts: &str) -> Answer {
    let mut reader = Reader::new(connect(addr));
    reader.send(format!(
        "{method} {path} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {accepts}\r\n\r\n"
    ));
    let answer = reader.next(method == "HEAD").unwrap();
    assert_eq!(answer.status, 200);
    answer
}

fn decode(coding: &str, bytes: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::new();
    let result = match coding {
        "gzip" => flate2::read::GzDecoder::new(bytes).read_to_end(&mut decoded),
        "br" => brotli::Decompressor::new(bytes, 4096).read_to_end(&mut decoded),
        _ => zstd::Decoder::new(bytes).unwrap().read_to_end(&mut decoded),
    };
    result.unwrap();
    decoded
}

#[test]
fn a_compressed_body_decodes_to_the_bytes_of_the_handler() {
    let (_server, addr) = start();
    for coding in ["gzip", "br", "zstd"] {
        for (path, len) in [
            ("/short", 20_000),
            ("/long", 3_000_000),
            ("/file", 3_000_000),
            ("/reader", 500_000),
            ("/later", 20_000),
        ] {
            let answer = ask(addr, "GET", path, coding);
            assert_eq!(answer.header("Content-Encoding"), Some(coding), "{path}");
            assert_eq!(answer.header("Vary"), Some("Accept-Encoding"));
            assert!(answer.body.len() < len / 2, "{path}: {}", answer.body.len());
            assert!(decode(coding, &answer.body) == text(len), "{coding} {path}");
        }
    }
}

#[test]
fn clients_without_accept_encoding_get_plain_bytes() {
    let (_server, addr) = start();
    for path in ["/short", "/long", "/file"] {
        let answer = ask(addr, "GET", path, "identity");
        assert_eq!(answer.header("Content-Encoding"), None);
        assert_eq!(answer.header("Vary"), Some("Accept-Encoding"));
        assert!(answer.body == text(answer.body.len()));
    }
    let answer = ask(addr, "GET", "/secret", "gzip");
    assert_eq!(answer.header("Content-Encoding"), None);
    assert_eq!(answer.header("Vary"), None);
}

#[test]
fn a_server_without_compression_never_compresses() {
    let texts = Texts {
        events: Mutex::default(),
    };
    let (_server, addr) = serve(texts, |builder| builder);
    let answer = ask(addr, "GET", "/short", "gzip");
    assert_eq!(answer.header("Content-Encoding"), None);
    assert_eq!(answer.header("Vary"), None);
}

/// Returns the `Content-Encoding` of a response for a client that accepts all codings.
fn coding_of(addr: SocketAddr, path: &str) -> Option<String> {
    let answer = ask(addr, "GET", path, "gzip, br, zstd");
    answer.header("Content-Encoding").map(str::to_owned)
}

#[test]
fn a_router_compresses_texts_unless_it_is_told_not_to() {
    let page = |_: &mut Request| Response::html(Status::OK, "samovar ".repeat(200));
    let deferred = move |request: &mut Request| {
        let (responder, response) = Response::later();
        responder.respond(page(request));
        response
    };
    let router = || {
        Router::new()
            .get("/", page)
            .get("/short", |_| Response::html(Status::OK, "x".repeat(859)))
            .get("/deferred", deferred)
            .get("/secret", move |request: &mut Request| {
                page(request).uncompressed()
            })
            .route(Route::get("/route", page).uncompressed())
            .route(Route::get("/route/deferred", deferred).uncompressed())
            .route(
                Route::get("/wrapped", page)
                    .uncompressed()
                    .wrap(move |request, _| page(request)),
            )
            .mount("/private", Router::new().get("/", page).compression(false))
            .mount("/public", Router::new().get("/", page))
            .get("/events", |_| {
                let (sender, body) = Body::channel();
                sender.send(": welcome\n\n").unwrap();
                sender.finish();
                Response::new(Status::OK, body).header("Content-Type", "text/event-stream")
            })
    };
    let (_server, addr) = serve(router(), |builder| builder);
    for path in ["/", "/deferred", "/public"] {
        assert_eq!(coding_of(addr, path).as_deref(), Some("zstd"), "{path}");
    }
    for path in [
        "/short",
        "/secret",
        "/route",
        "/route/deferred",
        "/wrapped",
        "/private",
        "/events",
    ] {
        let answer = ask(addr, "GET", path, "gzip, br, zstd");
        assert_eq!(answer.header("Content-Encoding"), None, "{path}");
        assert_eq!(answer.header("Vary"), None, "{path}");
    }
    // As Mummy's clients get it.
    let answer = ask(addr, "GET", "/", "gzip");
    assert_eq!(answer.header("Content-Encoding"), Some("gzip"));
    assert_eq!(
        decode("gzip", &answer.body),
        "samovar ".repeat(200).as_bytes()
    );
    // The page for an error of an excluded route may quote the same texts.
    let broken = |_: &mut Request| -> Response { panic!("as asked") };
    let router_of_errors = Router::new()
        .route(Route::get("/excluded", broken).uncompressed())
        .get("/other", broken)
        .on_error(|_, error| Response::html(error.status(), "samovar ".repeat(200)));
    let (_server, errors) = serve(router_of_errors, |builder| builder);
    for (path, coding) in [("/excluded", None), ("/other", Some("zstd"))] {
        let mut reader = Reader::new(connect(errors));
        reader.send(format!(
            "GET {path} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: zstd\r\n\r\n"
        ));
        let answer = reader.next(false).unwrap();
        assert_eq!(answer.header("Content-Encoding"), coding, "{path}");
    }
    let (_server, addr) = serve(router().compression(false), |builder| builder);
    assert_eq!(coding_of(addr, "/"), None);
    let (_server, addr) = serve(router(), |builder| builder.compression());
    assert_eq!(coding_of(addr, "/events").as_deref(), Some("zstd"));
}

/// An I/O thread serves many connections, so it spends no time on compression.
#[test]
fn a_handler_on_the_io_thread_responds_plainly_and_without_a_worker() {
    let long = || Response::html(Status::OK, "samovar ".repeat(200));
    let (hold, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let router = Router::new()
        .route(Route::post("/long", move |_| long()).inline_body(100))
        .route(
            Route::post("/short", |_| {
                let (responder, response) = Response::later();
                responder.respond(Response::html(Status::OK, "short"));
                response
            })
            .inline_body(100),
        )
        .route(
            Route::post("/deferred", move |_| {
                let (responder, response) = Response::later();
                responder.respond(long());
                response
            })
            .inline_body(100),
        )
        .get("/hold", move |_| {
            assert!(held.lock().unwrap().recv().is_err());
            "released"
        });
    let (server, addr) = serve(router, |builder| builder.io_threads(1).workers(1));
    let post = |path| {
        let mut reader = Reader::new(connect(addr));
        reader.send(format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx"
        ));
        reader.next(false).unwrap()
    };
    assert_eq!(post("/deferred").header("Content-Encoding"), Some("gzip"));
    let mut holding = Reader::new(connect(addr));
    holding.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually("the only worker is busy", || {
        server.load().running_count == 1
    });
    assert_eq!(post("/long").header("Content-Encoding"), None);
    assert_eq!(post("/short").text(), "short");
    drop(hold);
    assert_eq!(holding.next(false).unwrap().text(), "released");
}

/// RFC 9110, 13.1.5: a weak tag never matches `If-Range`, so a client that has a compressed body
/// cannot complete it with plain bytes.
#[test]
fn ranges_are_of_plain_bytes_and_tags_of_compressed_bodies_are_weak() {
    let router = Router::new().get("/", |request: &mut Request| {
        let whole = Response::html(Status::OK, "samovar ".repeat(200))
            .header("ETag", "\"v1\"")
            .header("Accept-Ranges", "bytes");
        let tag = request.head().header_text("If-None-Match");
        match request.head().header("Range") {
            _ if tag.is_some_and(|tag| tag.trim_start_matches("W/") == "\"v1\"") => {
                Response::new(Status::NOT_MODIFIED, Body::Empty).header("ETag", "\"v1\"")
            }
            None => whole,
            Some(_) => Response::html(Status::PARTIAL_CONTENT, "amovar s".repeat(199))
                .header("ETag", "\"v1\"")
                .header("Content-Range", "bytes 1-1592/1600"),
        }
    });
    let (_server, addr) = serve(router, |builder| builder);
    let get = |fields: &str| {
        let mut reader = Reader::new(connect(addr));
        reader.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
        reader.next(false).unwrap()
    };
    let plain = get("");
    assert_eq!(plain.header("ETag"), Some("\"v1\""));
    assert_eq!(plain.header("Accept-Ranges"), Some("bytes"));
    let coded = get("Accept-Encoding: gzip\r\n");
    assert_eq!(coded.header("ETag"), Some("W/\"v1\""));
    assert_eq!(coded.header("Accept-Ranges"), None);
    let part = get("Accept-Encoding: gzip\r\nRange: bytes=1-1592\r\n");
    assert_eq!((part.status, part.header("Content-Encoding")), (206, None));
    assert_eq!(part.header("ETag"), Some("\"v1\""));
    let fresh = get("Accept-Encoding: gzip\r\nIf-None-Match: W/\"v1\"\r\n");
    assert_eq!(
        (fresh.status, fresh.header("ETag")),
        (304, Some("W/\"v1\""))
    );
}

/// RFC 9110, 9.3.2: the response to HEAD has the same fields as that to GET.
#[test]
fn head_has_the_fields_of_get() {
    let (_server, addr) = start();
    for path in ["/short", "/long"] {
        let without_date = |answer: Answer| {
            let lines = answer.head.lines().map(str::to_owned);
            lines
                .filter(|line| !line.starts_with("Date"))
                .collect::<Vec<_>>()
        };
        let get = without_date(ask(addr, "GET", path, "br"));
        let head = without_date(ask(addr, "HEAD", path, "br"));
        assert_eq!(get, head);
        assert!(get.contains(&"Content-Encoding: br".to_owned()));
    }
}

#[test]
fn a_compressed_body_that_fails_or_is_too_short_has_no_last_chunk() {
    let (_server, addr) = start();
    let codings = ["gzip", "br", "zstd"];
    for (coding, path) in codings
        .map(|coding| [(coding, "/broken"), (coding, "/truncated")])
        .concat()
    {
        let mut stream = connect(addr);
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {coding}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut received = Vec::new();
        drop(stream.read_to_end(&mut received));
        assert!(!received.ends_with(b"0\r\n\r\n"), "{coding} {path}");
    }
}

#[test]
fn compressed_events_arrive_without_delay() {
    let (server, addr) = start();
    for coding in ["gzip", "br", "zstd"] {
        let mut stream = connect(addr);
        let request =
            format!("GET /events HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {coding}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut events = None;
        let mut wire = Vec::new();
        let mut piece = [0; 4096];
        while !wire.windows(4).any(|end| end == b"\r\n\r\n") {
            let len = stream.read(&mut piece).unwrap();
            wire.extend_from_slice(&piece[..len]);
            events = events.or_else(|| server.service().events.lock().unwrap().take());
        }
        let events = events
            .or_else(|| server.service().events.lock().unwrap().take())
            .unwrap();
        let mut expected = String::new();
        for at in 0..20 {
            let event = format!("data: event {at}\n\n");
            expected.push_str(&event);
            events.send(event).unwrap();
            // Each event must arrive completely before the next is produced; otherwise this loop
            // times out.
            while decoded_so_far(coding, &wire) != expected.as_bytes() {
                let len = stream.read(&mut piece).unwrap();
                assert_ne!(len, 0);
                wire.extend_from_slice(&piece[..len]);
            }
        }
        events.finish();
        while !wire.ends_with(b"0\r\n\r\n") {
            let len = stream.read(&mut piece).unwrap();
            assert_ne!(len, 0);
            wire.extend_from_slice(&piece[..len]);
        }
    }
}

/// Removes the chunked framing, and decodes as far as possible.
fn decoded_so_far(coding: &str, wire: &[u8]) -> Vec<u8> {
    let start = wire.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
    let mut rest = &wire[start..];
    let mut coded = Vec::new();
    while let Some(end) = rest.windows(2).position(|end| end == b"\r\n") {
        let len = std::str::from_utf8(&rest[..end]).unwrap();
        let len = usize::from_str_radix(len, 16).unwrap();
        let Some(data) = rest.get(end + 2..end + 2 + len) else {
            break;
        };
        coded.extend_from_slice(data);
        rest = rest.get(end + 2 + len + 2..).unwrap_or_default();
    }
    let mut decoder: Box<dyn Read> = match coding {
        "gzip" => Box::new(flate2::read::GzDecoder::new(coded.as_slice())),
        "br" => Box::new(brotli::Decompressor::new(coded.as_slice(), 4096)),
        _ => Box::new(zstd::Decoder::new(coded.as_slice()).unwrap()),
    };
    let mut decoded = Vec::new();
    let mut byte = [0];
    // The stream is incomplete, so an error at its end is expected.
    while let Ok(1) = decoder.read(&mut byte) {
        decoded.push(byte[0]);
    }
    decoded
}

#[test]
fn curl_decodes_compressed_bodies() {
    let (_server, addr) = start();
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        for path in ["short", "long", "reader", "file", "later"] {
            let output = Command::new("curl")
                .args([
                    "-sS",
                    version,
                    "--compressed",
                    "-w",
                    "%{stderr}%{size_download}",
                ])
                .arg(format!("http://{addr}/{path}"))
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{version} {path}: {said}");
            let len = output.stdout.len();
            assert!(output.stdout == text(len), "{version} {path}");
            assert!(len >= 20_000);
            let sent_len: usize = said.parse().unwrap();
            assert!(sent_len < len / 2, "{version} {path}: {sent_len}");
        }
    }
}
