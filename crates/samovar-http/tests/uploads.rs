//! Handlers read bodies of any size as they arrive, in constant memory. Slow clients occupy no
//! worker, and if a client fails, the handler gets an error.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it only inside functions marked as tests"
)]

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use samovar_http::http::Status;
use samovar_http::{BodyError, Intake, Limits, Request, Response, lend_slot};
use support::{By, Reader, connect, eventually, serve};

/// Responds with the length and the sum of the body's bytes, or with the error that ended the body.
/// For `/ignore` it does not read the body.
fn count(request: &mut Request) -> Response {
    if request.head().path() == b"/ignore" {
        return Response::text(Status::OK, "ignored");
    }
    let (mut len, mut sum) = (0_u64, 0_u64);
    let mut piece = vec![0; 10_000];
    let mut reader = request.reader();
    loop {
        match reader.read(&mut piece) {
            Ok(0) => return Response::text(Status::OK, format!("{len} {sum}")),
            Ok(taken) => {
                len += taken as u64;
                sum += piece[..taken]
                    .iter()
                    .map(|byte| u64::from(*byte))
                    .sum::<u64>();
            }
            Err(error) => {
                let error = BodyError::of(&error).expect("every error says why");
                return Response::text(error.status(), error.to_string());
            }
        }
    }
}

fn streaming(len_max: u64) -> By<fn(&mut Request) -> Response> {
    By {
        handle: count,
        intake: Intake::Streamed(len_max),
    }
}

fn post(path: &str, fields: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n")
}

#[test]
fn bodies_of_all_framings_end_where_the_next_request_starts() {
    let (_server, addr) = serve(streaming(1_000_000), |builder| builder);
    let mut client = Reader::new(connect(addr));
    let long = format!("2710;ext=1\r\n{}\r\n", "x".repeat(10_000));
    for (fields, body, expected) in [
        ("Content-Length: 0", String::new(), "0 0"),
        ("Content-Length: 3", "aaa".into(), "3 291"),
        ("Transfer-Encoding: chunked", "0\r\n\r\n".into(), "0 0"),
        (
            "Transfer-Encoding: chunked",
            "1\r\na\r\n2\r\naa\r\n0\r\nX-Sum: 1\r\n\r\n".into(),
            "3 291",
        ),
        (
            "Transfer-Encoding: chunked",
            format!("{}0\r\n\r\n", long.repeat(9)),
            "90000 10800000",
        ),
    ] {
        // The message is sent at once, in two parts, and, if it is short, byte by byte.
        let message = format!("{}{body}", post("/", fields));
        let middle = message.len() - body.len() / 2;
        client.send(&message);
        client.send(&message[..middle]);
        client.send(&message[middle..]);
        let mut count = 2;
        if body.len() < 100 {
            client.stream.set_nodelay(true).unwrap();
            for byte in message.as_bytes() {
                client.send([*byte]);
            }
            count += 1;
        }
        for _ in 0..count {
            let answer = client.next(false).unwrap();
            assert_eq!(answer.status, 200);
            assert_eq!(String::from_utf8(answer.body).unwrap(), expected);
        }
    }
}

#[test]
fn the_first_read_sends_100_continue() {
    let (_server, addr) = serve(streaming(1_000_000), |builder| builder);
    let fields = "Content-Length: 2\r\nExpect: 100-continue";
    let mut client = Reader::new(connect(addr));
    client.send(post("/", fields));
    assert_eq!(client.next(false).unwrap().status, 100);
    client.send("aa");
    assert_eq!(client.next(false).unwrap().body, b"2 194");
    // If the handler does not read the body, the connection closes, because the start of the next
    // request is unknown.
    client.send(post("/ignore", fields));
    let answer = client.next(false).unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("connection"), Some("close"));
    client.expect_end();
}

#[test]
fn a_short_unread_rest_is_discarded() {
    let (_server, addr) = serve(streaming(u64::MAX), |builder| builder);
    let mut client = Reader::new(connect(addr));
    for (len, is_kept) in [(65_536, true), (65_537, false)] {
        client.send(post("/ignore", &format!("Content-Length: {len}")));
        let answer = client.next(false).unwrap();
        assert_eq!(answer.body, b"ignored");
        assert_eq!(answer.header("connection").is_none(), is_kept, "{len}");
        client.send(vec![b'x'; len]);
    }
    client.expect_end();
}

#[test]
fn a_body_one_byte_past_the_limit_fails() {
    let (_server, addr) = serve(streaming(5), |builder| builder);
    for (fields, body, status) in [
        ("Content-Length: 5", "aaaaa", 200),
        ("Content-Length: 6", "aaaaaa", 413),
        ("Transfer-Encoding: chunked", "5\r\naaaaa\r\n0\r\n\r\n", 200),
        (
            "Transfer-Encoding: chunked",
            "5\r\naaaaa\r\n1\r\na\r\n0\r\n\r\n",
            413,
        ),
    ] {
        let mut client = Reader::new(connect(addr));
        client.send(post("/", fields));
        client.send(body);
        let answer = client.next(false).unwrap();
        assert_eq!(answer.status, status, "{fields} {body}");
        if status == 413 {
            client.expect_end();
        }
    }
}

#[test]
fn a_malformed_body_is_a_client_error() {
    let (_server, addr) = serve(streaming(1000), |builder| builder);
    let mut client = Reader::new(connect(addr));
    client.send(post("/", "Transfer-Encoding: chunked"));
    client.send("1\r\na\r\nnonsense\r\n");
    assert_eq!(client.next(false).unwrap().status, 400);
    client.expect_end();

    let mut client = Reader::new(connect(addr));
    client.send(post("/", "Content-Length: 10"));
    client.send("half");
    client.stream.shutdown(Shutdown::Write).unwrap();
    let answer = client.next(false).unwrap();
    assert_eq!(answer.status, 400);
    assert_eq!(answer.body, b"request body is incomplete");
    client.expect_end();
}

#[test]
fn slow_uploads_do_not_delay_other_clients() {
    let limits = Limits {
        waiting_handlers_max: 3,
        // None of the slow uploads makes room.
        rest_time_min: Duration::MAX,
        ..Limits::default()
    };
    let (server, addr) = serve(streaming(1000), |builder| builder.workers(1).limits(limits));
    let mut dawdlers: Vec<Reader> = (0..3)
        .map(|_| {
            let mut client = Reader::new(connect(addr));
            client.send(post("/", "Content-Length: 4"));
            client.send("aa");
            client
        })
        .collect();
    eventually("all wait", || server.load().waiting_count == 3);
    for _ in 0..20 {
        let mut client = Reader::new(connect(addr));
        client.send("GET /ignore HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.next(false).unwrap().body, b"ignored");
    }
    // All slots for waiting handlers are in use, and another waiting handler would occupy the
    // worker.
    let mut client = Reader::new(connect(addr));
    client.send(post("/", "Content-Length: 4"));
    let answer = client.next(false).unwrap();
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("retry-after"), Some("1"));
    for client in &mut dawdlers {
        client.send("aa");
        assert_eq!(client.next(false).unwrap().body, b"4 388");
    }
    eventually("nobody waits", || server.load().waiting_count == 0);
}

/// Waits for the flag on `/wait`, where it ignores the body, and sets it on other paths.
fn flag(is_set: &AtomicUsize, request: &mut Request) -> Response {
    if request.head().path() != b"/wait" {
        is_set.store(1, Ordering::Release);
        return Response::text(Status::OK, "set");
    }
    let waited = request.reader().wait(|time| {
        assert!(time > Duration::ZERO);
        std::thread::yield_now();
        is_set.load(Ordering::Acquire) == 1
    });
    match waited {
        Ok(()) => Response::text(Status::OK, "waited"),
        Err(error) => Response::text(
            BodyError::of(&error).map_or(Status::OK, BodyError::status),
            "stopped",
        ),
    }
}

#[test]
fn a_handler_that_waits_for_other_requests_occupies_no_worker() {
    let is_set = AtomicUsize::new(0);
    let handle = move |request: &mut Request| flag(&is_set, request);
    let intake = Intake::Streamed(1000);
    let (_server, addr) = serve(By { handle, intake }, |builder| builder.workers(1));
    let mut waiting = Reader::new(connect(addr));
    waiting.send(post("/wait", "Content-Length: 4"));
    let mut other = Reader::new(connect(addr));
    other.send("GET /set HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(other.next(false).unwrap().body, b"set");
    assert_eq!(waiting.next(false).unwrap().body, b"waited");
}

#[test]
fn a_handler_that_lends_its_slot_while_it_blocks_occupies_no_worker() {
    let is_set = Arc::new(AtomicUsize::new(0));
    let handle = move |request: &mut Request| {
        if request.head().path() != b"/wait" {
            return flag(&is_set, request);
        }
        // A wait inside another one, of either kind, lends no second slot.
        lend_slot(|| {
            lend_slot(|| ());
            while is_set.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
        });
        request.reader().wait(|_| lend_slot(|| true)).unwrap();
        Response::text(Status::OK, "waited")
    };
    let intake = Intake::Streamed(1000);
    let (server, addr) = serve(By { handle, intake }, |builder| builder.workers(1));
    let mut waiting: Vec<_> = (0..20).map(|_| Reader::new(connect(addr))).collect();
    for client in &mut waiting {
        client.send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    eventually("all wait", || server.load().waiting_count == waiting.len());
    let mut other = Reader::new(connect(addr));
    other.send("GET /set HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(other.next(false).unwrap().body, b"set");
    for client in &mut waiting {
        assert_eq!(client.next(false).unwrap().body, b"waited");
    }
    eventually("all slots are free", || {
        let load = server.load();
        load.waiting_count == 0 && load.running_count == 0
    });
    // On a thread that is no worker, only the function is called.
    assert_eq!(lend_slot(|| 1), 1);
}

#[test]
fn a_stopping_server_does_not_wait_for_a_handler_that_waits() {
    let is_set = AtomicUsize::new(0);
    let handle = move |request: &mut Request| flag(&is_set, request);
    let intake = Intake::Streamed(1000);
    let (server, addr) = serve(By { handle, intake }, |builder| builder);
    let mut client = Reader::new(connect(addr));
    client.send(post("/wait", "Content-Length: 4"));
    eventually("it waits", || server.load().waiting_count == 1);
    let started = Instant::now();
    drop(server);
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_stalled_body_times_out() {
    let limits = Limits {
        stall_time: Duration::from_secs(2),
        stall_len_min: 10,
        ..Limits::default()
    };
    let (server, addr) = serve(streaming(1000), |builder| builder.limits(limits));
    let mut client = Reader::new(connect(addr));
    client.send(post("/", "Content-Length: 1000"));
    eventually("it waits", || server.load().waiting_count == 1);
    // Enough bytes for the minimum throughput in this window, but not in the next.
    let started = Instant::now();
    client.send([b'a'; 10]);
    let answer = client.next(false).unwrap();
    assert_eq!(answer.status, 408);
    let waited = started.elapsed();
    assert!(waited >= Duration::from_secs(2), "after {waited:?}");
    client.expect_end();
}

#[test]
fn a_stall_in_a_discarded_rest_causes_no_second_response() {
    let limits = Limits {
        stall_time: Duration::from_millis(200),
        ..Limits::default()
    };
    let (_server, addr) = serve(streaming(1000), |builder| builder.limits(limits));
    let mut client = Reader::new(connect(addr));
    client.send(post("/ignore", "Content-Length: 1000"));
    assert_eq!(client.next(false).unwrap().body, b"ignored");
    client.expect_end();
}

#[test]
fn a_stop_does_not_wait_for_a_body() {
    let (started_sender, started_receiver) = channel();
    let handle = move |request: &mut Request| {
        started_sender.send(()).unwrap();
        count(request)
    };
    let intake = Intake::Streamed(1000);
    let (server, addr) = serve(By { handle, intake }, |builder| builder);
    let mut client = Reader::new(connect(addr));
    client.send(post("/", "Content-Length: 10"));
    started_receiver.recv().unwrap();
    let started = Instant::now();
    drop(server);
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn the_slowest_upload_of_a_crowd_makes_room_for_another() {
    let limits = Limits {
        waiting_handlers_max: 4,
        rest_time_min: Duration::from_millis(20),
        ..Limits::default()
    };
    let (server, addr) = serve(streaming(1000), |builder| builder.workers(1).limits(limits));
    // Each of them sends enough not to be disconnected, and none ends.
    let mut crowd: Vec<Reader> = (0..4)
        .map(|_| {
            let mut client = Reader::new(connect(addr));
            client.send(post("/", "Content-Length: 900"));
            client
        })
        .collect();
    eventually("all wait", || server.load().waiting_count == 4);
    for round in 0..3 {
        eventually("an upload is answered", || {
            for client in &mut crowd[round..] {
                client.send("a");
            }
            let mut client = Reader::new(connect(addr));
            client.send(post("/", "Content-Length: 4"));
            client.send("aaaa");
            match client.next(false).unwrap().status {
                200 => true,
                status => {
                    assert_eq!(status, 503);
                    false
                }
            }
        });
    }
    eventually("one has made room", || server.load().waiting_count < 4);
}

#[test]
fn new_uploads_of_one_address_leave_half_of_the_places_to_others() {
    let limits = Limits {
        waiting_handlers_max: 4,
        // No upload of this test waits for five times as long.
        rest_time_min: Duration::from_secs(3600),
        ..Limits::default()
    };
    let (server, addr) = serve(streaming(1000), |builder| builder.limits(limits));
    let crowd: Vec<Reader> = (0..4)
        .map(|_| {
            let mut client = Reader::new(connect(addr));
            client.send(post("/", "Content-Length: 900"));
            client
        })
        .collect();
    eventually("all wait", || server.load().waiting_count == 4);
    let upload = |mut client: Reader| {
        client.send(post("/", "Content-Length: 4"));
        client.send("aaaa");
        client.next(false).unwrap().status
    };
    assert_eq!(upload(Reader::new(connect(addr))), 503);
    for _ in 0..2 {
        assert_eq!(
            upload(Reader::over(connect_from([127, 0, 0, 2], addr))),
            200
        );
    }
    eventually("two are left", || server.load().waiting_count == 2);
    drop(crowd);
}

/// Connects from this address of the loopback interface.
fn connect_from(own: [u8; 4], addr: SocketAddr) -> TcpStream {
    use socket2::{Domain, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((own, 0)).into()).unwrap();
    socket.connect(&addr.into()).unwrap();
    socket.into()
}

#[test]
fn all_buffered_bodies_together_have_a_memory_limit() {
    let service = By {
        handle: count,
        intake: Intake::Buffered(100),
    };
    let limits = Limits {
        request_memory_max: 100,
        ..Limits::default()
    };
    let (server, addr) = serve(service, |builder| builder.limits(limits));
    let mut first = Reader::new(connect(addr));
    first.send(post("/", "Content-Length: 61"));
    first.send([1; 60]);
    eventually("it is held", || server.load().request_memory_len == 60);
    let mut second = Reader::new(connect(addr));
    second.send(post("/", "Content-Length: 40"));
    second.send([1; 40]);
    assert_eq!(second.next(false).unwrap().body, b"40 40");
    second.send(post("/", "Content-Length: 41"));
    second.send([1; 41]);
    let answer = second.next(false).unwrap();
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("retry-after"), Some("1"));
    second.expect_end();
    first.send([1]);
    assert_eq!(first.next(false).unwrap().body, b"61 61");
    eventually("all is given back", || {
        server.load().request_memory_len == 0
    });
}

#[test]
fn a_reader_yields_a_buffered_body() {
    let service = By {
        handle: count,
        intake: Intake::Buffered(100_000),
    };
    let (_server, addr) = serve(service, |builder| builder);
    let mut client = Reader::new(connect(addr));
    client.send(post("/", "Content-Length: 50000"));
    client.send([1_u8; 50_000]);
    assert_eq!(client.next(false).unwrap().body, b"50000 50000");
}

/// A response that blocks on the socket continues when the socket is writable again. It ends
/// whether or not the request body was read.
#[test]
fn a_blocked_response_to_an_unread_body_is_completed() {
    const COUNT: usize = 300;
    let handled = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&handled);
    let handle = move |_: &mut Request| {
        counter.fetch_add(1, Ordering::Relaxed);
        Response::text(Status::OK, "x".repeat(60_000))
    };
    let intake = Intake::Streamed(1000);
    let (_server, addr) = serve(By { handle, intake }, |builder| builder);
    let mut client = Reader::new(connect(addr));
    client.send(format!("{}abc", post("/", "Content-Length: 3")).repeat(COUNT));
    // Once the counters no longer change, a response is blocked.
    let (mut seen, mut since) = (0, Instant::now());
    eventually("it blocks", || {
        let now = handled.load(Ordering::Relaxed);
        if now == 0 || now != seen {
            (seen, since) = (now, Instant::now());
        }
        since.elapsed() > Duration::from_millis(200)
    });
    assert!(seen < COUNT, "nothing blocked");
    for _ in 0..COUNT {
        assert_eq!(client.next(false).unwrap().body.len(), 60_000);
    }
    assert_eq!(handled.load(Ordering::Relaxed), COUNT);
}

#[test]
fn a_body_that_arrives_byte_by_byte_times_out() {
    let limits = Limits {
        stall_time: Duration::from_millis(400),
        stall_len_min: 1000,
        ..Limits::default()
    };
    let (_server, addr) = serve(streaming(100_000), |builder| builder.limits(limits));
    let mut client = Reader::new(connect(addr));
    client.send(post("/", "Content-Length: 100000"));
    let mut drip = client.stream.try_clone().unwrap();
    let dripping = std::thread::spawn(move || {
        // The client sends bytes more often than the waiting handler checks its time limit.
        while drip.write_all(b"a").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let answer = client.next(false).unwrap();
    assert_eq!(answer.status, 408);
    drop(client);
    dripping.join().unwrap();
}

#[test]
fn a_second_read_of_a_refused_body_fails_as_well() {
    let handle = |request: &mut Request| {
        let mut reader = request.reader();
        let mut all = Vec::new();
        let first = reader.read_to_end(&mut all).map_err(|error| error.kind());
        let second = reader.read_to_end(&mut all).map_err(|error| error.kind());
        Response::text(Status::OK, format!("{first:?} {second:?}"))
    };
    let intake = Intake::Streamed(1000);
    let (_server, addr) = serve(By { handle, intake }, |builder| builder);
    for (body, kind) in [
        ("1\r\na\r\nno size\r\n".to_owned(), "InvalidData"),
        (format!("3e9\r\n{}", "a".repeat(1001)), "FileTooLarge"),
    ] {
        let mut client = Reader::new(connect(addr));
        client.send(post("/", "Transfer-Encoding: chunked") + &body);
        let answer = String::from_utf8(client.next(false).unwrap().body).unwrap();
        assert_eq!(answer, format!("Err({kind}) Err({kind})"));
    }
}
