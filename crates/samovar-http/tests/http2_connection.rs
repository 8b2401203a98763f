//! HTTP/2 connections start, end and refuse requests as RFC 9113 requires.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use h2::Reason;
use samovar_http::Limits;
use support::h2::{self as wire, Client, Raw, frame, get};
use support::h2_app::{App, start, start_default, wait_until};
use support::serve;

#[test]
fn the_preface_in_any_pieces() {
    let (_server, addr) = start_default();
    for cut in 1..wire::PREFACE.len() {
        let mut raw = Raw::new(addr);
        raw.stream.set_nodelay(true).unwrap();
        raw.send(&wire::PREFACE[..cut]);
        // Gives the server time to receive the first part separately.
        std::thread::sleep(Duration::from_millis(2));
        raw.send(&wire::PREFACE[cut..]);
        raw.send(&frame(wire::SETTINGS, 0, 0, b""));
        let request = [wire::GET, b""].concat();
        raw.send(&frame(wire::HEADERS, 5, 1, &request));
        let head = raw.until(|frame| frame.kind == wire::HEADERS);
        assert_eq!(head.unwrap().stream, 1, "cut at {cut}");
    }
}

#[test]
fn a_preface_after_a_request_gets_505() {
    let (_server, addr) = start_default();
    let mut reader = support::Reader::new(support::connect(addr));
    reader.send("GET /inline HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(reader.next(false).unwrap().status, 200);
    reader.send(wire::PREFACE);
    assert_eq!(reader.next(false).unwrap().status, 505);
    reader.expect_end();
}

#[test]
fn requests_that_are_refused() {
    let (_server, addr) = start_default();
    let mut client = Client::connect(addr);
    let mut connect = get("/");
    *connect.method_mut() = http::Method::CONNECT;
    *connect.uri_mut() = "a.example:443".parse().unwrap();
    assert_eq!(client.ask(connect).status(), 501);
    assert_eq!(
        client.ask(get(&format!("/{}", "a".repeat(9000)))).status(),
        414
    );
    let mut host = get("/");
    host.headers_mut()
        .insert("host", "b.example".parse().unwrap());
    assert_eq!(client.ask(host).status(), 400);
    assert_eq!(client.ask(get("/inline")).status(), 200);
}

#[test]
fn malformed_requests_reach_no_handler() {
    let (_server, addr) = start_default();
    let fields = [
        wire::literal("connection", "close"),
        wire::literal("transfer-encoding", "chunked"),
        wire::literal("upgrade", "x"),
        wire::literal("X-Upper", "a"),
        wire::literal("x", "a\r\nb"),
        wire::literal("x", "a\0b"),
        wire::literal("x", " a"),
        wire::literal("te", "gzip"),
        wire::literal("content-length", "1"),
        wire::literal(":path", "/"),
        wire::literal("x y", "a"),
        wire::literal("", "a"),
    ];
    for field in fields {
        let mut raw = Raw::connect(addr);
        let block = [wire::GET, &field[..]].concat();
        raw.send(&frame(wire::HEADERS, 5, 1, &block));
        // RFC 9113, 8.1.1 requires a stream error; 5.4.2 also allows a connection error.
        let mut is_error = |frame: &wire::Frame| {
            assert_ne!(frame.kind, wire::HEADERS, "{}", field.escape_ascii());
            matches!(frame.kind, wire::RST_STREAM | wire::GOAWAY)
        };
        let answer = raw.until(&mut is_error).unwrap();
        let code = &answer.payload[answer.payload.len() - 4..];
        assert_eq!(code, 1_u32.to_be_bytes(), "PROTOCOL_ERROR");
    }
}

#[test]
fn content_length_is_held_to() {
    let (_server, addr) = start_default();
    let mut raw = Raw::connect(addr);
    let path = [
        b"\x83\x86\x41\x01a".to_vec(),
        wire::literal(":path", "/echo"),
    ]
    .concat();
    // `:authority` may be anywhere among the pseudo-header fields, which precede all other fields.
    let block = [path, wire::literal("content-length", "5")].concat();
    for (stream, data) in [(1, &b"1234"[..]), (3, b"123456")] {
        raw.send(&frame(wire::HEADERS, 4, stream, &block));
        raw.send(&frame(wire::DATA, 1, stream, data));
        let answer = raw.until(|frame| frame.stream == stream).unwrap();
        assert_eq!(answer.kind, wire::RST_STREAM);
        assert_eq!(answer.payload, 1_u32.to_be_bytes());
    }
}

#[test]
fn a_drain_finishes_what_is_under_way() {
    let (server, addr) = start_default();
    let mut client = Client::connect(addr);
    let (future, _) = client.start(get("/gated"), true);
    let mut idle = Client::connect(addr);
    assert_eq!(idle.ask(get("/inline")).status(), 200);
    client.drive_for(Duration::ZERO, |_| std::task::Poll::<()>::Pending);
    wait_until("it has started", || {
        server.service().started.load(Ordering::SeqCst) == 1
    });
    let server = Arc::new(server);
    let drain = {
        let server = Arc::clone(&server);
        std::thread::spawn(move || server.drain(Duration::from_secs(20)))
    };
    assert!(idle.wait_for_end().is_ok(), "GOAWAY without an error");
    server.service().gate.open();
    assert_eq!(client.whole(future).unwrap().text(), "late");
    assert!(client.wait_for_end().is_ok());
    drain.join().unwrap();
}

/// A client whose first stream is refused may not retry on another connection, so a drain serves
/// it.
#[test]
fn a_drain_leaves_new_connections_time_to_send_a_request() {
    let (server, addr) = serve(App::new(), |builder| builder.io_threads(1));
    let mut fresh = Raw::connect(addr);
    let mut idle = Client::connect(addr);
    assert_eq!(idle.ask(get("/inline")).status(), 200);
    let drain = std::thread::spawn(move || server.drain(Duration::from_secs(20)));
    assert!(idle.wait_for_end().is_ok());
    let request = [wire::GET, b""].concat();
    fresh.send(&frame(wire::HEADERS, 5, 1, &request));
    let first = fresh.until(|frame| matches!(frame.kind, wire::HEADERS | wire::GOAWAY));
    assert_eq!(first.unwrap().kind, wire::HEADERS);
    assert_eq!(fresh.goaway_code(), 0);
    drop(fresh);
    drain.join().unwrap();
}

#[test]
fn a_connection_closes_after_its_maximum_number_of_requests() {
    let limits = Limits {
        requests_per_connection_max: 3,
        ..Limits::default()
    };
    let (_server, addr) = start(limits);
    let mut client = Client::connect(addr);
    for _ in 0..3 {
        assert_eq!(client.ask(get("/inline")).status(), 200);
    }
    assert!(client.wait_for_end().is_ok());
}

#[test]
fn an_idle_connection_is_closed() {
    let limits = Limits {
        idle_time: Duration::from_secs(2),
        linger_time: Duration::from_millis(500),
        ..Limits::default()
    };
    let (server, addr) = start(limits);
    let mut client = Client::connect(addr);
    assert_eq!(client.ask(get("/inline")).status(), 200);
    assert!(client.wait_for_end().is_ok());
    // The connection of a client that ignores GOAWAY is also closed.
    let mut raw = Raw::connect(addr);
    assert_eq!(raw.goaway_code(), 0);
    assert!(raw.until(|_| false).is_none());
    drop((raw, client));
    wait_until("no connection is left", || server.connection_count() == 0);
}

#[test]
fn a_client_that_has_shut_down_its_sending_side_gets_its_response() {
    let (server, addr) = start_default();
    let mut raw = Raw::connect(addr);
    let block = [
        b"\x82\x86\x41\x01a".to_vec(),
        wire::literal(":path", "/gated"),
    ]
    .concat();
    raw.send(&frame(wire::HEADERS, 5, 1, &block));
    raw.stream.shutdown(std::net::Shutdown::Write).unwrap();
    wait_until("it has started", || {
        server.service().started.load(Ordering::SeqCst) == 1
    });
    server.service().gate.open();
    let data = raw.until(|frame| frame.kind == wire::DATA).unwrap();
    assert_eq!(data.payload, b"late");
    assert!(raw.until(|_| false).is_none());
}

#[test]
fn each_exchange_is_reported_to_the_observer() {
    let (server, addr) = start_default();
    let mut client = Client::connect(addr);
    client.ask(get("/inline"));
    client.ask(get("/pattern/100000"));
    let (mut future, mut send) = client.start(get("/pattern/50000000"), true);
    let body = client.head(&mut future).unwrap().into_body();
    drop(body);
    send.send_reset(Reason::CANCEL);
    client.ask(get("/missing"));
    let reports = || server.service().reports.lock().unwrap().clone();
    wait_until("all exchanges are reported", || reports().len() == 4);
    let reports = reports();
    assert!(
        reports.contains(&"GET /inline 200 5 true".to_owned()),
        "{reports:?}"
    );
    assert!(
        reports.contains(&"GET /pattern/100000 200 100000 true".to_owned()),
        "{reports:?}"
    );
    let cut = reports.iter().find(|line| line.ends_with("false")).unwrap();
    assert!(cut.starts_with("GET /pattern/50000000 200 "), "{reports:?}");
}
