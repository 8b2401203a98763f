//! Answers, as they come in pieces.

use httparse::Status;

/// A head that is longer is none.
const HEAD_LEN_MAX: usize = 64 << 10;
/// No server sends more header lines.
const HEADERS_MAX: usize = 64;
/// What is kept of a body that a fleet wants to read.
const BODY_LEN_MAX: usize = 1 << 20;
/// A line that says how long a chunk is.
const CHUNK_LINE_LEN_MAX: usize = 1024;

/// Not HTTP, or not what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// An answer that is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Complete {
    pub(crate) status: u16,
    pub(crate) body_len: u64,
    /// The server closes the connection.
    pub(crate) closes: bool,
}

#[derive(Debug, Clone, Copy, Default)]
enum Body {
    /// In the head still.
    #[default]
    None,
    Sized(u64),
    /// Before the line that says how long the next chunk is.
    ChunkLine,
    Chunk(u64),
    /// The line end behind a chunk.
    ChunkEnd,
    /// Behind the last chunk.
    Trailer,
}

/// One answer. Cleared, it takes the next.
#[derive(Debug, Default)]
pub(crate) struct Response {
    /// A head, or a line among chunks, that is not complete.
    line: Vec<u8>,
    pub(crate) body: Vec<u8>,
    status: u16,
    body_len: u64,
    closes: bool,
    state: Body,
}

impl Response {
    /// Takes what came. What is behind the answer's end was not asked for.
    pub(crate) fn feed(
        &mut self,
        mut bytes: &[u8],
        keeps_body: bool,
    ) -> Result<Option<Complete>, Malformed> {
        loop {
            match self.state {
                Body::None => match self.head(bytes)? {
                    Some(rest) => bytes = rest,
                    None => return Ok(None),
                },
                Body::Sized(left) => {
                    let (rest, left) = self.content(bytes, left, keeps_body);
                    self.state = Body::Sized(left);
                    return if left > 0 {
                        Ok(None)
                    } else {
                        self.complete(rest)
                    };
                }
                Body::Chunk(left) => {
                    let (rest, left) = self.content(bytes, left, keeps_body);
                    self.state = if left > 0 {
                        Body::Chunk(left)
                    } else {
                        Body::ChunkEnd
                    };
                    bytes = rest;
                    if bytes.is_empty() {
                        return Ok(None);
                    }
                }
                Body::ChunkLine | Body::ChunkEnd | Body::Trailer => {
                    let Some((line_len, rest)) = self.line(bytes)? else {
                        return Ok(None);
                    };
                    bytes = rest;
                    match (self.state, line_len) {
                        (Body::ChunkLine, _) => {
                            let Ok(Status::Complete((_, len))) =
                                httparse::parse_chunk_size(&self.line)
                            else {
                                return Err(Malformed);
                            };
                            self.state = if len > 0 {
                                Body::Chunk(len)
                            } else {
                                Body::Trailer
                            };
                        }
                        (Body::ChunkEnd, 2) => self.state = Body::ChunkLine,
                        (Body::Trailer, 2) => return self.complete(bytes),
                        (Body::Trailer, _) => {}
                        _ => return Err(Malformed),
                    }
                    self.line.clear();
                }
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.line.clear();
        self.body.clear();
        self.state = Body::None;
        self.body_len = 0;
    }

    fn complete(&mut self, rest: &[u8]) -> Result<Option<Complete>, Malformed> {
        if !rest.is_empty() {
            return Err(Malformed);
        }
        Ok(Some(Complete {
            status: self.status,
            body_len: self.body_len,
            closes: self.closes,
        }))
    }

    /// What is behind the head, once it is complete.
    fn head<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<&'a [u8]>, Malformed> {
        // Mostly a head comes in one piece, and is read where it lies.
        if self.line.is_empty()
            && let Some(len) = self.parse(bytes)?
        {
            return Ok(bytes.get(len..));
        }
        let before = self.line.len();
        self.line.extend_from_slice(bytes);
        let line = std::mem::take(&mut self.line);
        let parsed = self.parse(&line)?;
        self.line = line;
        let Some(len) = parsed else {
            return if self.line.len() > HEAD_LEN_MAX {
                Err(Malformed)
            } else {
                Ok(None)
            };
        };
        self.line.clear();
        Ok(bytes.get(len.saturating_sub(before)..))
    }

    fn parse(&mut self, bytes: &[u8]) -> Result<Option<usize>, Malformed> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let len = match response.parse(bytes) {
            Ok(Status::Complete(len)) => len,
            Ok(Status::Partial) => return Ok(None),
            Err(_) => return Err(Malformed),
        };
        self.status = response.code.ok_or(Malformed)?;
        self.closes = response.version == Some(0);
        // Without a length an answer ends with its connection, which no load wants.
        let mut state = None;
        for header in response.headers {
            if header.name.eq_ignore_ascii_case("content-length") {
                let text = std::str::from_utf8(header.value).ok();
                let len = text.and_then(|text| text.parse().ok());
                state = Some(Body::Sized(len.ok_or(Malformed)?));
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                state = Some(Body::ChunkLine);
            } else if header.name.eq_ignore_ascii_case("connection") {
                self.closes = header.value.eq_ignore_ascii_case(b"close");
            }
        }
        if matches!(self.status, 204 | 304) {
            state = Some(Body::Sized(0));
        }
        self.state = state.ok_or(Malformed)?;
        Ok(Some(len))
    }

    /// Takes the part of `bytes` that is content, of which `left` bytes are to come: what is behind
    /// it, and how much is left.
    fn content<'a>(&mut self, bytes: &'a [u8], left: u64, keeps: bool) -> (&'a [u8], u64) {
        let taken_len = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
        let (content, rest) = bytes.split_at(taken_len);
        if keeps && self.body.len() + taken_len <= BODY_LEN_MAX {
            self.body.extend_from_slice(content);
        }
        self.body_len += taken_len as u64;
        (rest, left - taken_len as u64)
    }

    /// Once there is a whole line in `self.line`: its length, and what is behind it.
    fn line<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<(usize, &'a [u8])>, Malformed> {
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let (line, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
        self.line.extend_from_slice(line);
        if self.line.len() > CHUNK_LINE_LEN_MAX {
            return Err(Malformed);
        }
        Ok(end.map(|_| (self.line.len(), rest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer comes out the same wherever it is cut.
    #[track_caller]
    fn check(answer: &[u8], status: u16, body: &[u8], closes: bool) {
        let expected = Complete {
            status,
            body_len: body.len() as u64,
            closes,
        };
        for cut in 0..answer.len() {
            let mut response = Response::default();
            let (first, second) = answer.split_at(cut);
            assert_eq!(response.feed(first, true), Ok(None), "cut at {cut}");
            assert_eq!(
                response.feed(second, true),
                Ok(Some(expected)),
                "cut at {cut}"
            );
            assert_eq!(response.body, body, "cut at {cut}");
            response.clear();
            assert_eq!(response.feed(answer, false), Ok(Some(expected)));
            assert_eq!(response.body, b"");
        }
    }

    #[test]
    fn answers_of_every_kind() {
        check(
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            200,
            b"",
            false,
        );
        check(
            b"HTTP/1.1 404 No\r\ncontent-length: 3\r\n\r\nabc",
            404,
            b"abc",
            false,
        );
        check(b"HTTP/1.1 204 \r\n\r\n", 204, b"", false);
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: Close\r\n\r\n";
        let chunked = |body: &[u8]| [&head[..], body].concat();
        check(&chunked(b"0\r\n\r\n"), 200, b"", true);
        check(
            &chunked(b"3;x=y\r\nabc\r\n1\r\nd\r\n0\r\nT: x\r\n\r\n"),
            200,
            b"abcd",
            true,
        );
    }

    #[test]
    fn what_is_no_answer() {
        let malformed = [
            &b"SSH-2.0-OpenSSH\r\n\r\n"[..],
            b"HTTP/1.1 200 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        ];
        for answer in malformed {
            assert_eq!(Response::default().feed(answer, false), Err(Malformed));
        }
    }
}
