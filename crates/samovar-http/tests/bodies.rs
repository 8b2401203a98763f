//! Response bodies of every kind are sent complete and in order: files, readers, generators,
//! channels and deferred responses.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender as TestSender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use samovar_http::http::Status;
use samovar_http::{Body, Intake, Limits, Request, Responder, Response, SendError, Sender, Server};
use support::{By, Reader, connect, eventually, serve};

type Handler = Box<dyn Fn(&mut Request) -> Response + Send + Sync>;

fn start(
    workers: usize,
    handle: impl Fn(&mut Request) -> Response + Send + Sync + 'static,
) -> (Server<By<Handler>>, SocketAddr) {
    let service = By {
        handle: Box::new(handle) as Handler,
        intake: Intake::Buffered(0),
    };
    serve(service, |builder| builder.workers(workers))
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

/// Returns a channel by which a handler passes values to the test.
fn handler_channel<T: Send + 'static>() -> (Mutex<TestSender<T>>, Receiver<T>) {
    let (to_test, from_handler) = channel();
    (Mutex::new(to_test), from_handler)
}

#[test]
fn files_readers_and_generators() {
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&bytes).unwrap();
    let path = file.path().to_owned();
    let expected = bytes.clone();
    let (_server, addr) = start(2, move |request| {
        let file = || File::open(&path).unwrap();
        let body = match request.head().path() {
            b"/file" => Body::file(file()).unwrap(),
            b"/range" => Body::file_range(file(), 1_000_000..2_999_999),
            b"/empty-range" => Body::file_range(file(), 7..7),
            b"/short" => Body::file_range(file(), 0..3_000_001),
            b"/reader" => Body::reader(file()),
            b"/reader-of-len" => Body::reader_of_len(file(), 1_500_000),
            b"/reader-too-long" => Body::reader_of_len(file(), 3_000_001),
            _ => {
                let bytes = bytes.clone();
                let pieces: Vec<Vec<u8>> = bytes.chunks(1_000_000).map(<[u8]>::to_vec).collect();
                Body::pieces(pieces.into_iter().map(Ok))
            }
        };
        Response::new(Status::OK, body)
    });
    let mut client = Reader::new(connect(addr));
    for (path, range, is_chunked) in [
        ("/file", 0..3_000_000, false),
        ("/range", 1_000_000..2_999_999, false),
        ("/empty-range", 7..7, false),
        ("/reader", 0..3_000_000, true),
        ("/reader-of-len", 0..1_500_000, false),
        ("/pieces", 0..3_000_000, true),
    ] {
        client.send(get(path));
        let answer = client.next(false).unwrap();
        assert!(answer.body == expected[range], "{path}");
        assert_eq!(answer.header("content-length").is_none(), is_chunked);
    }
    for path in ["/short", "/reader-too-long"] {
        let mut client = Reader::new(connect(addr));
        client.send(get(path));
        let mut bytes = Vec::new();
        assert!(client.stream.read_to_end(&mut bytes).is_err(), "{path}");
    }
}

#[test]
fn only_a_regular_file_is_a_body() {
    assert!(Body::file(File::open("/dev/null").unwrap()).is_err());
    assert!(Body::file(File::open("/").unwrap()).is_err());
}

#[test]
fn a_body_of_unknown_length_is_complete_in_every_protocol_version() {
    let (_server, addr) = start(1, |_| {
        let rows = (0..200_000).map(|row| Ok(format!("row {row}\n").into_bytes()));
        Response::new(Status::OK, Body::pieces(rows))
    });
    let expected: String = (0..200_000).map(|row| format!("row {row}\n")).collect();
    let mut client = Reader::new(connect(addr));
    for _ in 0..2 {
        client.send(get("/"));
        assert!(client.next(false).unwrap().body == expected.as_bytes());
    }
    client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.next(true).unwrap().status, 200);
    // In HTTP/1.0, the end of the connection marks the end of the body.
    client.send("GET / HTTP/1.0\r\n\r\n");
    let mut bytes = Vec::new();
    client.stream.read_to_end(&mut bytes).unwrap();
    assert!(bytes.ends_with(expected.as_bytes()));
}

#[test]
fn a_blocked_sender_gets_an_error_when_its_client_disconnects() {
    let (to_test, from_handler) = handler_channel::<Sender>();
    let (_server, addr) = start(1, move |_| {
        let (sender, body) = Body::channel();
        to_test.lock().unwrap().send(sender).unwrap();
        Response::new(Status::OK, body)
    });
    let mut client = Reader::new(connect(addr));
    client.send(get("/"));
    let sender = from_handler.recv().unwrap();
    let sending = std::thread::spawn(move || {
        loop {
            if let Err(error) = sender.send([b'x'; 10_000]) {
                break error;
            }
        }
    });
    client.stream.read_exact(&mut [0; 100]).unwrap();
    drop(client);
    assert_eq!(sending.join().unwrap(), SendError::Gone);
}

fn skip_head(client: &mut Reader) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.stream.read_exact(&mut byte).unwrap();
        head.extend_from_slice(&byte);
    }
}

/// Reads one chunk: its size line, then its data.
fn next_chunk(client: &mut Reader) -> String {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        client.stream.read_exact(&mut byte).unwrap();
        line.extend_from_slice(&byte);
    }
    let text = String::from_utf8(line).unwrap();
    let len = usize::from_str_radix(text.trim(), 16).unwrap();
    let mut data = vec![0; len + 2];
    client.stream.read_exact(&mut data).unwrap();
    data.truncate(len);
    String::from_utf8(data).unwrap()
}

#[test]
fn channel_events_arrive_at_once_and_occupy_no_thread() {
    const COUNT: usize = 300;
    let (to_test, from_handler) = handler_channel::<Sender>();
    let (server, addr) = start(1, move |_| {
        let (sender, body) = Body::channel();
        to_test.lock().unwrap().send(sender).unwrap();
        Response::new(Status::OK, body).header("Content-Type", "text/event-stream")
    });
    let mut clients = Vec::new();
    let mut senders = Vec::new();
    for _ in 0..COUNT {
        let mut client = Reader::new(connect(addr));
        client.send(get("/"));
        // The head arrives before the first event.
        skip_head(&mut client);
        clients.push(client);
        senders.push(from_handler.recv().unwrap());
    }
    for round in 0..3 {
        for sender in &senders {
            sender.try_send(format!("data: {round}\n\n")).unwrap();
        }
        for client in &mut clients {
            assert_eq!(next_chunk(client), format!("data: {round}\n\n"));
        }
    }
    eventually("no worker is held", || {
        let load = server.load();
        load.running_count == 0 && load.body_memory_len == 0
    });
    for sender in senders {
        sender.finish();
    }
    for client in &mut clients {
        assert_eq!(next_chunk(client), "");
        client.send(get("/"));
    }
}

#[test]
fn a_channel_queues_a_limited_number_of_bytes() {
    let (to_test, from_handler) = handler_channel::<Sender>();
    let (_server, addr) = start(1, move |_| {
        let (sender, body) = Body::channel();
        to_test.lock().unwrap().send(sender).unwrap();
        Response::new(Status::OK, body)
    });
    let mut client = Reader::new(connect(addr));
    client.send(get("/"));
    let sender = from_handler.recv().unwrap();
    // The peer does not read. Once the socket buffers and the channel are full, sending stops.
    let mut sent_len = 0_usize;
    let mut full_count = 0;
    while full_count < 20 {
        match sender.try_send(vec![b'x'; 65_536]) {
            Ok(()) => (sent_len, full_count) = (sent_len + 65_536, 0),
            Err(error) => {
                assert_eq!(error, SendError::Full);
                full_count += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        assert!(sent_len < 64 << 20);
    }
    let reader = std::thread::spawn(move || client.next(false).unwrap().body.len());
    sender.send(vec![b'y'; 10]).unwrap();
    sender.finish();
    assert_eq!(reader.join().unwrap(), sent_len + 10);
}

#[test]
fn a_dropped_sender_resets_the_connection() {
    let (to_test, from_handler) = handler_channel::<Sender>();
    let (_server, addr) = start(1, move |_| {
        let (sender, body) = Body::channel();
        to_test.lock().unwrap().send(sender).unwrap();
        Response::new(Status::OK, body)
    });
    let mut client = Reader::new(connect(addr));
    client.send(get("/"));
    let sender = from_handler.recv().unwrap();
    sender.send("half").unwrap();
    skip_head(&mut client);
    assert_eq!(next_chunk(&mut client), "half");
    drop(sender);
    let mut bytes = Vec::new();
    drop(client.stream.read_to_end(&mut bytes));
    assert!(!bytes.ends_with(b"0\r\n\r\n"));
}

#[test]
fn deferred_responses_keep_the_order_of_pipelined_requests() {
    let (to_test, from_handler) = handler_channel::<(String, Responder)>();
    let (server, addr) = start(1, move |request| {
        let path = String::from_utf8(request.head().path().to_vec()).unwrap();
        if path == "/now" {
            return Response::text(Status::OK, path);
        }
        let (responder, response) = Response::later();
        to_test.lock().unwrap().send((path, responder)).unwrap();
        response
    });
    let mut client = Reader::new(connect(addr));
    client.send(get("/a") + &get("/now") + &get("/b"));
    let (path, responder) = from_handler.recv().unwrap();
    eventually("no worker waits", || server.load().running_count == 0);
    responder.respond(Response::text(Status::OK, path));
    assert_eq!(client.next(false).unwrap().body, b"/a");
    assert_eq!(client.next(false).unwrap().body, b"/now");
    let (_, responder) = from_handler.recv().unwrap();
    drop(responder);
    assert_eq!(client.next(false).unwrap().status, 500);
    // The response is completed before the connection starts to wait, and with another kind of
    // body.
    client.send(get("/c"));
    let (_, responder) = from_handler.recv().unwrap();
    responder.respond(Response::new(Status::OK, Body::reader(&b"read"[..])));
    assert_eq!(client.next(false).unwrap().body, b"read");
}

#[test]
fn a_responder_learns_that_its_client_has_disconnected() {
    let (to_test, from_handler) = handler_channel::<Responder>();
    let (server, addr) = start(1, move |_| {
        let (responder, response) = Response::later();
        to_test.lock().unwrap().send(responder).unwrap();
        response
    });
    let mut client = Reader::new(connect(addr));
    client.send(get("/"));
    let responder = from_handler.recv().unwrap();
    assert!(!responder.is_abandoned());
    // The server has not read this byte when the client resets the connection.
    client.send("x");
    let socket = socket_linger_zero(client);
    drop(socket);
    eventually("it is known", || responder.is_abandoned());
    responder.respond(Response::text(Status::OK, "for nobody"));
    eventually("it is closed", || server.connection_count() == 0);
}

/// Makes closing this connection send RST.
fn socket_linger_zero(client: Reader) -> std::net::TcpStream {
    rustix::net::sockopt::set_socket_linger(&client.stream, Some(Duration::ZERO)).unwrap();
    client.stream
}

#[test]
fn a_drain_waits_for_deferred_responses_until_its_timeout() {
    let (to_test, from_handler) = handler_channel::<Responder>();
    let (server, addr) = start(1, move |_| {
        let (responder, response) = Response::later();
        to_test.lock().unwrap().send(responder).unwrap();
        response
    });
    let server = Arc::new(server);
    let mut client = Reader::new(connect(addr));
    client.send(get("/"));
    let responder = from_handler.recv().unwrap();
    let mut other = Reader::new(connect(addr));
    other.send(get("/"));
    let forgotten = from_handler.recv().unwrap();
    let draining = Arc::clone(&server);
    let drain = std::thread::spawn(move || draining.drain(Duration::from_secs(4)));
    std::thread::sleep(Duration::from_millis(50));
    responder.respond(Response::text(Status::OK, "in time"));
    assert_eq!(client.next(false).unwrap().body, b"in time");
    drain.join().unwrap();
    assert!(forgotten.is_abandoned());
}

#[test]
fn a_body_that_waits_for_the_application_has_no_time_limit() {
    let (to_test, from_handler) = handler_channel::<Sender>();
    let service = By {
        handle: Box::new(move |_: &mut Request| {
            let (sender, body) = Body::channel();
            to_test.lock().unwrap().send(sender).unwrap();
            Response::new(Status::OK, body)
        }) as Handler,
        intake: Intake::Buffered(0),
    };
    let limits = Limits {
        stall_time: Duration::from_millis(100),
        idle_time: Duration::from_millis(100),
        ..Limits::default()
    };
    let (_server, addr) = serve(service, |builder| builder.limits(limits));
    let mut client = Reader::new(connect(addr));
    client.send(get("/"));
    let sender = from_handler.recv().unwrap();
    // Longer than several intervals between checks of the time limits.
    std::thread::sleep(Duration::from_millis(900));
    sender.send("late").unwrap();
    sender.finish();
    assert_eq!(client.next(false).unwrap().body, b"late");
}
