//! An incremental decoder of HTTP/1.1 responses, without I/O.

use httparse::Status;

/// Maximum length of a head, in bytes.
const HEAD_LEN_MAX: usize = 1 << 20;
/// Maximum number of header lines in a head.
const HEADERS_MAX: usize = 64;
/// Maximum length of a line between chunks (a chunk size with extensions, or a trailer), in bytes.
const LINE_LEN_MAX: usize = 64 << 10;

/// Error of the decoder: the bytes are not an HTTP/1.1 response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// A part of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// The head is complete: see [`Decoder::head`].
    Head,
    /// Bytes of the content, without the framing of chunks.
    Content(&'a [u8]),
    /// The response is complete; further events belong to the next response.
    End,
}

/// How the end of the content is found, according to the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// The content has this length, in bytes; 0 for responses without content.
    Length(u64),
    /// The content ends with the last chunk.
    Chunked,
    /// The content ends with the connection.
    Close,
}

/// Status line and header lines of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Status code.
    pub status: u16,
    /// How the end of the content is found.
    pub framing: Framing,
    /// Whether the connection can carry another request.
    pub keeps_alive: bool,
    /// Raw bytes of the head, including the empty line at its end.
    pub bytes: Vec<u8>,
}

impl Head {
    /// Returns name and trimmed value of each header line, except lines that are not UTF-8.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        let lines = self.bytes.split(|&byte| byte == b'\n').skip(1);
        lines.filter_map(|line| {
            let (name, value) = std::str::from_utf8(line).ok()?.split_once(':')?;
            Some((name, value.trim()))
        })
    }

    /// Returns the value of the first header with this name, if there is one; case is ignored.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers();
        headers.find_map(|(field, value)| field.eq_ignore_ascii_case(name).then_some(value))
    }
}

#[derive(Debug, Clone, Copy)]
enum State {
    Head,
    Sized(u64),
    ChunkSize,
    Chunk(u64),
    /// The line end that follows the bytes of a chunk.
    ChunkEnd,
    Trailers,
    Close,
}

/// Decodes consecutive responses of one connection.
///
/// Nothing is allocated per response once the buffers have grown to the size of the heads.
#[derive(Debug)]
pub struct Decoder {
    state: State,
    /// The beginning of a head, or of a line between chunks, whose end was not received yet.
    partial: Vec<u8>,
    head: Head,
    trailers: Vec<u8>,
    to_head: bool,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            state: State::Head,
            partial: Vec::new(),
            head: Head {
                status: 0,
                framing: Framing::Length(0),
                keeps_alive: false,
                bytes: Vec::new(),
            },
            trailers: Vec::new(),
            to_head: false,
        }
    }
}

impl Decoder {
    /// Resets the decoder for another connection.
    pub fn clear(&mut self) {
        self.state = State::Head;
        self.partial.clear();
    }

    /// Sets whether the next response is to a HEAD request, and hence has no content.
    pub fn set_to_head(&mut self, to_head: bool) {
        self.to_head = to_head;
    }

    /// Returns the head of the current response, or of the last one after [`Event::End`].
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Returns the trailer lines of the current response, or of the last one after its end.
    pub fn trailers(&self) -> &[u8] {
        &self.trailers
    }

    /// Tells the decoder that the caller has read `len` bytes of content of a known length directly
    /// from the stream.
    pub(super) fn skip(&mut self, len: usize) {
        if let State::Sized(left) = &mut self.state {
            *left = left.saturating_sub(len as u64);
        }
    }

    /// Returns whether no byte of a response has been decoded since the last one ended.
    pub fn is_between_responses(&self) -> bool {
        matches!(self.state, State::Head) && self.partial.is_empty()
    }

    /// Decodes the next part of a response from the start of `input` and advances `input` past it.
    /// Returns `None` once all of `input` is consumed and more bytes are needed.
    ///
    /// # Errors
    ///
    /// If the bytes are not a response according to RFC 9112. A bare LF in a head is an error too.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, Malformed> {
        loop {
            match self.state {
                State::Head => return Ok(self.read_head(input)?.then_some(Event::Head)),
                State::Sized(0) => return Ok(Some(self.end())),
                State::Sized(left) => {
                    return Ok(take(input, left).map(|(content, left)| {
                        self.state = State::Sized(left);
                        Event::Content(content)
                    }));
                }
                State::Chunk(left) => {
                    return Ok(take(input, left).map(|(content, left)| {
                        self.state = match left {
                            0 => State::ChunkEnd,
                            left => State::Chunk(left),
                        };
                        Event::Content(content)
                    }));
                }
                State::Close => {
                    return Ok(take(input, u64::MAX).map(|(content, _)| Event::Content(content)));
                }
                State::ChunkSize | State::ChunkEnd | State::Trailers => {
                    if !self.read_line(input)? {
                        return Ok(None);
                    }
                    if self.after_line()? {
                        return Ok(Some(self.end()));
                    }
                }
            }
        }
    }

    /// Handles the end of the connection. Returns `true` if it completes a response that extends to
    /// the end of the connection, and `false` if no response had started.
    ///
    /// # Errors
    ///
    /// If the connection ends within a response.
    pub fn finish(&mut self) -> Result<bool, Malformed> {
        match self.state {
            State::Close => {
                self.end();
                Ok(true)
            }
            _ if self.is_between_responses() => Ok(false),
            _ => Err(Malformed),
        }
    }

    fn end<'a>(&mut self) -> Event<'a> {
        self.state = State::Head;
        Event::End
    }

    /// Interprets the complete line in `partial` and clears it. Returns whether it was the last
    /// line of the response.
    fn after_line(&mut self) -> Result<bool, Malformed> {
        let is_empty = self.partial == b"\r\n";
        match self.state {
            State::ChunkSize => {
                let size = httparse::parse_chunk_size(&self.partial);
                let Ok(Status::Complete((_, size))) = size else {
                    return Err(Malformed);
                };
                self.state = match size {
                    0 => State::Trailers,
                    size => State::Chunk(size),
                };
            }
            State::ChunkEnd if is_empty => self.state = State::ChunkSize,
            State::Trailers if is_empty => {
                self.partial.clear();
                return Ok(true);
            }
            State::Trailers => self.trailers.extend_from_slice(&self.partial),
            _ => return Err(Malformed),
        }
        self.partial.clear();
        Ok(false)
    }

    /// Collects bytes of a head. Returns whether the head is complete.
    fn read_head(&mut self, input: &mut &[u8]) -> Result<bool, Malformed> {
        // Most heads arrive in one read and are parsed without copying.
        if self.partial.is_empty()
            && let Some(len) = self.parse_head(input)?
        {
            *input = input.get(len..).unwrap_or_default();
            return Ok(true);
        }
        let before = self.partial.len();
        self.partial.extend_from_slice(input);
        let partial = std::mem::take(&mut self.partial);
        let parsed = self.parse_head(&partial)?;
        self.partial = partial;
        let Some(len) = parsed else {
            *input = &[];
            return match self.partial.len() {
                ..=HEAD_LEN_MAX => Ok(false),
                _ => Err(Malformed),
            };
        };
        self.partial.clear();
        *input = input.get(len - before..).unwrap_or_default();
        Ok(true)
    }

    /// Parses a head at the start of `bytes`. Returns its length; `None` if the head is incomplete.
    fn parse_head(&mut self, bytes: &[u8]) -> Result<Option<usize>, Malformed> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let len = match response.parse(bytes) {
            Ok(Status::Complete(len)) => len,
            Ok(Status::Partial) => return Ok(None),
            Err(_) => return Err(Malformed),
        };
        let bytes = bytes.get(..len).ok_or(Malformed)?;
        // The parser accepts deviations that RFC 9112 permits recipients to accept; these two are
        // errors here.
        if !bytes.starts_with(b"HTTP/") || has_bare_lf(bytes) {
            return Err(Malformed);
        }
        let status = response.code.ok_or(Malformed)?;
        let (mut content_length, mut is_chunked) = (None, false);
        let mut keeps_alive = response.version == Some(1);
        for header in response.headers {
            if header.name.eq_ignore_ascii_case("content-length") {
                let length = length(header.value)?;
                if content_length.is_some_and(|other| other != length) {
                    return Err(Malformed);
                }
                content_length = Some(length);
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                if is_chunked || !header.value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Malformed);
                }
                is_chunked = true;
            } else if header.name.eq_ignore_ascii_case("connection") {
                let mut options = header.value.split(|&byte| byte == b',');
                keeps_alive =
                    !options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"));
            }
        }
        let has_content = !self.to_head && status >= 200 && status != 204 && status != 304;
        let framing = match (has_content, is_chunked, content_length) {
            (_, true, Some(_)) => return Err(Malformed),
            (false, ..) => Framing::Length(0),
            (true, true, None) => Framing::Chunked,
            (true, false, Some(length)) => Framing::Length(length),
            (true, false, None) => Framing::Close,
        };
        self.state = match framing {
            Framing::Length(length) => State::Sized(length),
            Framing::Chunked => State::ChunkSize,
            Framing::Close => State::Close,
        };
        self.head.status = status;
        self.head.framing = framing;
        self.head.keeps_alive = keeps_alive && framing != Framing::Close;
        self.head.bytes.clear();
        self.head.bytes.extend_from_slice(bytes);
        self.trailers.clear();
        Ok(Some(len))
    }

    /// Collects bytes of a line in `partial`. Returns whether the line is complete.
    fn read_line(&mut self, input: &mut &[u8]) -> Result<bool, Malformed> {
        let end = input.iter().position(|&byte| byte == b'\n');
        let (line, rest) = input.split_at(end.map_or(input.len(), |end| end + 1));
        self.partial.extend_from_slice(line);
        *input = rest;
        if self.partial.len() > LINE_LEN_MAX || end.is_some() && !self.partial.ends_with(b"\r\n") {
            return Err(Malformed);
        }
        Ok(end.is_some())
    }
}

/// Takes at most `left` bytes off the start of `input`. Returns them, and how many bytes are still
/// left after them; `None` if `input` is empty.
fn take<'a>(input: &mut &'a [u8], left: u64) -> Option<(&'a [u8], u64)> {
    if input.is_empty() {
        return None;
    }
    let len = usize::try_from(left).map_or(input.len(), |left| left.min(input.len()));
    let (content, rest) = input.split_at(len);
    *input = rest;
    Some((content, left - len as u64))
}

/// Parses the value of Content-Length, which must consist of digits only.
fn length(value: &[u8]) -> Result<u64, Malformed> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(Malformed);
    }
    let text = std::str::from_utf8(value).ok();
    text.and_then(|text| text.parse().ok()).ok_or(Malformed)
}

fn has_bare_lf(bytes: &[u8]) -> bool {
    let mut before = 0;
    bytes.iter().any(|&byte| {
        let is_bare = byte == b'\n' && before != b'\r';
        before = byte;
        is_bare
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Decoded = (u16, Vec<u8>, Vec<u8>);

    /// Decodes all of `pieces`; returns status, content and trailers of each response.
    fn decode(pieces: &[&[u8]]) -> Result<Vec<Decoded>, Malformed> {
        let (mut decoder, mut content, mut responses) = (Decoder::default(), Vec::new(), vec![]);
        for mut piece in pieces.iter().copied() {
            while let Some(event) = decoder.next(&mut piece)? {
                match event {
                    Event::Head => {}
                    Event::Content(bytes) => content.extend_from_slice(bytes),
                    Event::End => responses.push((
                        decoder.head().status,
                        std::mem::take(&mut content),
                        decoder.trailers().to_vec(),
                    )),
                }
            }
        }
        if decoder.finish()? {
            responses.push((decoder.head().status, content, Vec::new()));
        }
        Ok(responses)
    }

    #[test]
    fn responses_are_the_same_wherever_the_bytes_are_split() {
        let bytes = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n\
            HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc\
            HTTP/1.1 204 \r\n\r\n\
            HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n\
            HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n\
            3;x=y\r\nabc\r\n1\r\nd\r\n0\r\nT: x\r\n\r\n\
            HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n\
            HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nto the end";
        let expected = [
            (103, &b""[..], &b""[..]),
            (200, b"abc", b""),
            (204, b"", b""),
            (304, b"", b""),
            (200, b"abcd", b"T: x\r\n"),
            (404, b"", b""),
            (200, b"to the end", b""),
        ]
        .map(|(status, content, trailers)| (status, content.to_vec(), trailers.to_vec()));
        for split in 0..bytes.len() {
            let (first, second) = bytes.split_at(split);
            assert_eq!(
                decode(&[first, second]).unwrap(),
                expected,
                "split at {split}"
            );
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(decode(&single).unwrap(), expected);
    }

    #[test]
    fn malformed_responses_are_refused() {
        for bytes in [
            &b"SSH-2.0-OpenSSH\r\n\r\n"[..],
            b"\r\nHTTP/1.1 204 \r\n\r\n",
            b"HTTP/1.1 204 No Content\n\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\na",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\na",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
            b"HTTP/1.1 200 OK\r\nContent-Len",
        ] {
            assert_eq!(decode(&[bytes]), Err(Malformed), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_response_to_head_has_no_content() {
        let mut decoder = Decoder::default();
        decoder.set_to_head(true);
        let mut input = &b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHTTP/1.1"[..];
        assert_eq!(decoder.next(&mut input), Ok(Some(Event::Head)));
        assert_eq!(decoder.head().header("content-length"), Some("5"));
        assert!(decoder.head().keeps_alive);
        assert_eq!(decoder.next(&mut input), Ok(Some(Event::End)));
        assert_eq!(input, b"HTTP/1.1");
    }
}
