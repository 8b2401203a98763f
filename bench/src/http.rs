//! Measuring client: GET on a keep-alive connection.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use testkit::http1::Connection;

/// Maximum length of a read: large, because the cost of small reads would be measured with the
/// server.
const BUFFER_LEN: usize = 256 * 1024;

/// Read timeout: longer than any response takes, so that a hanging server cannot hang the run.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Client whose connection is opened on the first request, and reopened after the server closed it.
#[derive(Debug)]
pub(crate) struct Client {
    address: SocketAddr,
    /// Header lines of every request, after `Host`.
    fields: &'static str,
    /// The connection; a closed one is retained for its buffer.
    connection: Option<Connection>,
    is_open: bool,
}

/// Response without its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Length of the body, without chunked framing.
    pub(crate) body_len: u64,
    /// Whether the body is compressed with zstd.
    pub(crate) is_zstd: bool,
}

impl Client {
    /// Creates a client that accepts no compression.
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            fields: "",
            connection: None,
            is_open: false,
        }
    }

    /// Creates a client that accepts zstd, as Nix does.
    pub(crate) fn taking_zstd(address: SocketAddr) -> Self {
        Self {
            fields: "Accept-Encoding: zstd\r\n",
            ..Self::new(address)
        }
    }

    /// Requests `path` and passes the body to `take` in pieces. Fails if the connection fails, or
    /// the response is malformed or incomplete.
    pub(crate) fn get(&mut self, path: &str, take: impl FnMut(&[u8])) -> io::Result<Answer> {
        let reused = self.is_open;
        let (answer, keeps_alive) = match self.send(path).and_then(|()| self.head()) {
            // The server may have closed the idle connection, so the request is sent again on a new
            // one.
            Err(_) if reused => {
                self.is_open = false;
                self.send(path)?;
                self.head()?
            }
            head => head?,
        };
        self.body(answer, keeps_alive, take)
    }

    /// Sends a request, whose response is read by [`Client::receive`]. Fails if the connection
    /// fails.
    pub(crate) fn send(&mut self, path: &str) -> io::Result<()> {
        if !self.is_open {
            let stream = TcpStream::connect(self.address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(READ_TIMEOUT))?;
            match &mut self.connection {
                Some(connection) => drop(connection.replace_stream(stream)),
                None => self.connection = Some(Connection::with_buffer(stream, BUFFER_LEN)),
            }
            self.is_open = true;
        }
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\n{}\r\n",
            self.address, self.fields
        );
        self.connection()?.try_send(request)
    }

    /// Receives the response to the previously sent request. Fails if the connection fails, or the
    /// response is malformed or incomplete.
    pub(crate) fn receive(&mut self, take: impl FnMut(&[u8])) -> io::Result<Answer> {
        match self.head() {
            Ok((answer, keeps_alive)) => self.body(answer, keeps_alive, take),
            Err(error) => {
                self.is_open = false;
                Err(error)
            }
        }
    }

    fn connection(&mut self) -> io::Result<&mut Connection> {
        let connection = self.connection.as_mut().filter(|_| self.is_open);
        connection.ok_or_else(|| ErrorKind::NotConnected.into())
    }

    /// Reads a head; returns also whether the connection persists after the response.
    fn head(&mut self) -> io::Result<(Answer, bool)> {
        let head = self.connection()?.try_head(false)?;
        let head = head.ok_or(ErrorKind::UnexpectedEof)?;
        let coding = head.header("content-encoding");
        let answer = Answer {
            status: head.status,
            body_len: 0,
            is_zstd: coding.is_some_and(|coding| coding.eq_ignore_ascii_case("zstd")),
        };
        Ok((answer, head.keeps_alive))
    }

    fn body(
        &mut self,
        mut answer: Answer,
        keeps_alive: bool,
        mut take: impl FnMut(&[u8]),
    ) -> io::Result<Answer> {
        let body = self.connection()?.body(|piece| {
            answer.body_len += piece.len() as u64;
            take(piece);
        });
        self.is_open &= keeps_alive && body.is_ok();
        body.map(|()| answer)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// Serves `answers` in sequence on one connection, byte by byte if `slow`.
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
