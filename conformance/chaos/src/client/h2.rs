//! HTTP/2 client with and without TLS: concurrent streams, some of which it resets.

use std::future::Future;
use std::io;
use std::net::TcpStream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use h2::client::{Builder, Connection, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream};
use rustls::ClientConfig;
use testkit::http2::{Socket, handshake as handshake_h2};

use super::anything;
use super::connection::{handshake, pending, silent};
use crate::ask::{Ask, End, Outcome, What};
use crate::oracle::check;
use crate::timeline::Moment;
use crate::world::{ANSWER_TIME, World, lock};
use testkit::random::SplitMix64;

/// An HTTP/2 stream, and what was received on it so far.
struct Stream {
    ask: Ask,
    outcome: Outcome,
    head: ResponseFuture,
    body: Option<RecvStream>,
    /// If set, the client resets the stream after this many bytes of the body.
    leave_at: Option<usize>,
    is_done: bool,
}

/// Sends random requests on concurrent streams until the run ends.
pub(crate) fn run(world: &World, name: &str, tls: Option<&Arc<ClientConfig>>) -> Result<()> {
    let mut random = SplitMix64::for_actor(world.seed, name);
    let via = if tls.is_some() {
        "HTTP/2, TLS"
    } else {
        "HTTP/2"
    };
    while world.goes_on() {
        let sent = world.now();
        match connect(world, tls) {
            Ok((send, connection)) => talk(world, &mut random, via, send, connection),
            Err(error) => {
                check(
                    world,
                    &Ask::of(What::Info),
                    &silent(world, via, sent, &error),
                );
                world.pause(20);
            }
        }
    }
    Ok(())
}

type Connected = (SendRequest<Bytes>, Connection<Socket, Bytes>);

fn connect(world: &World, tls: Option<&Arc<ClientConfig>>) -> io::Result<Connected> {
    let addresses = *lock(&world.addresses);
    let none = || io::Error::other("no address");
    let socket = match tls {
        None => {
            let stream = TcpStream::connect(addresses.plain.ok_or_else(none)?)?;
            stream.set_nonblocking(true)?;
            Socket::new(stream)
        }
        Some(config) => {
            let began = world.now();
            let stream = TcpStream::connect(addresses.tls.ok_or_else(none)?)?;
            stream.set_read_timeout(Some(ANSWER_TIME * 2))?;
            let stream = handshake(world, stream, began, config)?;
            stream.sock.set_nonblocking(true)?;
            Socket::new(stream)
        }
    };
    handshake_h2(socket, &Builder::new(), ANSWER_TIME)
}

fn talk(
    world: &World,
    random: &mut SplitMix64,
    via: &'static str,
    mut send: SendRequest<Bytes>,
    mut connection: Connection<Socket, Bytes>,
) {
    let mut context = Context::from_waker(Waker::noop());
    let mut streams: Vec<Stream> = Vec::new();
    let mut left = 1 + random.index(80);
    let mut ended: Option<String> = None;
    while ended.is_none() && (left > 0 || !streams.is_empty()) {
        if let Poll::Ready(end) = Pin::new(&mut connection).poll(&mut context) {
            ended = Some(
                end.err()
                    .map_or("closed".to_owned(), |error| error.to_string()),
            );
        }
        let may_start = left > 0 && streams.len() < 8 && world.goes_on();
        if may_start && let Poll::Ready(ready) = send.poll_ready(&mut context) {
            left -= 1;
            match ready.and_then(|()| start(world, random, via, &mut send)) {
                Ok(stream) => streams.push(stream),
                Err(_) => left = 0,
            }
        } else if !world.goes_on() {
            left = 0;
        }
        let mut has_moved = false;
        for stream in &mut streams {
            has_moved |= stream.step(world, &mut context);
        }
        streams.retain(|stream| !stream.is_done);
        if !has_moved {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    let how = ended.unwrap_or_else(|| "closed".to_owned());
    for stream in &mut streams {
        // Read what was received before the connection ended.
        while !stream.is_done && stream.step(world, &mut context) {}
        if !stream.is_done {
            stream.end(world, Some(&how));
        }
    }
}

fn start(
    world: &World,
    random: &mut SplitMix64,
    via: &'static str,
    send: &mut SendRequest<Bytes>,
) -> Result<Stream, h2::Error> {
    let mut ask = anything(world, random);
    if matches!(ask.what, What::Narinfos(_)) {
        // Request another resource: a body in the request would need flow control, which other
        // tests cover.
        ask.what = What::Info;
    }
    let mut request = http::Request::builder()
        .method(ask.method())
        .uri(format!("http://localhost{}", ask.target()));
    for (name, value) in ask.fields() {
        request = request.header(name, value);
    }
    let request = request.body(()).map_err(|_error| Reason::INTERNAL_ERROR)?;
    let sent = world.now();
    let (head, _) = send.send_request(request, true)?;
    Ok(Stream {
        ask,
        outcome: pending(world, via, sent),
        head,
        body: None,
        leave_at: random.percent(10).then(|| random.index(200_000)),
        is_done: false,
    })
}

impl Stream {
    /// Reads the data that is available on the stream. Returns whether there was any.
    fn step(&mut self, world: &World, context: &mut Context<'_>) -> bool {
        let Some(body) = &mut self.body else {
            return self.head(world, context);
        };
        match body.poll_data(context) {
            Poll::Ready(Some(Ok(bytes))) => {
                // This fails only if the connection fails, which is reported below.
                body.flow_control().release_capacity(bytes.len()).ok();
                self.outcome.body.extend_from_slice(&bytes);
                let len = self.outcome.body.len();
                if self.leave_at.is_some_and(|leave_at| len >= leave_at) {
                    self.outcome.end = End::Left;
                    self.end(world, None);
                }
                true
            }
            Poll::Ready(Some(Err(error))) => {
                self.end(world, Some(&error.to_string()));
                true
            }
            Poll::Ready(None) => {
                self.outcome.end = End::Whole;
                self.end(world, None);
                true
            }
            Poll::Pending => self.wait(world),
        }
    }

    fn head(&mut self, world: &World, context: &mut Context<'_>) -> bool {
        match Pin::new(&mut self.head).poll(context) {
            Poll::Ready(Ok(response)) => {
                let (head, body) = response.into_parts();
                self.outcome.head_at = world.now();
                self.outcome.status = head.status.as_u16();
                let fields = head.headers.iter().map(|(name, value)| {
                    let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
                    (name.as_str().to_owned(), value)
                });
                self.outcome.fields = fields.collect();
                self.body = Some(body);
                true
            }
            Poll::Ready(Err(error)) => {
                self.end(world, Some(&error.to_string()));
                true
            }
            Poll::Pending => self.wait(world),
        }
    }

    /// Ends the stream if nothing was received for too long.
    fn wait(&mut self, world: &World) -> bool {
        let time = u64::try_from(ANSWER_TIME.as_micros()).unwrap_or(Moment::MAX);
        if world.now() - self.outcome.sent > 3 * time {
            self.end(world, Some("nothing comes"));
        }
        false
    }

    fn end(&mut self, world: &World, broken: Option<&str>) {
        let outcome = &mut self.outcome;
        outcome.end_at = world.now();
        if outcome.head_at == 0 {
            outcome.head_at = outcome.end_at;
        }
        if let Some(how) = broken {
            outcome.end = match self.body {
                Some(_) => End::Cut(how.to_owned()),
                None => End::Silent(how.to_owned()),
            };
        }
        self.is_done = true;
        check(world, &self.ask, outcome);
    }
}
