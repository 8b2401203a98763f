//! A client that attacks the server with HTTP/2 frames loses its connection, and other clients are
//! not affected.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use samovar_http::{Limits, Server};
use support::h2::{self as wire, Client, Raw, frame, get, literal};
use support::h2_app::{App, start, start_default, wait_until};

const PROTOCOL_ERROR: u32 = 1;
const FRAME_SIZE_ERROR: u32 = 6;
const COMPRESSION_ERROR: u32 = 9;
const ENHANCE_YOUR_CALM: u32 = 11;

/// Returns a header block that requests a path.
fn request_block(path: &str) -> Vec<u8> {
    [b"\x82\x86\x41\x01a".to_vec(), literal(":path", path)].concat()
}

/// A client on another connection, which the attack must not affect.
struct Bystander(Client);

impl Bystander {
    fn new(addr: SocketAddr) -> Self {
        let mut client = Client::connect(addr);
        assert_eq!(client.ask(get("/inline")).status(), 200);
        Self(client)
    }

    #[track_caller]
    fn expect_undisturbed(mut self, server: &Server<App>) {
        assert_eq!(self.0.ask(get("/inline")).status(), 200);
        assert_eq!(self.0.ask(get("/missing")).status(), 404);
        drop(self);
        wait_until("all is given back", || {
            let load = server.load();
            (load.connection_count, load.queued_count, load.running_count) == (0, 0, 0)
        });
    }
}

/// Sends `bytes` repeatedly until the server closes the connection; fails after `count_max` times.
#[track_caller]
fn flood(bytes: &[u8], count_max: usize, code: u32) {
    let (server, addr) = start_default();
    let bystander = Bystander::new(addr);
    let mut raw = Raw::connect(addr);
    raw.send(&frame(wire::HEADERS, 4, 1, wire::POST));
    let mut count = 0;
    while raw.try_send(bytes) && count < count_max {
        count += 1;
    }
    assert_eq!(raw.goaway_code(), code);
    drop(raw);
    bystander.expect_undisturbed(&server);
    let reports = server.service().reports.lock().unwrap().join("\n");
    assert!(
        reports.contains("closed connection of 127.0.0.1"),
        "{reports}"
    );
}

#[test]
fn floods_of_control_frames() {
    flood(&frame(wire::PING, 0, 0, &[0; 8]), 3000, ENHANCE_YOUR_CALM);
    flood(&frame(wire::SETTINGS, 0, 0, b""), 3000, ENHANCE_YOUR_CALM);
    let settings = [0, 4, 0, 0, 0, 1].repeat(100);
    flood(
        &frame(wire::SETTINGS, 0, 0, &settings),
        3000,
        ENHANCE_YOUR_CALM,
    );
    flood(
        &frame(wire::PRIORITY, 0, 3, &[0, 0, 0, 0, 9]),
        3000,
        ENHANCE_YOUR_CALM,
    );
    flood(&frame(0xfa, 0, 0, b"unknown"), 3000, ENHANCE_YOUR_CALM);
}

#[test]
fn a_flood_in_one_write_is_answered_with_goaway() {
    let (_server, addr) = start_default();
    let pings = frame(wire::PING, 0, 0, &[0; 8]).repeat(600);
    let first = [wire::PREFACE, &frame(wire::SETTINGS, 0, 0, b"")].concat();
    for begins_with_flood in [true, false] {
        let (mut raw, bytes) = match begins_with_flood {
            true => (Raw::new(addr), [&*first, &pings].concat()),
            false => (Raw::connect(addr), pings.clone()),
        };
        raw.send(&bytes);
        assert_eq!(raw.goaway_code(), ENHANCE_YOUR_CALM);
        assert_eq!(raw.next_frame(), None);
    }
}

#[test]
fn floods_of_empty_data_frames() {
    flood(&frame(wire::DATA, 0, 1, b""), 3000, ENHANCE_YOUR_CALM);
    // DATA frames that contain only padding.
    flood(
        &frame(wire::DATA, 8, 1, &[3, 0, 0, 0]),
        3000,
        ENHANCE_YOUR_CALM,
    );
}

#[test]
fn floods_of_window_updates() {
    let one = 1_u32.to_be_bytes();
    flood(
        &frame(wire::WINDOW_UPDATE, 0, 0, &one),
        5000,
        ENHANCE_YOUR_CALM,
    );
    flood(
        &frame(wire::WINDOW_UPDATE, 0, 1, &one),
        5000,
        ENHANCE_YOUR_CALM,
    );
}

/// CVE-2024-27316: an endless header block in frames that are each within the limit.
#[test]
fn an_endless_header_block() {
    for payload in [&b""[..], &[0; 16384]] {
        let (server, addr) = start_default();
        let bystander = Bystander::new(addr);
        let mut raw = Raw::connect(addr);
        raw.send(&frame(wire::HEADERS, 0, 1, wire::GET));
        let mut count = 0;
        while raw.try_send(&frame(wire::CONTINUATION, 0, 1, payload)) && count < 3000 {
            count += 1;
        }
        let code = raw.goaway_code();
        assert!(
            [ENHANCE_YOUR_CALM, PROTOCOL_ERROR, COMPRESSION_ERROR].contains(&code),
            "{code}"
        );
        drop(raw);
        bystander.expect_undisturbed(&server);
    }
}

/// A field that is short on the wire and long in memory, and is referenced repeatedly.
#[test]
fn a_bomb_in_a_header_block() {
    let (server, addr) = start_default();
    let bystander = Bystander::new(addr);
    let mut raw = Raw::connect(addr);
    let mut block = wire::GET.to_vec();
    // A name and a value of 4000 bytes enter the dynamic table; then single bytes refer to them.
    block.extend(b"\x40\x01x\x7f\xa1\x1e");
    block.extend([b'a'; 4000]);
    block.extend([0xbe; 12_000]);
    raw.send(&frame(wire::HEADERS, 5, 1, &block));
    let answer = raw
        .until(|frame| frame.kind != wire::WINDOW_UPDATE)
        .unwrap();
    match answer.kind {
        // The server sends 431 and a reset, or ends the connection.
        wire::HEADERS => assert!(raw.until(|frame| frame.kind == wire::RST_STREAM).is_some()),
        kind => assert_eq!(kind, wire::GOAWAY),
    }
    assert_eq!(server.service().started.load(Ordering::SeqCst), 0);
    drop(raw);
    bystander.expect_undisturbed(&server);
}

#[test]
fn more_header_fields_than_allowed() {
    let (_server, addr) = start_default();
    let mut raw = Raw::connect(addr);
    for (stream, count, status) in [(1, 90, b"200"), (3, 110, b"431")] {
        let mut block = request_block("/inline");
        for _ in 0..count {
            block.extend(literal("a", "b"));
        }
        raw.send(&frame(wire::HEADERS, 5, stream, &block));
        let head = raw.until(|frame| frame.stream == stream).unwrap();
        assert_eq!(head.kind, wire::HEADERS);
        // The static table contains `:status` 200; other status codes are literals.
        let is_ok = head.payload[0] == 0x88;
        assert_eq!(is_ok, status == b"200");
    }
}

#[test]
fn a_frame_larger_than_announced() {
    let (server, addr) = start_default();
    let bystander = Bystander::new(addr);
    let mut raw = Raw::connect(addr);
    raw.try_send(&frame(wire::HEADERS, 4, 1, wire::POST));
    raw.try_send(&frame(wire::DATA, 0, 1, &[0; 16385]));
    assert_eq!(raw.goaway_code(), FRAME_SIZE_ERROR);
    drop(raw);
    bystander.expect_undisturbed(&server);
}

/// CVE-2023-44487: requests that are reset at once, which costs the client nothing.
#[test]
fn rapid_resets() {
    let (server, addr) = start_default();
    let bystander = Bystander::new(addr);
    let mut raw = Raw::connect(addr);
    let block = request_block("/gated");
    let mut stream = 1;
    for _ in 0..2000 {
        let request = frame(wire::HEADERS, 5, stream, &block);
        let reset = frame(wire::RST_STREAM, 0, stream, &8_u32.to_be_bytes());
        if !raw.try_send(&[request, reset].concat()) {
            break;
        }
        stream += 2;
    }
    assert_eq!(raw.goaway_code(), ENHANCE_YOUR_CALM);
    // The queue has no more handlers than for an ordinary client, and those that have not started
    // never start.
    let load = server.load();
    assert!(load.queued_count + load.running_count <= 100, "{load:?}");
    server.service().gate.open();
    drop(raw);
    bystander.expect_undisturbed(&server);
    assert!(server.service().started.load(Ordering::SeqCst) <= 100);
}

/// The same attack with handlers that are already running: they count until they return.
#[test]
fn handlers_of_reset_streams_count_towards_the_limit() {
    let limits = Limits {
        streams_max: 4,
        ..Limits::default()
    };
    let (server, addr) = start(limits);
    let bystander = Bystander::new(addr);
    let mut raw = Raw::connect(addr);
    let block = request_block("/gated");
    for stream in [1, 3, 5, 7] {
        raw.send(&frame(wire::HEADERS, 5, stream, &block));
    }
    wait_until("all run", || {
        server.service().started.load(Ordering::SeqCst) == 4
    });
    for stream in [1, 3, 5, 7] {
        raw.send(&frame(wire::RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
    }
    raw.send(&frame(wire::HEADERS, 5, 9, &block));
    let refused = raw.until(|frame| frame.stream == 9).unwrap();
    assert_eq!(
        (refused.kind, &refused.payload[..]),
        (wire::RST_STREAM, &7_u32.to_be_bytes()[..])
    );
    server.service().gate.open();
    wait_until("none runs", || server.load().running_count == 0);
    raw.send(&frame(wire::HEADERS, 5, 11, &block));
    let answer = raw.until(|frame| frame.stream == 11).unwrap();
    assert_eq!(answer.kind, wire::HEADERS);
    drop(raw);
    bystander.expect_undisturbed(&server);
}

/// CVE-2025-8671: the client makes the server reset streams.
#[test]
fn resets_provoked_from_the_server() {
    let (server, addr) = start_default();
    let bystander = Bystander::new(addr);
    let mut raw = Raw::connect(addr);
    let block = [request_block("/echo"), literal("content-length", "1")].concat();
    let mut stream = 1;
    for _ in 0..2000 {
        let request = frame(wire::HEADERS, 4, stream, &block);
        let wrong = frame(wire::DATA, 0, stream, b"22");
        if !raw.try_send(&[request, wrong].concat()) {
            break;
        }
        stream += 2;
    }
    assert_eq!(raw.goaway_code(), ENHANCE_YOUR_CALM);
    drop(raw);
    bystander.expect_undisturbed(&server);
}

/// The client requests a body and never opens the stream's window.
#[test]
fn a_window_that_never_opens() {
    let limits = Limits {
        stall_time: Duration::from_millis(1),
        ..Limits::default()
    };
    let (server, addr) = start(limits);
    let bystander = Bystander::new(addr);
    // SETTINGS_INITIAL_WINDOW_SIZE of 0.
    let mut raw = Raw::with_settings(addr, &[0, 4, 0, 0, 0, 0]);
    raw.send(&frame(
        wire::HEADERS,
        5,
        1,
        &request_block("/pattern/1000000"),
    ));
    let reset = raw.until(|frame| frame.kind == wire::RST_STREAM).unwrap();
    assert_eq!(reset.payload, ENHANCE_YOUR_CALM.to_be_bytes());
    // Meanwhile another stream of the connection is served.
    raw.send(&frame(wire::HEADERS, 5, 3, &request_block("/status/204")));
    assert_eq!(
        raw.until(|frame| frame.stream == 3).unwrap().kind,
        wire::HEADERS
    );
    wait_until("it is reported", || {
        server
            .service()
            .reports
            .lock()
            .unwrap()
            .iter()
            .any(|line| line.contains("too slow"))
    });
    drop(raw);
    bystander.expect_undisturbed(&server);
}

#[test]
fn a_request_body_that_stalls() {
    let limits = Limits {
        stall_time: Duration::from_millis(1),
        ..Limits::default()
    };
    let (server, addr) = start(limits);
    let bystander = Bystander::new(addr);
    for path in ["/echo", "/count"] {
        let mut raw = Raw::connect(addr);
        let block = [b"\x83\x86\x41\x01a".to_vec(), literal(":path", path)].concat();
        raw.send(&frame(wire::HEADERS, 4, 1, &block));
        raw.send(&frame(wire::DATA, 0, 1, b"half"));
        let head = raw.until(|frame| frame.kind == wire::HEADERS).unwrap();
        assert_eq!(head.stream, 1, "408, or what the handler makes of it");
    }
    bystander.expect_undisturbed(&server);
}

#[test]
fn an_incomplete_preface_or_header_block_times_out() {
    let limits = Limits {
        head_time: Duration::from_secs(2),
        ..Limits::default()
    };
    let (server, addr) = start(limits);
    let bystander = Bystander::new(addr);
    let mut silent = Raw::new(addr);
    silent.send(&wire::PREFACE[..20]);
    assert!(silent.until(|_| false).is_none());
    let mut raw = Raw::connect(addr);
    raw.send(&frame(wire::HEADERS, 0, 1, wire::GET));
    assert_eq!(raw.goaway_code(), ENHANCE_YOUR_CALM);
    drop((silent, raw));
    bystander.expect_undisturbed(&server);
}

/// The flow-control windows are open, but the client does not read from its socket.
#[test]
fn a_socket_that_is_not_read() {
    let limits = Limits {
        stall_time: Duration::from_millis(100),
        // If the rest of the responses fits into the socket buffers, the connection counts as idle.
        idle_time: Duration::from_secs(5),
        ..Limits::default()
    };
    let (server, addr) = start(limits);
    let mut raw = Raw::with_settings(addr, &[0, 4, 0x7f, 0xff, 0xff, 0xff]);
    raw.send(&frame(
        wire::WINDOW_UPDATE,
        0,
        0,
        &0x7fff_0000_u32.to_be_bytes(),
    ));
    for i in 0..50 {
        let block = request_block("/pattern/1000000000");
        raw.send(&frame(wire::HEADERS, 5, 2 * i + 1, &block));
    }
    wait_until("it is cut off", || server.connection_count() == 0);
    drop(raw);
    Bystander::new(addr).expect_undisturbed(&server);
}
