//! A connection that is kept, and bodies too long to hold.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::{Answer, PATIENCE};

/// A connection for one request after another.
pub struct Connection {
    reader: BufReader<TcpStream>,
}

/// Length of the buffer for bodies that are passed on in pieces.
const PIECE_LEN: usize = 1 << 20;

impl Connection {
    #[track_caller]
    pub fn open(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            reader: BufReader::new(stream),
        }
    }

    #[track_caller]
    pub fn get(&mut self, path: &str) -> Answer {
        self.request("GET", path, &[])
    }

    /// One request and its whole answer; the connection stays.
    #[track_caller]
    pub fn request(&mut self, method: &str, path: &str, fields: &[&str]) -> Answer {
        let mut answer = self.begin(method, path, fields);
        if method == "HEAD" {
            return answer;
        }
        assert!(answer.header("transfer-encoding").is_none(), "{answer:?}");
        let mut body = vec![0; usize::try_from(announced(&answer)).unwrap()];
        self.reader.read_exact(&mut body).unwrap();
        answer.body = body;
        answer.is_complete = true;
        answer
    }

    /// Sends a request and reads the head of its answer.
    #[track_caller]
    pub fn begin(&mut self, method: &str, path: &str, fields: &[&str]) -> Answer {
        let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
        self.send(&format!(
            "{method} {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"
        ));
        self.begin_reading()
    }

    /// Sends a whole request, and waits for nothing.
    #[track_caller]
    pub fn send(&mut self, request: &str) {
        self.reader.get_mut().write_all(request.as_bytes()).unwrap();
    }

    /// Reads the head of an answer.
    #[track_caller]
    pub fn begin_reading(&mut self) -> Answer {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(self.reader.read_line(&mut head).unwrap(), 0, "{head:?}");
        }
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer {
            status,
            head,
            body: Vec::new(),
            is_complete: false,
        }
    }

    /// Passes on the body after [`Self::begin`], piece by piece.
    ///
    /// # Errors
    ///
    /// If the connection breaks or ends before the announced end.
    pub fn body(&mut self, answer: &Answer, mut take: impl FnMut(&[u8])) -> io::Result<()> {
        let mut left = announced(answer);
        let mut piece = vec![0; PIECE_LEN];
        while left > 0 {
            let wanted = usize::try_from(left).unwrap_or(PIECE_LEN).min(PIECE_LEN);
            let len = self.reader.read(&mut piece[..wanted])?;
            if len == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            take(&piece[..len]);
            left -= len as u64;
        }
        Ok(())
    }

    /// What comes next, as it comes.
    pub fn reader(&mut self) -> &mut impl Read {
        &mut self.reader
    }

    /// Whether nothing came after the last answer that was read, and the other side is still there.
    pub fn is_quiet(&mut self) -> bool {
        self.reader.buffer().is_empty() && {
            let stream = self.reader.get_mut();
            stream.set_nonblocking(true).unwrap();
            let read = stream.peek(&mut [0]);
            stream.set_nonblocking(false).unwrap();
            matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
        }
    }
}

/// The announced length of a body.
#[track_caller]
pub fn announced(answer: &Answer) -> u64 {
    answer
        .header("content-length")
        .unwrap_or_else(|| panic!("no length: {}", answer.head))
        .parse()
        .unwrap()
}
