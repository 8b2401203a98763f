//! A client for one connection: enough of HTTP/1.1 for GET, and no more work than it must do.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// As much as a fast client asks for at once. Small reads would be measured with the server.
const BUFFER_LEN: usize = 256 * 1024;

/// Longer than any answer takes; a server that hangs must not hang the run.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// A keep-alive connection, made anew when the server has closed it.
#[derive(Debug)]
pub(crate) struct Client {
    address: SocketAddr,
    /// Lines of every request behind the host's.
    fields: &'static str,
    stream: Option<TcpStream>,
    buffer: Box<[u8]>,
    /// Invariant: `start <= end <= buffer.len()`; between them is what was read and not used.
    start: usize,
    end: usize,
}

/// An answer whose body has been handed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Bytes of the body, without the framing of chunks.
    pub(crate) body_len: u64,
    /// Whether the body is in zstd.
    pub(crate) is_zstd: bool,
}

/// Where a body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyEnd {
    After(u64),
    Chunked,
    WithConnection,
}

impl Client {
    /// A client that connects with its first request.
    pub(crate) fn new(address: SocketAddr) -> Self {
        let buffer = vec![0; BUFFER_LEN].into_boxed_slice();
        Self {
            address,
            fields: "",
            stream: None,
            buffer,
            start: 0,
            end: 0,
        }
    }

    /// A client that says it takes zstd, as Nix does today.
    pub(crate) fn taking_zstd(address: SocketAddr) -> Self {
        Self {
            fields: "Accept-Encoding: zstd\r\n",
            ..Self::new(address)
        }
    }

    /// Asks for `path` and hands the body to `take` piece by piece.
    ///
    /// # Errors
    ///
    /// If the connection fails, or the answer is not HTTP or ends early.
    pub(crate) fn get(&mut self, path: &str, take: impl FnMut(&[u8])) -> io::Result<Answer> {
        let reused = self.stream.is_some();
        match self.send(path).and_then(|()| self.fill()) {
            // The server may have closed the connection while nobody looked: that is no error.
            Err(_) if reused => {
                self.stream = None;
                self.send(path)?;
            }
            asked => asked?,
        }
        self.receive(take)
    }

    /// Sends a request and does not wait for its answer, which is [`Client::receive`]d later.
    ///
    /// # Errors
    ///
    /// If the connection fails.
    pub(crate) fn send(&mut self, path: &str) -> io::Result<()> {
        if self.stream.is_none() {
            let stream = TcpStream::connect(self.address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(READ_TIMEOUT))?;
            self.stream = Some(stream);
            (self.start, self.end) = (0, 0);
        }
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\n{}\r\n",
            self.address, self.fields
        );
        self.stream()?.write_all(request.as_bytes())
    }

    /// Receives the answer to the request that was sent last.
    ///
    /// # Errors
    ///
    /// If the connection fails, or the answer is not HTTP or ends early.
    pub(crate) fn receive(&mut self, take: impl FnMut(&[u8])) -> io::Result<Answer> {
        let answer = self.answer(take);
        if answer.is_err() {
            self.stream = None;
        }
        answer
    }

    fn stream(&mut self) -> io::Result<&mut TcpStream> {
        self.stream
            .as_mut()
            .ok_or_else(|| ErrorKind::NotConnected.into())
    }

    fn answer(&mut self, mut take: impl FnMut(&[u8])) -> io::Result<Answer> {
        let head = self.head()?;
        let Head {
            status,
            end,
            keep_alive,
            is_zstd,
        } = parse_head(&head).ok_or(ErrorKind::InvalidData)?;
        let body_len = match end {
            BodyEnd::After(len) => {
                self.pass(len, &mut take)?;
                len
            }
            BodyEnd::Chunked => self.chunks(&mut take)?,
            BodyEnd::WithConnection => self.rest(&mut take)?,
        };
        if !keep_alive || end == BodyEnd::WithConnection {
            self.stream = None;
        }
        Ok(Answer {
            status,
            body_len,
            is_zstd,
        })
    }

    /// The head, up to and with the empty line.
    fn head(&mut self) -> io::Result<Vec<u8>> {
        loop {
            let read = self.buffer.get(self.start..self.end).unwrap_or_default();
            if let Some(at) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                let head = read.get(..at + 4).unwrap_or_default().to_vec();
                self.start += head.len();
                return Ok(head);
            }
            self.fill()?;
        }
    }

    /// A line without its end.
    fn line(&mut self) -> io::Result<Vec<u8>> {
        loop {
            let read = self.buffer.get(self.start..self.end).unwrap_or_default();
            if let Some(at) = read.windows(2).position(|bytes| bytes == b"\r\n") {
                let line = read.get(..at).unwrap_or_default().to_vec();
                self.start += at + 2;
                return Ok(line);
            }
            self.fill()?;
        }
    }

    /// Hands on the next `len` bytes.
    fn pass(&mut self, len: u64, take: &mut impl FnMut(&[u8])) -> io::Result<()> {
        let mut left = len;
        while left > 0 {
            if self.start == self.end {
                self.fill()?;
            }
            let there = self.end - self.start;
            let part = usize::try_from(left).map_or(there, |left| left.min(there));
            take(
                self.buffer
                    .get(self.start..self.start + part)
                    .unwrap_or_default(),
            );
            self.start += part;
            left -= part as u64;
        }
        Ok(())
    }

    fn chunks(&mut self, take: &mut impl FnMut(&[u8])) -> io::Result<u64> {
        let mut body_len = 0;
        loop {
            let line = self.line()?;
            let size = std::str::from_utf8(&line)
                .ok()
                .and_then(|line| line.split(';').next());
            let size = size.and_then(|size| u64::from_str_radix(size.trim(), 16).ok());
            let size = size.ok_or(ErrorKind::InvalidData)?;
            if size == 0 {
                while !self.line()?.is_empty() {}
                return Ok(body_len);
            }
            self.pass(size, take)?;
            self.line()?;
            body_len += size;
        }
    }

    fn rest(&mut self, take: &mut impl FnMut(&[u8])) -> io::Result<u64> {
        let mut body_len = 0;
        loop {
            let there = (self.end - self.start) as u64;
            self.pass(there, take)?;
            body_len += there;
            match self.fill() {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(body_len),
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads at least one byte more behind what is there.
    fn fill(&mut self) -> io::Result<()> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let Self {
            stream: Some(stream),
            buffer,
            end,
            ..
        } = self
        else {
            return Err(ErrorKind::NotConnected.into());
        };
        let space = buffer.get_mut(*end..).unwrap_or_default();
        if space.is_empty() {
            return Err(ErrorKind::InvalidData.into());
        }
        match stream.read(space)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            len => {
                *end += len;
                Ok(())
            }
        }
    }
}

/// What a head says.
#[derive(Debug, Clone, Copy)]
struct Head {
    status: u16,
    end: BodyEnd,
    keep_alive: bool,
    is_zstd: bool,
}

fn parse_head(head: &[u8]) -> Option<Head> {
    let head = std::str::from_utf8(head).ok()?;
    let mut lines = head.split("\r\n");
    let status: u16 = lines
        .next()?
        .strip_prefix("HTTP/1.")?
        .get(2..5)?
        .parse()
        .ok()?;
    let mut end = if status == 204 || status == 304 {
        BodyEnd::After(0)
    } else {
        BodyEnd::WithConnection
    };
    let (mut keep_alive, mut is_zstd) = (true, false);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            end = BodyEnd::After(value.parse().ok()?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            end = BodyEnd::Chunked;
        } else if name.eq_ignore_ascii_case("connection") {
            keep_alive = !value.eq_ignore_ascii_case("close");
        } else if name.eq_ignore_ascii_case("content-encoding") {
            is_zstd = value.eq_ignore_ascii_case("zstd");
        }
    }
    Some(Head {
        status,
        end,
        keep_alive,
        is_zstd,
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Serves `answers` one after the other on one connection, byte by byte if `slow`.
    fn served(answers: Vec<Vec<u8>>, slow: bool) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_nodelay(true).unwrap();
            for answer in answers {
                let mut request = [0; 1000];
                let _ = stream.read(&mut request).unwrap();
                for piece in answer.chunks(if slow { 1 } else { answer.len() }) {
                    stream.write_all(piece).unwrap();
                }
            }
        });
        address
    }

    #[test]
    fn bodies_of_every_kind_are_read() {
        for slow in [false, true] {
            let address = served(
                vec![
                    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello".to_vec(),
                    b"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n".to_vec(),
                    b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nto the end".to_vec(),
                ],
                slow,
            );
            let mut client = Client::new(address);
            for (status, expected) in [(200, "hello"), (404, "abcde"), (200, "to the end")] {
                let mut body = Vec::new();
                let answer = client
                    .get("/", |piece| body.extend_from_slice(piece))
                    .unwrap();
                assert_eq!(
                    answer,
                    Answer {
                        status,
                        body_len: expected.len() as u64,
                        is_zstd: false
                    }
                );
                assert_eq!(body, expected.as_bytes());
            }
        }
    }

    #[test]
    fn a_short_body_is_an_error() {
        let address = served(
            vec![b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel".to_vec()],
            false,
        );
        assert!(Client::new(address).get("/", |_| ()).is_err());
    }
}
