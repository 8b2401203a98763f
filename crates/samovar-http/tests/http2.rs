//! Handlers and bodies behave the same over HTTP/2 as over HTTP/1.1.

mod support;

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use samovar_http::Response;
use samovar_http::http::Status;
use support::h2::{Client, get, post};
use support::h2_app::{start_default, wait_until};

#[test]
fn responses_of_all_kinds() {
    let (_server, addr) = start_default();
    let mut client = Client::connect(addr);
    let inline = client.ask(get("/inline"));
    assert_eq!((inline.status(), inline.text()), (200, "ready"));
    assert_eq!(inline.header("x-inline"), Some("yes"));
    assert_eq!(inline.header("content-length"), Some("5"));
    assert!(inline.header("date").is_some() && inline.header("connection").is_none());
    let missing = client.ask(get("/missing"));
    assert_eq!((missing.status(), missing.text()), (404, "nothing here"));
    let file = client.ask(get("/file"));
    assert_eq!(file.body, std::fs::read("Cargo.toml").unwrap());
    assert_eq!(client.ask(get("/shared")).body, vec![b's'; 300_000]);
    let pattern = client.ask(get("/pattern/3000000"));
    assert_eq!(pattern.header("content-length"), Some("3000000"));
    assert_eq!(pattern.body, vec![b'p'; 3_000_000]);
    let empty = client.ask(get("/pattern/0"));
    assert_eq!((empty.status(), empty.body.len()), (200, 0));
    let read = client.ask(get("/reader"));
    assert_eq!(
        (read.body.len(), read.header("content-length")),
        (1_000_000, None)
    );
}

#[test]
fn responses_without_a_body() {
    let (_server, addr) = start_default();
    let mut client = Client::connect(addr);
    for path in ["/inline", "/pattern/5"] {
        let mut request = get(path);
        *request.method_mut() = http::Method::HEAD;
        let answer = client.ask(request);
        assert_eq!(answer.header("content-length"), Some("5"));
        assert!(answer.body.is_empty());
    }
    for path in ["/status/204", "/status/304"] {
        let answer = client.ask(get(path));
        assert_eq!(answer.header("content-length"), None);
        assert!(answer.body.is_empty());
    }
}

#[test]
fn a_handler_gets_the_same_request_as_over_http_1() {
    let (_server, addr) = start_default();
    let mut client = Client::connect(addr);
    let mut request = get("/see?a=b");
    for (name, value) in [("cookie", "a=1"), ("cookie", "b=2"), ("x-b", "c")] {
        request.headers_mut().append(name, value.parse().unwrap());
    }
    let answer = client.ask(request);
    assert_eq!(answer.text(), "a=b host=a.example cookie=a=1; b=2 x-b=c");
}

#[test]
fn buffered_and_streamed_request_bodies() {
    let (server, addr) = start_default();
    let mut client = Client::connect(addr);
    let (future, mut send) = client.start(post("/echo"), false);
    let sent = Bytes::from(
        (0..900_000_u32)
            .map(|i| i.to_le_bytes()[0])
            .collect::<Vec<_>>(),
    );
    client.write(&mut send, sent.clone(), true);
    assert_eq!(client.whole(future).unwrap().body, sent);

    let (future, mut send) = client.start(post("/count"), false);
    client.write(&mut send, vec![7; 20_000_000].into(), false);
    send.send_trailers(http::HeaderMap::new()).unwrap();
    assert_eq!(client.whole(future).unwrap().text(), "Some(20000000)");

    // The handler does not read, so the client can send only as much as the window allows.
    let (future, mut send) = client.start(post("/gated-count"), false);
    wait_until("it has started", || {
        server.service().started.load(Ordering::SeqCst) == 1
    });
    send.reserve_capacity(1 << 20);
    let mut len = 0;
    let mut wait = testkit::PATIENCE;
    while let Some(granted) = client.drive_for(wait, |context| match send.capacity() {
        0 => send.poll_capacity(context).map(|len| len.unwrap().unwrap()),
        len => std::task::Poll::Ready(len),
    }) {
        send.send_data(vec![1; granted].into(), false).unwrap();
        len += granted;
        assert!(len <= 256 * 1024, "more than the window");
        if len == 256 * 1024 {
            wait = Duration::from_millis(300);
        }
    }
    assert_eq!(len, 256 * 1024);
    server.service().gate.open();
    client.write(&mut send, vec![1; 500_000].into(), true);
    assert_eq!(
        client.whole(future).unwrap().text(),
        (len + 500_000).to_string()
    );
}

#[test]
fn an_unread_request_body_does_not_delay_the_response() {
    let (_server, addr) = start_default();
    let mut client = Client::connect(addr);
    let (future, mut send) = client.start(post("/half"), false);
    client.write(&mut send, b"half a body".as_slice().into(), false);
    assert_eq!(client.whole(future).unwrap().text(), "half");
    // RFC 9113, 8.1: the server stops receiving the request "with an error code of NO_ERROR".
    let reason = client.drive(|context| send.poll_reset(context));
    assert_eq!(reason.unwrap(), Reason::NO_ERROR);
    assert_eq!(client.ask(get("/inline")).status(), 200);
}

#[test]
fn a_request_body_past_the_limit_is_refused() {
    let (_server, addr) = start_default();
    let mut client = Client::connect(addr);
    let (future, mut send) = client.start(post("/limited"), false);
    client.write(&mut send, b"0123456789".as_slice().into(), true);
    assert_eq!(client.whole(future).unwrap().status(), 404);
    let (future, mut send) = client.start(post("/limited"), false);
    client.write(&mut send, b"0123456789x".as_slice().into(), false);
    assert_eq!(client.whole(future).unwrap().status(), 413);
    let mut request = post("/limited");
    request
        .headers_mut()
        .insert("content-length", "11".parse().unwrap());
    request
        .headers_mut()
        .insert("expect", "100-continue".parse().unwrap());
    let (mut future, _send) = client.start(request, false);
    let interim = client.drive(|context| future.poll_informational(context));
    assert!(
        interim.is_none(),
        "it is not asked for a body that is refused"
    );
    assert_eq!(client.whole(future).unwrap().status(), 413);
    assert_eq!(client.ask(get("/inline")).status(), 200);
}

#[test]
fn expected_bodies_are_requested_with_100_continue() {
    let (_server, addr) = start_default();
    let mut client = Client::connect(addr);
    for path in ["/echo", "/count"] {
        let mut request = post(path);
        request
            .headers_mut()
            .insert("expect", "100-continue".parse().unwrap());
        let (mut future, mut send) = client.start(request, false);
        let interim = client.drive(|context| future.poll_informational(context));
        assert_eq!(interim.unwrap().unwrap().status(), 100);
        client.write(&mut send, b"body".as_slice().into(), true);
        assert_eq!(client.whole(future).unwrap().status(), 200);
    }
}

#[test]
fn deferred_responses_and_channels() {
    let (server, addr) = start_default();
    let mut client = Client::connect(addr);
    let (later, _) = client.start(get("/later"), true);
    let (mut channel, _) = client.start(get("/channel"), true);
    let mut events = client.head(&mut channel).unwrap().into_body();
    let sender = server.service().sender.lock().unwrap().take().unwrap();
    // Other streams are served while this one waits for its channel.
    assert_eq!(client.ask(get("/missing")).status(), 404);
    for event in ["one", "two"] {
        sender.send(event).unwrap();
        assert_eq!(client.data(&mut events).unwrap().unwrap(), event);
    }
    let mut responder = None;
    wait_until("it is promised", || {
        server.service().responder.lock().unwrap().is_some()
    });
    std::mem::swap(
        &mut responder,
        &mut server.service().responder.lock().unwrap(),
    );
    responder
        .unwrap()
        .respond(Response::text(Status::OK, "at last"));
    assert_eq!(client.whole(later).unwrap().text(), "at last");
    sender.finish();
    assert!(client.data(&mut events).is_none());

    let (later, mut send) = client.start(get("/later"), true);
    wait_until("it is promised", || {
        server.service().responder.lock().unwrap().is_some()
    });
    let responder = server.service().responder.lock().unwrap().take().unwrap();
    assert!(!responder.is_abandoned());
    drop(later);
    send.send_reset(Reason::CANCEL);
    client.drive_for(Duration::ZERO, |_| std::task::Poll::<()>::Pending);
    wait_until("it is abandoned", || responder.is_abandoned());
}

#[test]
fn a_panic_or_failed_body_ends_only_its_stream() {
    let (server, addr) = start_default();
    let mut client = Client::connect(addr);
    for path in ["/panic", "/inline-panic"] {
        assert_eq!(client.ask(get(path)).status(), 500);
    }
    // No byte of the response was sent, so a 503 can replace it.
    assert_eq!(client.ask(get("/fails")).status(), 503);
    let (future, _) = client.start(get("/short"), true);
    let answer = client.whole(future);
    // The body is too short. The server may detect that before or after sending the head.
    match answer {
        Ok(answer) => assert_eq!(answer.status(), 503),
        Err(error) => assert_eq!(error.reason(), Some(Reason::INTERNAL_ERROR)),
    }
    assert_eq!(client.ask(get("/inline")).status(), 200);
    let reports = server.service().reports.lock().unwrap().join("\n");
    assert!(
        reports.contains("handler panicked on GET /panic"),
        "{reports}"
    );
    assert!(
        reports.contains("503 in place of a response: failed on purpose"),
        "{reports}"
    );
}

#[test]
fn a_stream_that_is_not_read_delays_no_other() {
    let (server, addr) = start_default();
    let mut client = Client::connect(addr);
    let mut slow = Vec::new();
    // More streams than workers, and more than the connection's buffer budget allows.
    for _ in 0..20 {
        let (mut future, _) = client.start(get("/pattern/50000000"), true);
        slow.push(client.head(&mut future).unwrap().into_body());
        // The streams with open windows share the connection's window.
        let window = slow.last_mut().unwrap().flow_control();
        assert!(window.used_capacity() <= 65535);
    }
    let mut other = Client::connect(addr);
    for _ in 0..20 {
        assert_eq!(other.ask(get("/missing")).status(), 404);
    }
    drop(slow);
    assert_eq!(client.ask(get("/pattern/100000")).body.len(), 100_000);
    drop(client);
    wait_until("the connection is gone", || server.connection_count() == 1);
    wait_until("no buffer stays", || server.load().body_memory_len == 0);
}

#[test]
fn many_streams_at_once() {
    let (_server, addr) = start_default();
    // One stream's unread data must not block the other streams.
    let mut builder = h2::client::Builder::new();
    builder
        .initial_connection_window_size(1 << 30)
        .initial_window_size(1 << 21);
    let mut client = Client::configured(addr, &builder);
    let paths = [
        "/inline",
        "/missing",
        "/pattern/200000",
        "/reader",
        "/shared",
    ];
    let futures: Vec<_> = (0..100)
        .map(|i| client.start(get(paths[i % paths.len()]), true).0)
        .collect();
    for (i, future) in futures.into_iter().enumerate() {
        let len = [5, 12, 200_000, 1_000_000, 300_000][i % paths.len()];
        assert_eq!(client.whole(future).unwrap().body.len(), len);
    }
}
