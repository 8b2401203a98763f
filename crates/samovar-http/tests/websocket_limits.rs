//! WebSocket connections that reach a limit or end abnormally are closed with the correct code.

mod support;

use std::io::Write;
use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use samovar_http::Request;
use samovar_http::ws::{CloseCode, Closed, Handler, Limits, Message, SendError, Socket, Upgrade};
use support::recorder::{App, PATIENCE, plain, record};
use support::ws::{CLOSE, Client, PING, PONG, TEXT, close, frame};
use support::{Reader, serve};

#[test]
fn a_lost_connection_is_reported_once() {
    for path in ["/worker", "/inline"] {
        let fixture = record(Duration::ZERO, plain);
        let client = Client::open(fixture.addr, path);
        fixture.expect("open");
        drop(client);
        fixture.expect("close 1006 false");
        assert!(
            fixture
                .events
                .recv_timeout(Duration::from_millis(50))
                .is_err()
        );
    }
}

/// The I/O thread joins queued messages in the memory in which it also gathers responses.
#[test]
fn queued_messages_of_a_lost_socket_reach_no_other_client() {
    let fixture = record(Duration::ZERO, plain);
    let client = Client::open(fixture.addr, "/");
    let socket = fixture.socket();
    fixture.expect("open");
    while socket.try_send(&"x".repeat(10_000)).is_ok() {}
    // The client has not read everything, so its kernel sends a reset.
    drop(client);
    fixture.expect("close 1006 false");
    let answer = Reader::connect(fixture.addr).get("/");
    assert_eq!(answer.status, 426, "{}", answer.text());
}

#[test]
fn a_panic_closes_only_its_own_socket() {
    for path in ["/worker", "/inline"] {
        let fixture = record(Duration::ZERO, plain);
        let mut other = Client::open(fixture.addr, path);
        fixture.expect("open");
        let mut client = Client::open(fixture.addr, path);
        fixture.expect("open");
        client.text("panic");
        client.expect(CLOSE, 1011_u16.to_be_bytes());
        client.send(close(1011, ""));
        assert_eq!(client.next_frame(), None);
        fixture.expect("close 1011 true");
        other.text("still here");
        other.expect_text("still here");
    }
}

#[test]
fn limits_hold_at_the_limit_and_one_past_it() {
    let fixture = record(Duration::ZERO, |upgrade| {
        upgrade.limits(Limits {
            message_len_max: 150,
            ..Limits::default()
        })
    });
    let mut client = Client::open(fixture.addr, "/");
    client.send(frame(TEXT, [b'x'; 100]));
    client.expect_text(&"x".repeat(100));
    client.send([frame(0x01, [b'x'; 100]), frame(0x80, [b'x'; 50])].concat());
    client.expect_text(&"x".repeat(150));
    client.send([frame(0x01, [b'x'; 100]), frame(0x80, [b'x'; 51])].concat());
    client.expect_close(1009);
    let mut client = Client::open(fixture.addr, "/");
    client.send(frame(TEXT, [b'x'; 151]));
    client.expect_close(1009);
}

#[test]
fn a_full_queue_refuses_messages_and_then_closes_the_socket() {
    const LEN_MAX: usize = 100_000;
    let fixture = record(Duration::ZERO, |upgrade| {
        upgrade.limits(Limits {
            outbound_len_max: LEN_MAX,
            ..Limits::default()
        })
    });
    let mut client = Client::open(fixture.addr, "/");
    let socket = fixture.socket();
    fixture.expect("open");
    let (message, mut sent) = ("x".repeat(10_000), 0);
    // Fill the kernel's buffers first, then the server's queue.
    while socket.try_send(&message).is_ok() {
        sent += 1;
    }
    assert_eq!(socket.try_send(&message), Err(SendError::Full));
    assert!(socket.is_open());
    let queued_len = socket.queued_len();
    assert!((LEN_MAX - message.len()..=LEN_MAX).contains(&queued_len));
    for _ in 0..sent {
        client.expect_text(&message);
    }
    assert_eq!(socket.queued_len(), 0);
    // The client has read everything, so the queue has capacity again. Now test the method that
    // closes the socket.
    while socket.try_send(&message).is_ok() {}
    socket.send(&message);
    assert!(!socket.is_open());
    let last = std::iter::from_fn(|| client.next_frame()).find(|(first, _)| *first == CLOSE);
    assert_eq!(last, Some((CLOSE, b"\x03\xf5too slow".to_vec())));
}

#[test]
fn a_pong_follows_the_frame_in_progress_and_only_the_latest_is_sent() {
    let fixture = record(Duration::ZERO, plain);
    let mut client = Client::open(fixture.addr, "/");
    let socket = fixture.socket();
    fixture.expect("open");
    let (message, mut sent) = ("x".repeat(70_000), 0);
    while socket.try_send(&message).is_ok() {
        sent += 1;
    }
    for payload in ["1", "2", "3"] {
        client.send(frame(PING, payload.as_bytes()));
    }
    client.send(frame(TEXT, b"hush"));
    fixture.expect("hush");
    let mut pongs = Vec::new();
    while sent > 0 || pongs.is_empty() {
        match client.next_frame().unwrap() {
            (PONG, payload) => pongs.push(payload),
            (first, payload) => {
                assert_eq!((first, payload.len()), (TEXT, message.len()));
                sent -= 1;
            }
        }
    }
    assert_eq!(pongs, [b"3"]);
}

#[test]
fn pings_to_a_peer_that_does_not_read_close_the_socket() {
    let fixture = record(Duration::ZERO, |upgrade| {
        upgrade.limits(Limits {
            outbound_len_max: 100_000,
            close_time: Duration::from_millis(1),
            ..Limits::default()
        })
    });
    let _client = Client::open(fixture.addr, "/pings");
    let socket = fixture.socket();
    fixture.expect("open");
    while socket.is_open() {
        socket.ping(&[b'x'; 125]);
    }
    fixture.expect("close 1006 false");
}

#[test]
fn a_flood_of_pings_that_a_slow_handler_observes_pauses_reading() {
    const PINGS: usize = 3000;
    let fixture = record(Duration::from_micros(100), |upgrade| {
        upgrade.limits(Limits {
            inbound_len_max: 10_000,
            ..Limits::default()
        })
    });
    let mut client = Client::open(fixture.addr, "/pings");
    fixture.expect("open");
    let mut writer = client.connection.stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        for _ in 0..PINGS {
            writer.write_all(&frame(PING, [b'x'; 100])).unwrap();
        }
    });
    for _ in 0..PINGS {
        client.expect(PONG, [b'x'; 100]);
        fixture.expect(&format!("ping {}", "x".repeat(100)));
    }
    writing.join().unwrap();
}

#[test]
fn a_peer_that_never_reads_is_disconnected() {
    let fixture = record(Duration::ZERO, |upgrade| {
        upgrade.limits(Limits {
            close_time: Duration::from_millis(1),
            ..Limits::default()
        })
    });
    let _client = Client::open(fixture.addr, "/");
    let socket = fixture.socket();
    fixture.expect("open");
    while socket.is_open() {
        socket.send(&"x".repeat(100_000));
    }
    fixture.expect("close 1006 false");
}

#[test]
fn a_slow_handler_pauses_reading() {
    const MESSAGES: usize = 3000;
    let fixture = record(Duration::from_micros(100), |upgrade| {
        upgrade.limits(Limits {
            inbound_len_max: 10_000,
            ..Limits::default()
        })
    });
    let mut client = Client::open(fixture.addr, "/");
    let mut writer = client.connection.stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        for _ in 0..MESSAGES {
            writer.write_all(&frame(TEXT, [b'x'; 1000])).unwrap();
        }
    });
    for _ in 0..MESSAGES {
        client.expect_text(&"x".repeat(1000));
    }
    writing.join().unwrap();
}

#[test]
fn a_silent_peer_gets_a_ping_and_is_then_disconnected() {
    let fixture = record(Duration::ZERO, |upgrade| {
        upgrade.limits(Limits {
            ping_time: Duration::from_millis(100),
            pong_time: Duration::from_secs(4),
            ..Limits::default()
        })
    });
    let mut client = Client::open(fixture.addr, "/pings");
    fixture.expect("open");
    // The connection stays open while the client replies to pings. Replies to the engine's pings
    // are not reported to the handler.
    for _ in 0..2 {
        let (first, payload) = client.next_frame().unwrap();
        assert_eq!(first, PING);
        client.send(frame(PONG, &payload));
    }
    client.text("here");
    loop {
        match client.next_frame().unwrap() {
            (PING, payload) => client.send(frame(PONG, &payload)),
            got => break assert_eq!(got, (TEXT, b"here".to_vec())),
        }
    }
    fixture.expect("here");
    fixture.expect("close 1006 false");
}

#[test]
fn a_peer_that_does_not_reply_to_a_close_frame_is_disconnected() {
    let fixture = record(Duration::ZERO, |upgrade| {
        upgrade.limits(Limits {
            close_time: Duration::from_millis(200),
            ..Limits::default()
        })
    });
    let mut client = Client::open(fixture.addr, "/");
    client.text("bye");
    client.expect(CLOSE, b"\x03\xe8as asked");
    assert_eq!(client.next_frame(), None);
    fixture.expect("open");
    fixture.expect("bye");
    fixture.expect("close 1006 false");
}

#[test]
fn incomplete_messages_need_a_minimum_throughput() {
    let app = |request: &mut Request| Upgrade::new(|_: &Socket, _: Message<'_>| {}).accept(request);
    let (_server, addr) = serve(App(app), |builder| {
        builder.limits(samovar_http::Limits {
            stall_time: Duration::from_millis(1),
            ..samovar_http::Limits::default()
        })
    });
    let mut client = Client::open(addr, "/");
    client.send(frame(0x01, b"half a message"));
    assert_eq!(client.next_frame(), None);
}

#[test]
fn both_sides_may_close_at_once() {
    let fixture = record(Duration::ZERO, plain);
    let mut client = Client::open(fixture.addr, "/");
    let socket = fixture.socket();
    fixture.expect("open");
    client.send(close(1001, ""));
    socket.close(CloseCode::NORMAL, "");
    let (first, _) = client.next_frame().unwrap();
    assert_eq!(first, CLOSE);
    assert_eq!(client.next_frame(), None, "one close frame, and the end");
    fixture.expect("close 1001 true");
}

#[test]
fn a_drain_closes_sockets_with_1001() {
    let (sender, closed) = channel();
    let sender = Mutex::new(sender);
    struct Last(Sender<u16>);
    impl Handler for Last {
        fn message(&mut self, _: &Socket, _: Message<'_>) {}
        fn close(&mut self, _: &Socket, closed: &Closed) {
            self.0.send(closed.code).unwrap();
        }
    }
    let app = move |request: &mut Request| {
        let sender = sender.lock().unwrap().clone();
        Upgrade::new(Last(sender)).accept(request)
    };
    let (server, addr) = serve(App(app), |builder| builder);
    let mut polite = Client::open(addr, "/");
    let rude = Client::open(addr, "/");
    let draining = std::thread::spawn(move || {
        let start = Instant::now();
        server.drain(Duration::from_secs(5));
        start.elapsed()
    });
    let (first, payload) = polite.next_frame().unwrap();
    assert_eq!((first, &payload[..2]), (CLOSE, &1001_u16.to_be_bytes()[..]));
    polite.send(close(1001, ""));
    assert_eq!(polite.next_frame(), None);
    assert_eq!(closed.recv_timeout(PATIENCE), Ok(1001));
    // The other client does not respond, so the drain ends when its time is over.
    assert!(draining.join().unwrap() < Duration::from_secs(60));
    assert_eq!(closed.recv_timeout(PATIENCE), Ok(1006));
    drop(rude);
}

#[test]
fn a_half_closed_connection_counts_as_lost() {
    let fixture = record(Duration::ZERO, plain);
    let mut client = Client::open(fixture.addr, "/");
    client.text("last words");
    client.connection.stream.shutdown(Shutdown::Write).unwrap();
    fixture.expect("open");
    fixture.expect("last words");
    fixture.expect("close 1006 false");
    drop(client);
}

#[test]
fn sockets_are_counted_as_connections_until_they_end() {
    let alive = Arc::new(AtomicUsize::new(0));
    struct Counted(Arc<AtomicUsize>);
    impl Handler for Counted {
        fn message(&mut self, _: &Socket, _: Message<'_>) {}
    }
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let counter = Arc::clone(&alive);
    let app = move |request: &mut Request| {
        counter.fetch_add(1, Ordering::SeqCst);
        Upgrade::new(Counted(Arc::clone(&counter))).accept(request)
    };
    let (server, addr) = serve(App(app), |builder| builder);
    let clients: Vec<_> = (0..10).map(|_| Client::open(addr, "/")).collect();
    assert_eq!(server.connection_count(), 10);
    drop(clients);
    let start = Instant::now();
    while server.connection_count() + alive.load(Ordering::SeqCst) > 0 {
        assert!(start.elapsed() < PATIENCE, "sockets are left");
        std::thread::yield_now();
    }
}
