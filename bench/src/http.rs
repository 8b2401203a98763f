//! The HTTP client that measures: it sends GET requests on a keep-alive connection.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use testkit::http1::Connection;

/// A client that opens its connection on the first request, and again after the server closed it.
#[derive(Debug)]
pub(crate) struct Client {
    address: SocketAddr,
    /// Header lines that every request has after `Host`.
    fields: &'static str,
    connection: Option<Connection>,
}

/// A response without its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Length of the body in bytes, without chunked framing.
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
        }
    }

    /// Makes the client accept zstd, as Nix does.
    pub(crate) fn taking_zstd(self) -> Self {
        Self {
            fields: "Accept-Encoding: zstd\r\n",
            ..self
        }
    }

    /// Requests `path` and passes the body to `take` in pieces. Fails if the connection fails, or
    /// the response is malformed or incomplete.
    pub(crate) fn get(&mut self, path: &str, take: impl FnMut(&[u8])) -> io::Result<Answer> {
        let is_reused = self.connection.is_some();
        let head = self.send(path).and_then(|()| self.head());
        if is_reused && head.is_err() {
            // The server may have closed the idle connection meanwhile, so send the request again
            // on a new one.
            self.connection = None;
            self.send(path)?;
            return self.receive(take);
        }
        self.body(head?, take)
    }

    /// Sends a request, whose response is read by [`Client::receive`]. Fails if the connection
    /// fails.
    pub(crate) fn send(&mut self, path: &str) -> io::Result<()> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(Connection::try_connect(self.address)?),
        };
        connection.try_send(format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\n{}\r\n",
            self.address, self.fields
        ))
    }

    /// Receives the response to the previously sent request. Fails if the connection fails, or the
    /// response is malformed or incomplete.
    pub(crate) fn receive(&mut self, take: impl FnMut(&[u8])) -> io::Result<Answer> {
        let head = self.head()?;
        self.body(head, take)
    }

    /// Reads the head of a response. Returns the response, whose body is not read yet, and whether
    /// the connection can be reused.
    /// connection can be reused.
    fn head(&mut self) -> io::Result<(Answer, bool)> {
        let connection = self.connection.as_mut().ok_or(ErrorKind::NotConnected)?;
        let head = connection
            .try_head(false)?
            .ok_or(ErrorKind::UnexpectedEof)?;
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
        (mut answer, keeps_alive): (Answer, bool),
        mut take: impl FnMut(&[u8]),
    ) -> io::Result<Answer> {
        let mut connection = self.connection.take().ok_or(ErrorKind::NotConnected)?;
        connection.body(|piece| {
            answer.body_len += piece.len() as u64;
            take(piece);
        })?;
        self.connection = keeps_alive.then_some(connection);
        Ok(answer)
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
