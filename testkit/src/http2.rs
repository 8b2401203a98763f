//! HTTP/2 clients: one of the `h2` crate, polled without a runtime, and one with frames that the
//! test writes itself.

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

use crate::PATIENCE;
use crate::http1::Stream;

/// Time between two polls of a connection.
const STEP: Duration = Duration::from_micros(200);

/// Adapter between a non-blocking stream and `h2`.
///
/// It never wakes its task, so the caller must poll the connection again after a while.
#[expect(missing_debug_implementations, reason = "the stream has none")]
pub struct Socket(Box<dyn Stream>);

impl Socket {
    /// Wraps a stream whose reads and writes fail with `WouldBlock` instead of blocking.
    pub fn new(stream: impl Stream + 'static) -> Self {
        Self(Box::new(stream))
    }
}

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
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = [0; 65536];
        let len = buffer.remaining().min(bytes.len());
        not_now(self.0.read(&mut bytes[..len])).map_ok(|len| buffer.put_slice(&bytes[..len]))
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

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        not_now(self.0.flush())
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Opens an HTTP/2 connection.
///
/// # Errors
///
/// If the socket fails, or does not take the preface within `limit`.
pub fn handshake(
    socket: Socket,
    builder: &Builder,
    limit: Duration,
) -> io::Result<(SendRequest<Bytes>, Connection<Socket, Bytes>)> {
    let mut context = Context::from_waker(Waker::noop());
    let mut handshake = Box::pin(builder.handshake(socket));
    let deadline = Instant::now() + limit;
    loop {
        if let Poll::Ready(connected) = handshake.as_mut().poll(&mut context) {
            return connected.map_err(io::Error::other);
        }
        if Instant::now() >= deadline {
            return Err(ErrorKind::TimedOut.into());
        }
        std::thread::sleep(STEP);
    }
}

/// A client of the `h2` crate.
#[expect(missing_debug_implementations, reason = "the stream has none")]
pub struct Client {
    send: SendRequest<Bytes>,
    connection: Connection<Socket, Bytes>,
    /// The result with which the connection has ended; `None` while it is open.
    pub end: Option<Result<(), h2::Error>>,
}

/// A response with its whole content.
#[derive(Debug)]
pub struct Whole {
    /// Status and headers.
    pub head: Response<()>,
    /// The whole content.
    pub body: Vec<u8>,
    /// Trailers, if there are any.
    pub trailers: Option<HeaderMap>,
}

impl Whole {
    /// Returns the status code.
    pub fn status(&self) -> u16 {
        self.head.status().as_u16()
    }

    /// Returns the value of the first header with this name, if there is one.
    pub fn header(&self, name: &str) -> Option<&str> {
        Some(self.head.headers().get(name)?.to_str().unwrap())
    }

    /// Returns the content as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// Returns a GET request.
pub fn get(path: &str) -> Request<()> {
    Request::builder()
        .uri(format!("http://a.example{path}"))
        .body(())
        .unwrap()
}

/// Returns a POST request.
pub fn post(path: &str) -> Request<()> {
    let mut request = get(path);
    *request.method_mut() = http::Method::POST;
    request
}

impl Client {
    /// Connects by prior knowledge, without TLS.
    #[track_caller]
    pub fn connect(addr: SocketAddr) -> Self {
        Self::configured(addr, &Builder::new())
    }

    /// Connects with the settings in `builder`.
    #[track_caller]
    pub fn configured(addr: SocketAddr, builder: &Builder) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_nonblocking(true).unwrap();
        Self::over(stream, builder)
    }

    /// Uses a connected stream whose reads and writes fail with `WouldBlock` instead of blocking.
    #[track_caller]
    pub fn over(stream: impl Stream + 'static, builder: &Builder) -> Self {
        let (send, connection) = handshake(Socket::new(stream), builder, PATIENCE).unwrap();
        Self {
            send,
            connection,
            end: None,
        }
    }

    /// Processes the connection's I/O until `poll` is ready.
    #[track_caller]
    pub fn drive<T>(&mut self, poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
        self.drive_for(PATIENCE, poll).expect("an answer in time")
    }

    /// Processes the connection's I/O until `poll` is ready. Returns `None` if `time` passes
    /// before.
    pub fn drive_for<T>(
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
            std::thread::sleep(STEP);
        }
    }

    /// Sends the head of a request; `is_end` says that no content follows.
    pub fn start(
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

    /// Waits for the head of a response.
    ///
    /// # Errors
    ///
    /// If the stream or the connection fails.
    pub fn head(&mut self, future: &mut ResponseFuture) -> Result<Response<RecvStream>, h2::Error> {
        self.drive(|context| Pin::new(&mut *future).poll(context))
    }

    /// Waits for the next bytes of the content; `None` at its end.
    pub fn data(&mut self, body: &mut RecvStream) -> Option<Result<Bytes, h2::Error>> {
        // The end of the stream may arrive in an empty frame of its own.
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

    /// Waits for a whole response.
    ///
    /// # Errors
    ///
    /// If the stream or the connection fails.
    pub fn whole(&mut self, mut future: ResponseFuture) -> Result<Whole, h2::Error> {
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

    /// Sends a request without content and waits for its response.
    #[track_caller]
    pub fn ask(&mut self, request: Request<()>) -> Whole {
        let (future, _) = self.start(request, true);
        self.whole(future).unwrap()
    }

    /// Sends content as the flow-control windows allow.
    pub fn write(&mut self, send: &mut SendStream<Bytes>, mut bytes: Bytes, is_end: bool) {
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

    /// Waits until the server ends the connection.
    ///
    /// # Errors
    ///
    /// If the connection ended with an error.
    pub fn wait_for_end(&mut self) -> Result<(), h2::Error> {
        let deadline = Instant::now() + PATIENCE;
        while self.end.is_none() {
            assert!(Instant::now() < deadline, "the connection is kept");
            self.drive_for(Duration::ZERO, |_| Poll::<()>::Pending);
            std::thread::sleep(STEP);
        }
        self.end.take().unwrap()
    }
}

/// The connection preface.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Header block of a GET request: `:method: GET`, `:scheme: http`, `:path: /`, `:authority: a`
/// (RFC 7541, appendix A).
pub const GET: &[u8] = b"\x82\x86\x84\x41\x01a";
/// Header block of the same request with `:method: POST`.
pub const POST: &[u8] = b"\x83\x86\x84\x41\x01a";

/// Type of a frame with content.
pub const DATA: u8 = 0;
/// Type of a frame with a header block.
pub const HEADERS: u8 = 1;
/// Type of a frame with a stream's priority.
pub const PRIORITY: u8 = 2;
/// Type of a frame that resets a stream.
pub const RST_STREAM: u8 = 3;
/// Type of a frame with settings of the connection.
pub const SETTINGS: u8 = 4;
/// Type of a ping, and of the response to one.
pub const PING: u8 = 6;
/// Type of a frame that announces the end of the connection.
pub const GOAWAY: u8 = 7;
/// Type of a frame that enlarges a flow-control window.
pub const WINDOW_UPDATE: u8 = 8;
/// Type of a frame that continues a header block.
pub const CONTINUATION: u8 = 9;

/// Returns a frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = len[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Returns a literal header field for a header block.
pub fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        assert!(text.len() < 127);
        bytes.push(u8::try_from(text.len()).unwrap());
        bytes.extend(text.as_bytes());
    }
    bytes
}

/// A frame from the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Frame type, such as [`DATA`].
    pub kind: u8,
    /// Flags.
    pub flags: u8,
    /// Stream identifier; 0 for the connection.
    pub stream: u32,
    /// Payload of the frame.
    pub payload: Vec<u8>,
}

/// A connection on which the test writes and reads single frames.
#[derive(Debug)]
pub struct Raw {
    /// The socket of the connection.
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

impl Raw {
    /// Connects and exchanges settings.
    #[track_caller]
    pub fn connect(addr: SocketAddr) -> Self {
        Self::with_settings(addr, &[])
    }

    /// Connects and sends these settings as the payload of the first SETTINGS frame.
    #[track_caller]
    pub fn with_settings(addr: SocketAddr, settings: &[u8]) -> Self {
        let mut raw = Self::new(addr);
        raw.send(&[PREFACE, &frame(SETTINGS, 0, 0, settings)].concat());
        raw.until(|frame| frame.kind == SETTINGS && frame.flags == 1)
            .expect("an acknowledgement");
        raw.send(&frame(SETTINGS, 1, 0, b""));
        raw
    }

    /// Connects and sends nothing.
    #[track_caller]
    pub fn new(addr: SocketAddr) -> Self {
        Self {
            stream: crate::http1::Connection::connect(addr).stream,
            buffer: Vec::new(),
        }
    }

    /// Sends raw bytes.
    #[track_caller]
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends raw bytes; returns `false` once the server has ended the connection.
    pub fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Waits for the next frame; `None` at the end of the stream.
    #[track_caller]
    pub fn next_frame(&mut self) -> Option<Frame> {
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

    /// Waits for a frame that `is_it` accepts; `None` at the end of the stream.
    #[track_caller]
    pub fn until(&mut self, mut is_it: impl FnMut(&Frame) -> bool) -> Option<Frame> {
        loop {
            let frame = self.next_frame()?;
            if is_it(&frame) {
                return Some(frame);
            }
        }
    }

    /// Waits for a GOAWAY; returns its error code.
    #[track_caller]
    pub fn goaway_code(&mut self) -> u32 {
        let frame = self
            .until(|frame| frame.kind == GOAWAY)
            .expect("a GOAWAY before the end");
        u32::from_be_bytes(frame.payload[4..8].try_into().unwrap())
    }
}
