//! A client connection for consecutive HTTP/1.1 requests.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::decoder::{Decoder, Event, Head};
use crate::PATIENCE;

/// Length of the read buffer: large, because benchmarks would measure small reads with the server.
const BUFFER_LEN: usize = 256 << 10;

/// A stream of any kind: TCP, Unix, or TLS over either.
pub trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

/// A response with its whole content.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Response {
    /// Status code; 0 if the connection ended before a response.
    pub status: u16,
    /// Status line and header lines with the empty line.
    pub head: String,
    /// The content without chunked framing.
    pub body: Vec<u8>,
    /// The trailer lines of a chunked response.
    pub trailers: String,
    /// Whether all of the content arrived, up to the end that the head announced.
    pub is_complete: bool,
}

impl Response {
    fn new(head: &Head) -> Self {
        Self {
            status: head.status,
            head: String::from_utf8_lossy(&head.bytes).into_owned(),
            ..Self::default()
        }
    }

    /// Returns the values of all headers with this name; case is ignored.
    pub fn headers(&self, name: &str) -> impl Iterator<Item = &str> {
        let lines = self.head.lines().skip(1);
        lines.filter_map(move |line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// Returns the value of the first header with this name, if there is one; case is ignored.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers(name).next()
    }

    /// Returns the content as text, with replacement characters for invalid UTF-8.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the content as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the value of Content-Length.
    #[track_caller]
    pub fn content_length(&self) -> u64 {
        let length = self.header("content-length");
        let length = length.unwrap_or_else(|| panic!("no length: {}", self.head));
        length.parse().unwrap()
    }

    /// Returns the head without its `Date` line.
    pub fn head_without_date(&self) -> Vec<&str> {
        let lines = self.head.lines();
        lines.filter(|line| !line.starts_with("Date: ")).collect()
    }
}

enum Part {
    Head,
    Content(Range<usize>),
    End,
}

/// A connection to a server: sends raw bytes, and reads decoded responses or raw bytes.
#[derive(Debug)]
pub struct Connection<S = TcpStream> {
    /// The underlying stream. The connection may already have read bytes from it into its buffer.
    pub stream: S,
    buffer: Box<[u8]>,
    /// The part of `buffer` that was read from the stream and is not used yet.
    unused: Range<usize>,
    decoder: Decoder,
}

impl Connection {
    /// Connects over TCP; reads and writes fail after [`PATIENCE`].
    ///
    /// # Errors
    ///
    /// If the connection is refused.
    pub fn try_connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::try_over(TcpStream::connect(address)?)
    }

    /// Wraps a TCP stream and turns off Nagle's algorithm; reads and writes fail after
    /// [`PATIENCE`].
    ///
    /// # Errors
    ///
    /// If the options of the socket cannot be set.
    pub fn try_over(stream: TcpStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self::new(stream))
    }

    /// Connects over TCP.
    #[track_caller]
    pub fn connect(address: impl ToSocketAddrs) -> Self {
        Self::try_connect(address).unwrap()
    }

    /// Wraps a TCP stream like [`Connection::try_over`]; panics on an error.
    #[track_caller]
    pub fn over(stream: TcpStream) -> Self {
        Self::try_over(stream).unwrap()
    }

    /// Returns whether the stream is still open and nothing was received after the last response.
    pub fn is_quiet(&mut self) -> bool {
        self.unused.is_empty() && {
            self.stream.set_nonblocking(true).unwrap();
            let peeked = self.stream.peek(&mut [0]);
            self.stream.set_nonblocking(false).unwrap();
            matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock)
        }
    }
}

impl Connection<UnixStream> {
    /// Connects to a Unix socket; reads fail after [`PATIENCE`].
    #[track_caller]
    pub fn unix(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self::new(stream)
    }
}

impl<S: Read + Write> Connection<S> {
    /// Wraps a stream without changing its options.
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            buffer: vec![0; BUFFER_LEN].into_boxed_slice(),
            unused: 0..0,
            decoder: Decoder::default(),
        }
    }

    /// Reads into the empty buffer; returns `false` at the end of the stream.
    fn fill(&mut self) -> io::Result<bool> {
        loop {
            match self.stream.read(&mut self.buffer) {
                Ok(len) => {
                    self.unused = 0..len;
                    return Ok(len > 0);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the next part of a response. Parts of its content have at most `max` bytes. Returns
    /// `None` if the stream ends between two responses.
    fn part(&mut self, max: usize) -> io::Result<Option<Part>> {
        loop {
            let end = self.unused.end.min(self.unused.start.saturating_add(max));
            let mut input = self.buffer.get(self.unused.start..end).unwrap_or_default();
            let event = self.decoder.next(&mut input);
            self.unused.start = end - input.len();
            match event.map_err(|_malformed| malformed())? {
                Some(Event::Head) => return Ok(Some(Part::Head)),
                Some(Event::Content(content)) => {
                    let end = self.unused.start;
                    return Ok(Some(Part::Content(end - content.len()..end)));
                }
                Some(Event::End) => return Ok(Some(Part::End)),
                None => {}
            }
            if self.unused.is_empty() && !self.fill()? {
                return match self.decoder.finish() {
                    Ok(true) => Ok(Some(Part::End)),
                    Ok(false) => Ok(None),
                    Err(_) => Err(ErrorKind::UnexpectedEof.into()),
                };
            }
        }
    }

    /// Sends bytes.
    ///
    /// # Errors
    ///
    /// If the stream fails.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())?;
        self.stream.flush()
    }

    /// Reads the head of the next response; its content follows by [`Connection::try_piece`].
    /// Returns `None` at the end of the stream. `to_head`: the request was a HEAD.
    ///
    /// # Errors
    ///
    /// If the stream fails or ends in the head, or the head is malformed.
    pub fn try_head(&mut self, to_head: bool) -> io::Result<Option<&Head>> {
        self.decoder.set_to_head(to_head);
        let mut part = self.part(usize::MAX)?;
        // The caller has already read the content, perhaps as raw bytes, but not its end.
        if matches!(part, Some(Part::End)) {
            part = self.part(usize::MAX)?;
        }
        match part {
            Some(Part::Head) => Ok(Some(self.decoder.head())),
            Some(_) => Err(io::Error::other(
                "the last response was not read to its end",
            )),
            None => Ok(None),
        }
    }

    /// Reads at most `max` bytes of the content; `None` at its end.
    ///
    /// # Errors
    ///
    /// If the stream fails or ends early, or the framing is malformed.
    pub fn try_piece(&mut self, max: usize) -> io::Result<Option<&[u8]>> {
        match self.part(max)? {
            Some(Part::Content(range)) => Ok(self.buffer.get(range)),
            Some(Part::End) => Ok(None),
            Some(Part::Head) | None => Err(io::Error::other("no response is being read")),
        }
    }

    /// Reads the next response; `None` at the end of the stream. `to_head`: the request was a HEAD.
    ///
    /// # Errors
    ///
    /// If the stream fails or ends early, or the response is malformed.
    pub fn try_next(&mut self, to_head: bool) -> io::Result<Option<Response>> {
        let Some(head) = self.try_head(to_head)? else {
            return Ok(None);
        };
        let mut response = Response::new(head);
        while let Some(piece) = self.try_piece(usize::MAX)? {
            response.body.extend_from_slice(piece);
        }
        response.trailers = String::from_utf8_lossy(self.decoder.trailers()).into_owned();
        response.is_complete = true;
        Ok(Some(response))
    }

    /// Sends a request and reads its response.
    ///
    /// # Errors
    ///
    /// The same as for [`Connection::try_next`], or if the stream ends without a response.
    pub fn try_request(
        &mut self,
        method: &str,
        target: &str,
        fields: &[&str],
    ) -> io::Result<Response> {
        self.try_send(request(method, target, fields))?;
        let response = self.try_next(method == "HEAD")?;
        response.ok_or_else(|| ErrorKind::UnexpectedEof.into())
    }

    /// Returns the bytes that were read from the stream and not yet used.
    pub fn unused(&self) -> &[u8] {
        self.buffer.get(self.unused.clone()).unwrap_or_default()
    }

    /// Sends bytes to the server.
    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).unwrap();
    }

    /// Sends a request without content and does not wait for the response. `fields` are header
    /// lines without line ends.
    #[track_caller]
    pub fn send_request(&mut self, method: &str, target: &str, fields: &[&str]) {
        self.send(request(method, target, fields));
    }

    /// Sends a request and reads its response.
    #[track_caller]
    pub fn request(&mut self, method: &str, target: &str, fields: &[&str]) -> Response {
        self.send_request(method, target, fields);
        self.response(method == "HEAD")
    }

    /// Sends a GET request and reads its response.
    #[track_caller]
    pub fn get(&mut self, target: &str) -> Response {
        self.request("GET", target, &[])
    }

    /// Sends GET and HEAD, which must have the same head; returns the response to GET.
    #[track_caller]
    pub fn get_and_head(&mut self, target: &str, fields: &[&str]) -> Response {
        let response = self.request("GET", target, fields);
        let head = self.request("HEAD", target, fields);
        assert_eq!(
            head.head_without_date(),
            response.head_without_date(),
            "{target}"
        );
        assert_eq!(head.header("connection"), None, "{target}");
        response
    }

    /// Sends GET and HEAD for a resource and checks that it is plain text with this status and
    /// body.
    #[track_caller]
    pub fn check_text(&mut self, target: &str, status: u16, body: &str) {
        let response = self.get_and_head(target, &[]);
        let got = (response.status, response.text());
        assert_eq!(got, (status, body.to_owned()), "{target}");
        assert_eq!(
            response.header("content-type"),
            Some("text/plain"),
            "{target}"
        );
        assert_eq!(response.content_length(), body.len() as u64, "{target}");
    }

    /// Reads the next response; `None` at the end of the stream. `to_head`: the request was a HEAD.
    #[track_caller]
    pub fn next(&mut self, to_head: bool) -> Option<Response> {
        self.try_next(to_head).unwrap()
    }

    /// Reads the next response; panics if the stream ends instead.
    #[track_caller]
    pub fn response(&mut self, to_head: bool) -> Response {
        self.next(to_head)
            .expect("a response before the end of the stream")
    }

    /// Sends a request and reads the head of its response; the content follows by
    /// [`Connection::body`] or [`Connection::try_piece`].
    #[track_caller]
    pub fn begin(&mut self, method: &str, target: &str, fields: &[&str]) -> Response {
        self.send_request(method, target, fields);
        self.begin_reading(method == "HEAD")
    }

    /// Reads the head of the next response; the content follows as after [`Connection::begin`].
    #[track_caller]
    pub fn begin_reading(&mut self, to_head: bool) -> Response {
        let head = self.try_head(to_head).unwrap();
        Response::new(head.expect("a response before the end of the stream"))
    }

    /// Reads the content and passes it to `take` in pieces.
    ///
    /// # Errors
    ///
    /// The same as for [`Connection::try_piece`].
    pub fn body(&mut self, mut take: impl FnMut(&[u8])) -> io::Result<()> {
        while let Some(piece) = self.try_piece(usize::MAX)? {
            take(piece);
        }
        Ok(())
    }

    /// Reads all bytes up to the end of the stream; returns them, and whether the server closed the
    /// connection rather than reset it.
    #[track_caller]
    pub fn rest(&mut self) -> (Vec<u8>, bool) {
        let mut bytes = self.unused().to_vec();
        self.unused = 0..0;
        let end = self.stream.read_to_end(&mut bytes);
        if let Err(error) = &end {
            let is_late = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            assert!(!is_late, "the server keeps the connection open");
        }
        (bytes, end.is_ok())
    }

    /// Reads exactly `len` raw bytes; panics if the stream ends before.
    #[track_caller]
    pub fn take_bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Asserts that the server closes the connection without sending another byte.
    #[track_caller]
    pub fn expect_end(&mut self) {
        let (rest, is_orderly) = self.rest();
        assert_eq!(rest.escape_ascii().to_string(), "");
        assert!(is_orderly, "the connection was reset");
    }

    /// Asserts that no byte follows and that the server closes or resets the connection.
    #[track_caller]
    pub fn assert_closed(&mut self) {
        let (rest, _) = self.rest();
        assert_eq!(rest.escape_ascii().to_string(), "");
    }
}

impl<S: Stream + 'static> Connection<S> {
    /// Boxes the stream, so that connections over different streams have the same type.
    pub fn boxed(self) -> Connection<Box<dyn Stream>> {
        Connection {
            stream: Box::new(self.stream),
            buffer: self.buffer,
            unused: self.unused,
            decoder: self.decoder,
        }
    }
}

/// Reads raw bytes, including the framing of chunks. Bytes of content of a known length count as
/// read for the decoder.
impl<S: Read> Read for Connection<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = if self.unused.is_empty() {
            self.stream.read(into)?
        } else {
            let unused = self.buffer.get(self.unused.clone()).unwrap_or_default();
            let len = unused.len().min(into.len());
            into[..len].copy_from_slice(&unused[..len]);
            self.unused.start += len;
            len
        };
        self.decoder.skip(len);
        Ok(len)
    }
}

/// Returns a request without content; `fields` are header lines without line ends.
fn request(method: &str, target: &str, fields: &[&str]) -> String {
    let mut request = format!("{method} {target} HTTP/1.1\r\nHost: a\r\n");
    for field in fields {
        request.push_str(field);
        request.push_str("\r\n");
    }
    request + "\r\n"
}

fn malformed() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "malformed HTTP/1.1 response")
}

/// Sends bytes on a new connection and reads one response up to the end of the connection. The
/// status is 0 if no head was received; `is_complete` is false if the connection was reset, or more
/// bytes followed the response.
#[track_caller]
pub fn exchange(address: SocketAddr, bytes: impl AsRef<[u8]>) -> Response {
    let bytes = bytes.as_ref();
    let mut connection = Connection::connect(address);
    // The server may refuse the request and reset the connection before it has read everything.
    drop(connection.try_send(bytes));
    let mut response = match connection.try_head(bytes.starts_with(b"HEAD ")) {
        Ok(Some(head)) => Response::new(head),
        Ok(None) => return Response::default(),
        Err(error) => {
            assert_ne!(error.kind(), ErrorKind::WouldBlock, "no response in time");
            assert_ne!(error.kind(), ErrorKind::InvalidData, "{error}");
            return Response::default();
        }
    };
    let end = loop {
        match connection.try_piece(usize::MAX) {
            Ok(Some(piece)) => response.body.extend_from_slice(piece),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    response.trailers = String::from_utf8_lossy(connection.decoder.trailers()).into_owned();
    response.is_complete = match end {
        Ok(()) => connection.rest() == (Vec::new(), true),
        Err(error) => {
            assert_ne!(error.kind(), ErrorKind::WouldBlock, "the response stops");
            false
        }
    };
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_may_be_read_as_raw_bytes_before_the_next_response() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let response = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";
        far.write_all(&[&response[..], response].concat()).unwrap();
        let mut connection = Connection::new(near);
        assert_eq!(connection.begin_reading(false).status, 200);
        assert_eq!(connection.take_bytes(2), b"ab");
        assert!(connection.try_head(false).is_err());
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(&[&response[..], response].concat()).unwrap();
        let mut connection = Connection::new(near);
        assert_eq!(connection.begin_reading(false).status, 200);
        assert_eq!(connection.take_bytes(3), b"abc");
        assert_eq!(connection.response(false).body, b"abc");
    }
}
