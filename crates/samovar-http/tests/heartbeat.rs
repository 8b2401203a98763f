#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
//! The heartbeat of a channel is sent while nothing else is, over HTTP/1.1 and HTTP/2, also if it
//! is set while the response waits, and ends with the channel.

mod support;

use std::io::Read;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use samovar_http::http::Status;
use samovar_http::{Body, Builder, Request, Response, Router, Sender, Server};
use support::{Reader, connect, h2, serve};

const INTERVAL: Duration = Duration::from_millis(300);

/// A server whose handler passes the senders of its event streams to the test.
struct Fixture {
    _server: Server<Router>,
    addr: SocketAddr,
    senders: Receiver<Sender>,
}

fn start(configure: impl FnOnce(Builder<Router>) -> Builder<Router>) -> Fixture {
    let (opened, senders) = channel();
    let opened = Arc::new(Mutex::new(opened));
    let router = Router::new().get("/", move |_: &mut Request| {
        let (sender, body) = Body::channel();
        sender.send("begun.").unwrap();
        opened.lock().unwrap().send(sender).unwrap();
        Response::new(Status::OK, body).header("Content-Type", "text/event-stream")
    });
    let (server, addr) = serve(router, configure);
    Fixture {
        _server: server,
        addr,
        senders,
    }
}

impl Fixture {
    fn ask(&self, fields: &str) -> (Reader, Sender) {
        let mut client = Reader::new(connect(self.addr));
        client.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
        (client, self.senders.recv().unwrap())
    }
}

/// Reads until the bytes that were read end with this text.
fn read_until(stream: &mut impl Read, end: &str) -> String {
    let mut read = Vec::new();
    while !read.ends_with(end.as_bytes()) {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        read.extend(byte);
    }
    String::from_utf8(read).unwrap()
}

#[test]
fn a_silent_channel_beats_until_it_ends() {
    let fixture = start(|builder| builder);
    let (mut client, sender) = fixture.ask("");
    read_until(&mut client.stream, "begun.\r\n");
    // The response waits already.
    let started = Instant::now();
    sender.beat("beat.", INTERVAL);
    for _ in 0..3 {
        read_until(&mut client.stream, "beat.\r\n");
    }
    assert!(started.elapsed() >= 3 * INTERVAL);
    sender.finish();
    assert_eq!(read_until(&mut client.stream, "0\r\n\r\n"), "0\r\n\r\n");
}

#[test]
fn a_channel_that_sends_does_not_beat() {
    let fixture = start(|builder| builder);
    let (mut client, sender) = fixture.ask("");
    // Longer than the rest of the test takes.
    sender.beat("beat.", Duration::from_secs(3600));
    sender.send("event.").unwrap();
    sender.beat("pulse.", INTERVAL);
    let text = read_until(&mut client.stream, "pulse.\r\n");
    assert!(text.contains("event.") && !text.contains("beat."), "{text}");
}

#[test]
fn a_compressed_channel_beats() {
    let fixture = start(Builder::compression);
    let (mut client, sender) = fixture.ask("Accept-Encoding: gzip\r\n");
    sender.beat("beat.", INTERVAL);
    let head = read_until(&mut client.stream, "\r\n\r\n");
    assert!(head.contains("gzip"), "{head}");
    // Each heartbeat is at least one chunk.
    for _ in 0..5 {
        let size = read_until(&mut client.stream, "\r\n");
        let size = u64::from_str_radix(size.trim_end(), 16).unwrap();
        assert!(size > 0);
        let mut chunk = client.stream.by_ref().take(size + 2);
        std::io::copy(&mut chunk, &mut std::io::sink()).unwrap();
    }
}

#[test]
fn a_stream_of_http2_beats() {
    let fixture = start(|builder| builder);
    let mut client = h2::Client::connect(fixture.addr);
    let (mut response, _) = client.start(h2::get("/"), true);
    let mut body = client.head(&mut response).unwrap().into_body();
    let sender = fixture.senders.recv().unwrap();
    let mut next = || client.data(&mut body).unwrap().unwrap();
    assert_eq!(next(), "begun.");
    sender.beat("beat.", INTERVAL);
    for _ in 0..3 {
        assert_eq!(next(), "beat.");
    }
    sender.finish();
    assert!(client.data(&mut body).is_none());
}
