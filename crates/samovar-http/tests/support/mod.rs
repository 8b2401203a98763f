#![expect(clippy::unwrap_used, reason = "a test helper fails by panicking")]
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file is a crate of its own and uses a part"
)]
//! A raw client: writes bytes, reads answers, hides nothing.

#[cfg(feature = "http2")]
pub(crate) mod h2;
#[cfg(feature = "http2")]
pub(crate) mod h2_app;
pub(crate) mod recorder;
pub(crate) mod ws;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use samovar_http::{
    Builder, Head, Intake, Listener, Observer, Request, Responder, Response, Server, Service,
};

/// Starts a server on a free port of the loopback.
pub(crate) fn serve<S: Service>(
    service: S,
    configure: impl FnOnce(Builder<S>) -> Builder<S>,
) -> (Server<S>, SocketAddr) {
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 128).unwrap();
    let server = configure(Server::builder(service).listen(listener))
        .start()
        .unwrap();
    let addr = server.local_addrs()[0];
    (server, addr)
}

/// A service that is one function.
pub(crate) struct By<F> {
    pub(crate) handle: F,
    pub(crate) intake: Intake,
}

impl<F: Fn(&mut Request) -> Response + Send + Sync + 'static> Service for By<F> {
    type Local = ();

    fn local(&self) {}

    fn intake(&self, _: Head<'_>) -> Intake {
        self.intake
    }

    fn handle(&self, request: &mut Request) -> Response {
        (self.handle)(request)
    }

    fn observer(&self) -> &dyn Observer {
        &()
    }
}

/// A service that promises all its answers, and whom it has promised them to.
pub(crate) fn promising(
    intake: Intake,
) -> (
    By<impl Fn(&mut Request) -> Response>,
    mpsc::Receiver<Responder>,
) {
    let (sender, promised) = mpsc::channel();
    let handle = move |_: &mut Request| {
        let (responder, response) = Response::later();
        sender.send(responder).unwrap();
        response
    };
    (By { handle, intake }, promised)
}

/// Resident memory of this process that no file stands behind, in bytes.
pub(crate) fn resident_len() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .unwrap();
    let number: usize = line.split_whitespace().next().unwrap().parse().unwrap();
    number * 1024
}

/// Waits for something that happens soon.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "{what}: not in time");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A connection that gives up waiting after some seconds, so that a hang fails a test.
pub(crate) fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream
        .set_write_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream
}

/// One parsed answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// Reads answers one by one.
pub(crate) struct Reader<S = TcpStream> {
    pub(crate) stream: S,
    buffer: Vec<u8>,
}

impl<S: Read + Write> Reader<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
        }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    fn more(&mut self) -> bool {
        let mut piece = [0; 65536];
        let len = self.stream.read(&mut piece).expect("an answer in time");
        self.buffer.extend_from_slice(&piece[..len]);
        len > 0
    }

    fn line_end(&mut self) -> Option<usize> {
        loop {
            if let Some(at) = self.buffer.windows(2).position(|pair| pair == b"\r\n") {
                return Some(at);
            }
            if !self.more() {
                return None;
            }
        }
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        while self.buffer.len() < len {
            assert!(self.more(), "the answer was cut off");
        }
        self.buffer.drain(..len).collect()
    }

    /// The next answer; `None` at the end of the stream. `to_head`: the request was a HEAD.
    pub(crate) fn next(&mut self, to_head: bool) -> Option<Answer> {
        let head_len = loop {
            if let Some(at) = self.buffer.windows(4).position(|part| part == b"\r\n\r\n") {
                break at + 4;
            }
            if !self.more() {
                assert!(self.buffer.is_empty(), "half an answer: {:?}", self.buffer);
                return None;
            }
        };
        let head = String::from_utf8(self.take(head_len)).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut answer = Answer {
            status,
            head,
            body: Vec::new(),
        };
        if !to_head && status >= 200 {
            if let Some(len) = answer.header("content-length") {
                answer.body = self.take(len.parse().unwrap());
            } else if answer.header("transfer-encoding") == Some("chunked") {
                loop {
                    let at = self.line_end().expect("a chunk");
                    let line = String::from_utf8(self.take(at + 2)).unwrap();
                    let len = usize::from_str_radix(line.trim(), 16).unwrap();
                    let data = self.take(len + 2);
                    answer.body.extend_from_slice(&data[..len]);
                    if len == 0 {
                        break;
                    }
                }
            }
        }
        Some(answer)
    }

    /// Asserts that the server closes without another byte.
    #[track_caller]
    pub(crate) fn expect_end(&mut self) {
        assert_eq!(self.next(false), None);
    }
}
