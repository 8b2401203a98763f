//! WebSocket messages and events arrive as documented in `ws`.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use samovar_http::ws::{CloseCode, Frame, Message, Origins, SendError, Socket, Upgrade};
use samovar_http::{Request, Response};
use support::recorder::{App, Fixture, PATIENCE, plain, record};
use support::serve;
use support::ws::{BINARY, CLOSE, Client, PING, PONG, TEXT, close, frame, handshake};

#[test]
fn messages_are_echoed_and_events_are_in_order() {
    for path in ["/worker", "/inline"] {
        let fixture = record(Duration::ZERO, plain);
        let mut client = Client::open(fixture.addr, path);
        assert!(
            client
                .response
                .head
                .contains("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n")
        );
        fixture.expect("open");
        client.text("héllo");
        client.expect_text("héllo");
        client.send(frame(BINARY, [0, 255]));
        client.expect(BINARY, [0, 255]);
        fixture.expect("héllo");
        fixture.expect("\0\u{fffd}");
        client.send(frame(PONG, b"unasked"));
        client.send(frame(PING, b"there?"));
        client.expect(PONG, "there?");
        client.send(close(1000, "done"));
        client.expect_close(1000);
        fixture.expect("close 1000 true");
        assert!(fixture.events.try_recv().is_err());
    }
}

#[test]
fn frames_may_follow_the_request_at_once_and_in_any_pieces() {
    let fixture = record(Duration::ZERO, plain);
    let mut bytes = handshake("/", "").into_bytes();
    bytes.extend(frame(TEXT, b"early"));
    let mut client = Client::with(fixture.addr, &bytes);
    client.expect_text("early");
    for byte in [
        frame(0x01, b"in "),
        frame(PING, b"p"),
        frame(0x80, b"pieces"),
    ]
    .concat()
    {
        client.send([byte]);
    }
    client.expect(PONG, "p");
    client.expect_text("in pieces");
}

#[test]
fn one_socket_is_handled_in_order_and_one_at_a_time() {
    for path in ["/worker", "/inline"] {
        let fixture = record(Duration::ZERO, plain);
        let mut client = Client::open(fixture.addr, path);
        let many: Vec<u8> = (0..5000)
            .flat_map(|n| frame(TEXT, n.to_string().as_bytes()))
            .collect();
        let mut writer = client.connection.stream.try_clone().unwrap();
        let writing = std::thread::spawn(move || writer.write_all(&many).unwrap());
        for n in 0..5000 {
            client.expect_text(&n.to_string());
        }
        writing.join().unwrap();
        fixture.expect("open");
        for n in 0..5000 {
            fixture.expect(&n.to_string());
        }
    }
}

#[test]
fn different_sockets_run_in_parallel() {
    // Both handlers wait at the barrier, so they run concurrently.
    let barrier = Arc::new(std::sync::Barrier::new(2));
    let app = move |request: &mut Request| {
        let barrier = Arc::clone(&barrier);
        let meet = move |socket: &Socket, message: Message<'_>| {
            barrier.wait();
            socket.send(message);
        };
        Upgrade::new(meet).accept(request)
    };
    let (_server, addr) = serve(App(app), |builder| builder.io_threads(1).workers(2));
    let mut clients = [Client::open(addr, "/"), Client::open(addr, "/")];
    clients.iter_mut().for_each(|client| client.text("met"));
    clients
        .iter_mut()
        .for_each(|client| client.expect_text("met"));
}

#[test]
fn messages_sent_before_the_handshake_response_follow_it() {
    let app = |request: &mut Request| {
        let handler = |_: &Socket, _: Message<'_>| {};
        let (socket, response) = Upgrade::new(handler).try_accept(request).unwrap();
        socket.send("first");
        socket.send_frame(&Frame::new("second"));
        socket.close(CloseCode::NORMAL, "");
        assert_eq!(socket.try_send("third"), Err(SendError::Closed));
        response
    };
    let (_server, addr) = serve(App(app), |builder| builder);
    let mut client = Client::open(addr, "/");
    client.expect_text("first");
    client.expect_text("second");
    client.expect(CLOSE, 1000_u16.to_be_bytes());
    client.send(close(1000, ""));
    assert_eq!(client.next_frame(), None);
}

#[test]
fn a_socket_whose_response_is_dropped_never_opens() {
    let (sender, receiver) = channel();
    let sender = Mutex::new(sender);
    let app = move |request: &mut Request| {
        let handler = |_: &Socket, _: Message<'_>| panic!("not opened");
        let (socket, _dropped) = Upgrade::new(handler).try_accept(request).unwrap();
        sender.lock().unwrap().send(socket).unwrap();
        Response::text(samovar_http::http::Status::FORBIDDEN, "no\n")
    };
    let (_server, addr) = serve(App(app), |builder| builder);
    let mut reader = support::Reader::new(support::connect(addr));
    reader.send(handshake("/", ""));
    assert_eq!(reader.next(false).unwrap().status, 403);
    let socket = receiver.recv_timeout(PATIENCE).unwrap();
    assert!(!socket.is_open());
}

#[test]
fn any_thread_can_send_and_close() {
    let fixture = record(Duration::ZERO, plain);
    let mut client = Client::open(fixture.addr, "/");
    let socket = fixture.socket();
    fixture.expect("open");
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let socket = socket.clone();
            std::thread::spawn(move || {
                for n in 0..100 {
                    socket.send(&format!("{thread} {n}"));
                }
            })
        })
        .collect();
    let mut next = [0; 4];
    for _ in 0..400 {
        let (_, text) = client.next_frame().unwrap();
        let text = String::from_utf8(text).unwrap();
        let (thread, n) = text.split_once(' ').unwrap();
        let thread: usize = thread.parse().unwrap();
        assert_eq!(n, next[thread].to_string(), "each thread's order is kept");
        next[thread] += 1;
    }
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    socket.close(CloseCode::new(3000).unwrap(), "enough");
    socket.send("too late");
    client.expect(CLOSE, b"\x0b\xb8enough");
    client.send(frame(TEXT, b"was on its way"));
    fixture.expect("was on its way");
    client.send(close(3000, ""));
    assert_eq!(client.next_frame(), None);
    fixture.expect("close 3000 true");
    // A handle of a closed socket has no effect.
    socket.send("x");
    socket.close(CloseCode::NORMAL, "x");
    assert_eq!(socket.try_send("x"), Err(SendError::Closed));
}

#[test]
fn an_aborted_socket_is_reset_without_a_close_frame() {
    for path in ["/worker", "/inline"] {
        let fixture = record(Duration::ZERO, plain);
        let mut client = Client::open(fixture.addr, path);
        let socket = fixture.socket();
        fixture.expect("open");
        socket.abort();
        assert_eq!(socket.try_send("x"), Err(SendError::Closed));
        fixture.expect("close 1006 false");
        let end = client.connection.stream.read(&mut [0; 9]);
        assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
        socket.abort();
    }
}

#[test]
fn pings_and_pongs_are_events_for_handlers_that_ask_for_them() {
    for path in ["/worker/pings", "/inline/pings"] {
        let fixture = record(Duration::ZERO, plain);
        let mut client = Client::open(fixture.addr, path);
        let socket = fixture.socket();
        fixture.expect("open");
        socket.ping(b"you?");
        client.expect(PING, "you?");
        client.send(frame(PONG, b"you?"));
        fixture.expect("pong you?");
        // RFC 6455, 5.5.3: "A Pong frame MAY be sent unsolicited."
        socket.pong(b"alive");
        client.expect(PONG, "alive");
        client.send(frame(PONG, b"unasked"));
        fixture.expect("pong unasked");
        // Control frames keep their order among messages, and interrupt a fragmented one.
        client.text("before");
        client.expect_text("before");
        for bytes in [frame(0x01, b"in "), frame(PING, b"p"), frame(0x80, b"two")] {
            client.send(bytes);
        }
        client.expect(PONG, "p");
        client.expect_text("in two");
        fixture.expect("before");
        fixture.expect("ping p");
        fixture.expect("in two");
        // RFC 6455, 5.5: "All control frames MUST have a payload length of 125 bytes or less".
        socket.ping(&[b'x'; 126]);
        client.expect(PING, [b'x'; 125]);
        socket.close(CloseCode::NORMAL, "");
        socket.ping(b"late");
        client.expect(CLOSE, 1000_u16.to_be_bytes());
        client.send(close(1000, ""));
        assert_eq!(client.next_frame(), None);
        fixture.expect("close 1000 true");
    }
}

#[test]
fn a_broadcast_reaches_all_sockets_in_order() {
    let sockets: Arc<Mutex<Vec<Socket>>> = Arc::default();
    let open = Arc::clone(&sockets);
    let app = move |request: &mut Request| {
        let (socket, response) = Upgrade::new(|_: &Socket, _: Message<'_>| {})
            .try_accept(request)
            .unwrap();
        open.lock().unwrap().push(socket);
        response
    };
    let (_server, addr) = serve(App(app), |builder| builder);
    let mut clients: Vec<_> = (0..20).map(|_| Client::open(addr, "/")).collect();
    for n in 0..50 {
        let frame = Frame::new(&format!("{n} {}", "and again ".repeat(100)));
        for socket in sockets.lock().unwrap().iter() {
            socket.send_frame(&frame);
        }
    }
    for client in &mut clients {
        for n in 0..50 {
            client.expect_text(&format!("{n} {}", "and again ".repeat(100)));
        }
    }
}

#[test]
fn pages_of_other_origins_are_refused() {
    let listed =
        |upgrade: Upgrade| upgrade.origins(Origins::Listed(vec!["https://b.example".into()]));
    let any = |upgrade: Upgrade| upgrade.origins(Origins::Any);
    let ask = |fixture: &Fixture, origin: &str| {
        let mut reader = support::Reader::new(support::connect(fixture.addr));
        reader.send(handshake("/", &format!("Origin: {origin}\r\n")));
        reader.next(false).unwrap().status
    };
    let fixture = record(Duration::ZERO, plain);
    assert_eq!(ask(&fixture, "http://a.example"), 101);
    assert_eq!(ask(&fixture, "http://b.example"), 403);
    assert_eq!(ask(&fixture, "null"), 403);
    let fixture = record(Duration::ZERO, listed);
    assert_eq!(ask(&fixture, "https://B.example"), 101);
    assert_eq!(ask(&fixture, "http://a.example"), 403);
    let fixture = record(Duration::ZERO, any);
    assert_eq!(ask(&fixture, "null"), 101);
}

#[test]
fn the_subprotocol_that_the_client_prefers_is_chosen() {
    let fixture = record(Duration::ZERO, |upgrade| {
        upgrade.protocol("chat").protocol("superchat")
    });
    let fields = "Sec-WebSocket-Protocol: x, superchat, chat\r\n";
    let client = Client::with(fixture.addr, handshake("/", fields));
    assert!(
        client
            .response
            .head
            .contains("Sec-WebSocket-Protocol: superchat\r\n")
    );
    assert_eq!(fixture.socket().protocol(), Some("superchat"));
    let client = Client::with(
        fixture.addr,
        handshake("/", "Sec-WebSocket-Protocol: x\r\n"),
    );
    assert!(!client.response.head.contains("Sec-WebSocket-Protocol"));
}
