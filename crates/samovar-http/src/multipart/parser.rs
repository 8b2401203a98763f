//! Where the parts of a multipart body begin and end.

use super::{MultipartError, MultipartErrorKind as Kind};

/// Bytes of white space that may follow a boundary on its line. Nobody sends any.
const PADDING_LEN_MAX: usize = 64;

/// What stands at the start of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Nothing that can be told yet: call again with more bytes behind these.
    Incomplete,
    /// A delimiter or something outside of all parts; to be skipped.
    Framing,
    /// The header lines of a part, each with its line end, and the empty line: a
    /// [`PartHead`](super::PartHead) reads them. Its content follows.
    Head,
    /// Content of the part.
    Data,
    /// The content of the part is complete.
    PartEnd,
    /// The body is complete; whatever follows means nothing.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first delimiter, at the start of a line.
    PreambleLine,
    /// Before the first delimiter, within a line.
    Preamble,
    /// Behind a boundary.
    Delimiter,
    Head,
    Data,
    /// In front of the CR LF that belongs to a delimiter.
    PartEnd,
    End,
}

/// The parts of a multipart body, from any pieces of it: bytes in, events out.
///
/// [`step`](Self::step) looks at the start of its input and says what it is and how long. Only the
/// last two bytes of a part wait until it is known whether a delimiter follows.
///
/// # Examples
///
/// ```
/// use samovar_http::multipart::{Event, Parser};
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
    /// A parser for bodies with this boundary and the default [`MultipartLimits`].
    ///
    /// [`MultipartLimits`]: super::MultipartLimits
    ///
    /// # Errors
    ///
    /// If the boundary is none: 1 to 70 of the characters that RFC 2046, 5.1.1, allows, the last
    /// not a space.
    pub fn new(boundary: &str) -> Result<Self, MultipartError> {
        Self::with_limits(boundary, super::MultipartLimits::default())
    }

    /// The same with other limits; `part_len_max` is not looked at here.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_limits(
        boundary: &str,
        limits: super::MultipartLimits,
    ) -> Result<Self, MultipartError> {
        let is_char = |byte: u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(&byte);
        let is_boundary = (1..=70).contains(&boundary.len())
            && boundary.bytes().all(is_char)
            && !boundary.ends_with(' ');
        if !is_boundary {
            return Err(Kind::Boundary.into());
        }
        Ok(Self {
            delimiter: [b"\r\n--", boundary.as_bytes()].concat().into_boxed_slice(),
            state: State::PreambleLine,
            part_count: 0,
            part_count_max: limits.part_count_max,
            head_len_max: limits.head_len_max,
        })
    }

    /// How many bytes of `input` the next event covers, and the event. The count is 0 for
    /// [`Event::Incomplete`], [`Event::PartEnd`] and [`Event::End`].
    ///
    /// `Incomplete` never needs more than [`pending_len_max`](Self::pending_len_max) bytes to be
    /// resolved.
    ///
    /// # Errors
    ///
    /// Any that is no [`Boundary`](Kind::Boundary). All are final.
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

    /// Whether the last delimiter was seen.
    pub fn is_ended(&self) -> bool {
        self.state == State::End
    }

    /// The most bytes that have to be kept while they are incomplete.
    pub fn pending_len_max(&self) -> usize {
        self.head_len_max
            .max(self.delimiter.len())
            .max(PADDING_LEN_MAX + 2)
            .saturating_add(2)
    }

    /// The first boundary may open the body: RFC 2046 leaves out its CR LF there.
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

    /// What stands behind a boundary: two hyphens end the body, a line end starts a part.
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
            return Err(Kind::Delimiter.into());
        }
        match input.get(padding_len..).unwrap_or_default() {
            [b'\r', b'\n', ..] => {
                if self.part_count == self.part_count_max {
                    return Err(Kind::TooManyParts.into());
                }
                self.part_count += 1;
                self.state = State::Head;
                Ok((padding_len + 2, Event::Framing))
            }
            [] | [b'\r'] => Ok((0, Event::Incomplete)),
            _ => Err(Kind::Delimiter.into()),
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
            None if window.len() == self.head_len_max => Err(Kind::HeadTooLong.into()),
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
            // The caller gave other bytes than before.
            return Err(Kind::Delimiter.into());
        }
        self.state = State::Delimiter;
        Ok((self.delimiter.len(), Event::Framing))
    }
}

/// What is known of the first delimiter in some input.
enum Found {
    At(usize),
    /// There is none that starts before this place, and the rest may be the start of one.
    NotBefore(usize),
}

impl Found {
    fn delimiter(input: &[u8], delimiter: &[u8]) -> Self {
        if let Some(at) = memchr::memmem::find(input, delimiter) {
            return Self::At(at);
        }
        // Only behind the last CR of the input's end can a delimiter have begun.
        let from = input
            .len()
            .saturating_sub(delimiter.len().saturating_sub(1));
        let tail = input.get(from..).unwrap_or_default();
        let begun = memchr::memchr_iter(b'\r', tail)
            .find(|at| delimiter.starts_with(tail.get(*at..).unwrap_or_default()));
        Self::NotBefore(begun.map_or(input.len(), |at| from + at))
    }
}
