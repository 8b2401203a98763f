//! Finds the parts of a multipart body.

use super::{Limits, MultipartError};

/// Maximum length of the white space after a boundary on its line, in bytes. Clients send none.
const PADDING_LEN_MAX: usize = 64;

/// Kind of the bytes at the start of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The kind is not known yet: call again with these bytes and more.
    Incomplete,
    /// A delimiter, or bytes outside of all parts; to be skipped.
    Framing,
    /// The header lines of a part, each with its line end, and the empty line: a
    /// [`PartHead`](super::PartHead) parses them. The content follows.
    Head,
    /// Content of the part.
    Data,
    /// The content of the part is complete.
    PartEnd,
    /// The body is complete; later bytes are ignored.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first delimiter, at the start of a line.
    PreambleLine,
    /// Before the first delimiter, within a line.
    Preamble,
    /// After a boundary.
    Delimiter,
    Head,
    Data,
    /// Before the CR LF of a delimiter.
    PartEnd,
    End,
}

/// Splits a multipart body into its parts, from any pieces of it: bytes in, events out.
///
/// [`step`](Self::step) returns the kind and length of the bytes at the start of its input. Content
/// is returned as soon as it cannot be the start of a delimiter.
///
/// # Examples
///
/// ```
/// use samovar_http_proto::multipart::{Event, Parser};
/// let mut input = &b"--x\r\nA: b\r\n\r\nhello\r\n--x--\r\n"[..];
/// let mut parser = Parser::new("x").unwrap();
/// let mut data = Vec::new();
/// loop {
///     let (taken, event) = parser.step(input).unwrap();
///     match event {
///         Event::Data => data.extend_from_slice(&input[..taken]),
///         Event::End => break,
///         _ => {}
///     }
///     input = &input[taken..];
/// }
/// assert_eq!(data, b"hello");
/// ```
#[derive(Debug, Clone)]
pub struct Parser {
    /// CR LF, two hyphens, the boundary.
    delimiter: Box<[u8]>,
    state: State,
    part_count: usize,
    part_count_max: usize,
    head_len_max: usize,
}

impl Parser {
    /// Creates a parser for bodies with this boundary and the default [`Limits`].
    ///
    /// # Errors
    ///
    /// [`Boundary`](MultipartError::Boundary) unless the boundary consists of 1 to 70 of the
    /// characters that RFC 2046, 5.1.1 allows, and the last is not a space.
    pub fn new(boundary: &str) -> Result<Self, MultipartError> {
        Self::with_limits(boundary, Limits::default())
    }

    /// Creates a parser with other limits.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_limits(boundary: &str, limits: Limits) -> Result<Self, MultipartError> {
        let is_char = |byte: u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(&byte);
        let is_boundary = (1..=70).contains(&boundary.len())
            && boundary.bytes().all(is_char)
            && !boundary.ends_with(' ');
        if !is_boundary {
            return Err(MultipartError::Boundary);
        }
        Ok(Self {
            delimiter: [b"\r\n--", boundary.as_bytes()].concat().into_boxed_slice(),
            state: State::PreambleLine,
            part_count: 0,
            part_count_max: limits.part_count_max,
            head_len_max: limits.head_len_max,
        })
    }

    /// Returns the number of bytes of `input` that the next event covers, and the event. The number
    /// is 0 for [`Event::Incomplete`], [`Event::PartEnd`] and [`Event::End`].
    ///
    /// An input of [`pending_len_max`](Self::pending_len_max) bytes is never `Incomplete`.
    ///
    /// # Errors
    ///
    /// [`Delimiter`](MultipartError::Delimiter), [`TooManyParts`](MultipartError::TooManyParts) and
    /// [`HeadTooLong`](MultipartError::HeadTooLong). All are final.
    pub fn step(&mut self, input: &[u8]) -> Result<(usize, Event), MultipartError> {
        match self.state {
            State::PreambleLine => Ok(self.preamble_line(input)),
            State::Preamble => Ok(self.preamble(input)),
            State::Delimiter => self.delimiter_end(input),
            State::Head => self.head(input),
            State::Data => Ok(self.data(input)),
            State::PartEnd => self.part_end(input),
            State::End => Ok((0, Event::End)),
        }
    }

    /// Returns whether the body is complete.
    pub fn is_ended(&self) -> bool {
        self.state == State::End
    }

    /// Returns a length, in bytes, at which an input is never incomplete: the length of the buffer
    /// that a caller needs.
    pub fn pending_len_max(&self) -> usize {
        self.head_len_max
            .max(self.delimiter.len())
            .max(PADDING_LEN_MAX + 2)
            .saturating_add(2)
    }

    /// Looks for a boundary at the start of the body, where RFC 2046 omits its CR LF.
    fn preamble_line(&mut self, input: &[u8]) -> (usize, Event) {
        let dash_boundary = self.delimiter.get(2..).unwrap_or_default();
        let len = dash_boundary.len().min(input.len());
        if input.get(..len) != dash_boundary.get(..len) {
            self.state = State::Preamble;
            return (0, Event::Framing);
        }
        if len < dash_boundary.len() {
            return (0, Event::Incomplete);
        }
        self.state = State::Delimiter;
        (len, Event::Framing)
    }

    fn preamble(&mut self, input: &[u8]) -> (usize, Event) {
        match Found::delimiter(input, &self.delimiter) {
            Found::At(at) => {
                self.state = State::Delimiter;
                (at + self.delimiter.len(), Event::Framing)
            }
            Found::NotBefore(0) => (0, Event::Incomplete),
            Found::NotBefore(len) => (len, Event::Framing),
        }
    }

    /// Parses the bytes after a boundary: two hyphens end the body, a line end starts a part.
    fn delimiter_end(&mut self, input: &[u8]) -> Result<(usize, Event), MultipartError> {
        match input {
            [] | [b'-'] => return Ok((0, Event::Incomplete)),
            [b'-', b'-', ..] => {
                self.state = State::End;
                return Ok((2, Event::Framing));
            }
            _ => {}
        }
        let is_padding = |byte: &&u8| matches!(byte, b' ' | b'\t');
        let padding_len = input.iter().take_while(is_padding).count();
        if padding_len > PADDING_LEN_MAX {
            return Err(MultipartError::Delimiter);
        }
        match input.get(padding_len..).unwrap_or_default() {
            [b'\r', b'\n', ..] => {
                if self.part_count == self.part_count_max {
                    return Err(MultipartError::TooManyParts);
                }
                self.part_count += 1;
                self.state = State::Head;
                Ok((padding_len + 2, Event::Framing))
            }
            [] | [b'\r'] => Ok((0, Event::Incomplete)),
            _ => Err(MultipartError::Delimiter),
        }
    }

    fn head(&mut self, input: &[u8]) -> Result<(usize, Event), MultipartError> {
        let window = input.get(..self.head_len_max).unwrap_or(input);
        let end = if window.starts_with(b"\r\n") {
            Some(2)
        } else {
            memchr::memmem::find(window, b"\r\n\r\n").map(|at| at + 4)
        };
        match end {
            Some(len) => {
                self.state = State::Data;
                Ok((len, Event::Head))
            }
            None if window.len() == self.head_len_max => Err(MultipartError::HeadTooLong),
            None => Ok((0, Event::Incomplete)),
        }
    }

    fn data(&mut self, input: &[u8]) -> (usize, Event) {
        match Found::delimiter(input, &self.delimiter) {
            Found::At(0) => {
                self.state = State::PartEnd;
                (0, Event::PartEnd)
            }
            Found::At(len) => (len, Event::Data),
            Found::NotBefore(0) => (0, Event::Incomplete),
            Found::NotBefore(len) => (len, Event::Data),
        }
    }

    fn part_end(&mut self, input: &[u8]) -> Result<(usize, Event), MultipartError> {
        if !input.starts_with(&self.delimiter) {
            // The caller has passed other bytes than before.
            return Err(MultipartError::Delimiter);
        }
        self.state = State::Delimiter;
        Ok((self.delimiter.len(), Event::Framing))
    }
}

/// Result of a search for the first delimiter.
enum Found {
    At(usize),
    /// No delimiter starts before this index; the rest may be the start of one.
    NotBefore(usize),
}

impl Found {
    fn delimiter(input: &[u8], delimiter: &[u8]) -> Self {
        if let Some(at) = memchr::memmem::find(input, delimiter) {
            return Self::At(at);
        }
        // A delimiter may have begun at a CR among the last bytes.
        let from = input
            .len()
            .saturating_sub(delimiter.len().saturating_sub(1));
        let tail = input.get(from..).unwrap_or_default();
        let begun = memchr::memchr_iter(b'\r', tail)
            .find(|at| delimiter.starts_with(tail.get(*at..).unwrap_or_default()));
        Self::NotBefore(begun.map_or(input.len(), |at| from + at))
    }
}
