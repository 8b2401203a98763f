#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test helper fails by panicking"
)]
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file is a crate of its own and uses a part"
)]
//! Clients of HTTP/2: the `h2` crate's, polled by hand, and one that writes frames by hand.

use std::future::Future;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{Builder, Connection, ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Longer than anything takes, so that a hang fails a test.
const PATIENCE: Duration = Duration::from_secs(20);

/// A socket that says "not now" instead of blocking.
pub(crate) struct Socket(TcpStream);

fn not_now<T>(result: io::Result<T>) -> Poll<io::Result<T>> {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Poll::Pending,
        other => Poll::Ready(other),
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = [0; 65536];
        let len = room.remaining().min(bytes.len());
        not_now(self.0.read(&mut bytes[..len])).map_ok(|len| room.put_slice(&bytes[..len]))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        not_now(self.0.write(bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A client that knows all of HTTP/2.
pub(crate) struct Client {
    send: SendRequest<Bytes>,
    connection: Connection<Socket, Bytes>,
    /// How the connection ended.
    pub(crate) end: Option<Result<(), h2::Error>>,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) head: Response<()>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Whole {
    pub(crate) fn status(&self) -> u16 {
        self.head.status().as_u16()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        Some(self.head.headers().get(name)?.to_str().unwrap())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

pub(crate) fn get(path: &str) -> Request<()> {
    Request::builder()
        .uri(format!("http://a.example{path}"))
        .body(())
        .unwrap()
}

pub(crate) fn post(path: &str) -> Request<()> {
    let mut request = get(path);
    *request.method_mut() = http::Method::POST;
    request
}

impl Client {
    pub(crate) fn connect(addr: SocketAddr) -> Self {
        Self::configured(addr, &Builder::new())
    }

    pub(crate) fn configured(addr: SocketAddr, builder: &Builder) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut context = Context::from_waker(Waker::noop());
        let mut handshake = Box::pin(builder.handshake(Socket(stream)));
        let Poll::Ready(shaken) = handshake.as_mut().poll(&mut context) else {
            panic!("the client's side of a handshake waits for nothing");
        };
        let (send, connection) = shaken.unwrap();
        Self {
            send,
            connection,
            end: None,
        }
    }

    /// Moves bytes until `poll` is ready.
    pub(crate) fn drive<T>(&mut self, poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
        self.drive_for(PATIENCE, poll).expect("an answer in time")
    }

    pub(crate) fn drive_for<T>(
        &mut self,
        time: Duration,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Option<T> {
        let mut context = Context::from_waker(Waker::noop());
        let deadline = Instant::now() + time;
        loop {
            if self.end.is_none()
                && let Poll::Ready(end) = Pin::new(&mut self.connection).poll(&mut context)
            {
                self.end = Some(end);
            }
            if let Poll::Ready(value) = poll(&mut context) {
                return Some(value);
            }
            if Instant::now() >= deadline {
                return None;
            }
            // A poor man's poll(2).
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Sends a request; `is_end`: without a body.
    pub(crate) fn start(
        &mut self,
        request: Request<()>,
        is_end: bool,
    ) -> (ResponseFuture, SendStream<Bytes>) {
        let mut send = self.send.clone();
        self.drive(|context| send.poll_ready(context)).unwrap();
        let started = self.send.send_request(request, is_end).unwrap();
        self.drive_for(Duration::ZERO, |_| Poll::<()>::Pending);
        started
    }

    pub(crate) fn head(
        &mut self,
        future: &mut ResponseFuture,
    ) -> Result<Response<RecvStream>, h2::Error> {
        self.drive(|context| Pin::new(&mut *future).poll(context))
    }

    /// The next bytes of a body; `None` at its end.
    pub(crate) fn data(&mut self, body: &mut RecvStream) -> Option<Result<Bytes, h2::Error>> {
        // The end may come in a frame of its own.
        let bytes = loop {
            match self.drive(|context| body.poll_data(context))? {
                Ok(bytes) if bytes.is_empty() => {}
                other => break other,
            }
        };
        Some(bytes.inspect(|bytes| {
            body.flow_control().release_capacity(bytes.len()).unwrap();
        }))
    }

    pub(crate) fn whole(&mut self, mut future: ResponseFuture) -> Result<Whole, h2::Error> {
        let (head, mut stream) = self.head(&mut future)?.into_parts();
        let mut body = Vec::new();
        while let Some(bytes) = self.data(&mut stream) {
            body.extend(bytes?);
        }
        let trailers = self.drive(|context| stream.poll_trailers(context))?;
        Ok(Whole {
            head: Response::from_parts(head, ()),
            body,
            trailers,
        })
    }

    pub(crate) fn ask(&mut self, request: Request<()>) -> Whole {
        let (future, _) = self.start(request, true);
        self.whole(future).unwrap()
    }

    /// Sends as much of a body as the windows allow, and waits for more.
    pub(crate) fn write(&mut self, send: &mut SendStream<Bytes>, mut bytes: Bytes, is_end: bool) {
        while !bytes.is_empty() {
            send.reserve_capacity(bytes.len());
            let len = self.drive(|context| match send.capacity() {
                0 => send.poll_capacity(context).map(|len| len.unwrap().unwrap()),
                len => Poll::Ready(len),
            });
            let piece = bytes.split_to(len.min(bytes.len()));
            send.send_data(piece, is_end && bytes.is_empty()).unwrap();
        }
    }

    /// Waits until the server has ended the connection.
    pub(crate) fn wait_for_end(&mut self) -> Result<(), h2::Error> {
        let deadline = Instant::now() + PATIENCE;
        while self.end.is_none() {
            assert!(Instant::now() < deadline, "the connection is kept");
            self.drive_for(Duration::ZERO, |_| Poll::<()>::Pending);
            std::thread::sleep(Duration::from_micros(200));
        }
        self.end.take().unwrap()
    }
}

// Frames by hand.

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// `:method: GET`, `:scheme: http`, `:path: /`, `:authority: a` (RFC 7541, appendix A).
pub(crate) const GET: &[u8] = b"\x82\x86\x84\x41\x01a";
pub(crate) const POST: &[u8] = b"\x83\x86\x84\x41\x01a";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = len[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A literal field for a header block.
pub(crate) fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        assert!(text.len() < 127);
        bytes.push(u8::try_from(text.len()).unwrap());
        bytes.extend(text.as_bytes());
    }
    bytes
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// A client that writes what it is told to.
pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
    buffer: Vec<u8>,
}

impl Raw {
    /// A connection whose start is over on both sides.
    pub(crate) fn connect(addr: SocketAddr) -> Self {
        Self::with_settings(addr, &[])
    }

    pub(crate) fn with_settings(addr: SocketAddr, settings: &[u8]) -> Self {
        let mut raw = Self::new(addr);
        raw.send(&[PREFACE, &frame(SETTINGS, 0, 0, settings)].concat());
        raw.until(|frame| frame.kind == SETTINGS && frame.flags == 1)
            .expect("an acknowledgement");
        raw.send(&frame(SETTINGS, 1, 0, b""));
        raw
    }

    pub(crate) fn new(addr: SocketAddr) -> Self {
        let stream = super::connect(addr);
        Self {
            stream,
            buffer: Vec::new(),
        }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends while the server takes it; `false` once it does not.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// The next frame; `None` at the end of the stream.
    pub(crate) fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(header) = self.buffer.first_chunk::<9>() {
                let len = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
                let (kind, flags) = (header[3], header[4]);
                let stream = u32::from_be_bytes(header[5..].try_into().unwrap());
                if self.buffer.len() >= 9 + len {
                    let bytes: Vec<u8> = self.buffer.drain(..9 + len).collect();
                    return Some(Frame {
                        kind,
                        flags,
                        stream,
                        payload: bytes[9..].to_vec(),
                    });
                }
            }
            let mut piece = [0; 65536];
            match self.stream.read(&mut piece) {
                Ok(len) if len > 0 => self.buffer.extend_from_slice(&piece[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("no frame in time"),
                _ => return None,
            }
        }
    }

    /// Reads on until a frame is the one.
    pub(crate) fn until(&mut self, mut is_it: impl FnMut(&Frame) -> bool) -> Option<Frame> {
        loop {
            let frame = self.next()?;
            if is_it(&frame) {
                return Some(frame);
            }
        }
    }

    /// Reads on to the GOAWAY that ends the connection; its error code.
    #[track_caller]
    pub(crate) fn goaway_code(&mut self) -> u32 {
        let frame = self
            .until(|frame| frame.kind == GOAWAY)
            .expect("a GOAWAY before the end");
        u32::from_be_bytes(frame.payload[4..8].try_into().unwrap())
    }
}
