//! Forms with files (`multipart/form-data`), read part by part in constant memory.
//!
//! [`Multipart::next_part`] returns one part after the other, and each [`Part`] is a
//! [`Read`]. [`Multipart::collect`] reads a small form into memory. The parser is
//! [`samovar_http_proto::multipart`], which documents the format and its limits.
//!
//! ```
//! use samovar_http::{Error, Request, Route, Router, http::Status};
//! use samovar_web::RequestExt;
//!
//! fn upload(request: &mut Request) -> Result<Status, Error> {
//!     let mut form = request.multipart()?;
//!     while let Some(mut part) = form.next_part()? {
//!         if part.name() == "photo" {
//!             std::io::copy(&mut part, &mut std::fs::File::create("photo")?)?;
//!         }
//!     }
//!     Ok(Status::NO_CONTENT)
//! }
//! let router = Router::new().route(Route::post("/photos", upload).streaming(100 << 20));
//! ```
//!
//! All errors are [`io::Error`]s, which `?` converts to an [`Error`] with the right status: a
//! malformed form is a [`MultipartError`] inside, and an error of the body stays as it is.

use std::io::{self, Read};

use samovar_http::{BodyReader, Error, Request};
use samovar_http_proto::multipart::{Event, Parser, boundary};
pub use samovar_http_proto::multipart::{Limits, MultipartError, PartHead};

/// Length of the buffer, in bytes, unless the limits need a longer one.
const BUFFER_LEN: usize = 16 * 1024;

/// A multipart body that is being read. Holds a buffer of 16 KiB, and no other part of the body.
#[derive(Debug)]
pub struct Multipart<R> {
    body: R,
    parser: Parser,
    buffer: Vec<u8>,
    /// Invariant: `start <= end <= buffer.len()`. The bytes between them are read and not parsed.
    start: usize,
    end: usize,
    /// The bytes before this index are known to be content, so they are not searched again.
    known_end: usize,
    /// Whether the content of a part is being read.
    is_in_part: bool,
    /// The error that has ended the body. It is returned again: a caller that ignores it must not
    /// mistake it for the end of a part.
    failed: Option<MultipartError>,
}

/// Creates the reader of a request's body.
pub(crate) fn of_request(
    request: &mut Request,
    limits: Limits,
) -> Result<Multipart<BodyReader<'_>>, Error> {
    let content_type = request.head().header("content-type").map(<[u8]>::to_vec);
    let content_type = content_type.unwrap_or_default();
    Ok(Multipart::new(&content_type, request.reader(), limits)?)
}

impl<R: Read> Multipart<R> {
    /// Creates a reader of `body`, whose `Content-Type` has the given value.
    ///
    /// # Errors
    ///
    /// If the value is not `multipart/form-data` with a valid boundary.
    pub fn new(content_type: &[u8], body: R, limits: Limits) -> Result<Self, MultipartError> {
        let parser = Parser::with_limits(&boundary(content_type)?, limits)?;
        let buffer = vec![0; parser.pending_len_max().max(BUFFER_LEN)];
        Ok(Self {
            body,
            parser,
            buffer,
            start: 0,
            end: 0,
            known_end: 0,
            is_in_part: false,
            failed: None,
        })
    }

    /// Returns the next part; `None` after the last. Skips what was not read of the part before.
    ///
    /// # Errors
    ///
    /// [`MultipartError`] for a malformed body, which is final, and errors of the body.
    pub fn next_part(&mut self) -> io::Result<Option<Part<'_, R>>> {
        while self.is_in_part {
            self.content(usize::MAX)?;
        }
        loop {
            let (len, event) = self.step()?;
            let lines = self.start..self.start + len;
            self.start += len;
            match event {
                Event::Head => {
                    let parsed = PartHead::parse(self.buffer.get(lines).unwrap_or_default());
                    let head = parsed.map_err(|error| self.fail(error))?;
                    self.is_in_part = true;
                    return Ok(Some(Part { head, body: self }));
                }
                Event::End => return Ok(None),
                _ => {}
            }
        }
    }

    /// Reads all parts into memory; their contents may have at most `len_max` bytes together.
    ///
    /// # Errors
    ///
    /// As [`next_part`](Self::next_part), and [`PartTooLong`](MultipartError::PartTooLong) for more
    /// than `len_max` bytes.
    pub fn collect(mut self, len_max: u64) -> io::Result<Form> {
        let (mut fields, mut left) = (Vec::new(), len_max);
        while let Some(mut part) = self.next_part()? {
            let content = part.content(left)?;
            left -= content.len() as u64;
            fields.push(Field {
                head: part.head,
                content,
            });
        }
        Ok(Form { fields })
    }

    /// Returns some bytes of the current part, at most `len_max`; none at its end.
    fn content(&mut self, len_max: usize) -> io::Result<&[u8]> {
        if self.known_end <= self.start && self.is_in_part {
            let (len, event) = self.step()?;
            self.is_in_part = event != Event::PartEnd;
            self.known_end = self.start + len;
        }
        let from = self.start;
        let len = self.known_end.saturating_sub(from).min(len_max);
        self.start += len;
        Ok(self.buffer.get(from..self.start).unwrap_or_default())
    }

    fn step(&mut self) -> io::Result<(usize, Event)> {
        if let Some(error) = self.failed {
            return Err(io_error(error));
        }
        loop {
            let input = self.buffer.get(self.start..self.end).unwrap_or_default();
            match self.parser.step(input) {
                Ok((_, Event::Incomplete)) => self.fill()?,
                Ok(step) => return Ok(step),
                Err(error) => return Err(self.fail(error)),
            }
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end, self.known_end) = (0, self.end - self.start, 0);
        // The buffer has room: an incomplete input is shorter than `pending_len_max`.
        let room = self.buffer.get_mut(self.end..).unwrap_or_default();
        let len = loop {
            match self.body.read(room) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => break outcome?,
            }
        };
        if len == 0 {
            return Err(self.fail(MultipartError::Truncated));
        }
        self.end += len;
        Ok(())
    }

    fn fail(&mut self, error: MultipartError) -> io::Error {
        self.failed = Some(error);
        io_error(error)
    }
}

fn io_error(error: MultipartError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// A part of a form: its head, and its content as a [`Read`].
#[derive(Debug)]
pub struct Part<'a, R> {
    head: PartHead,
    body: &'a mut Multipart<R>,
}

impl<R: Read> Part<'_, R> {
    /// Returns the header lines.
    pub fn head(&self) -> &PartHead {
        &self.head
    }

    /// Returns the name of the form's field.
    pub fn name(&self) -> &str {
        self.head.name()
    }

    /// Returns the name of the file as sent by the client; `None` for a field without a file. It
    /// may be any text, so it must not become a path.
    pub fn file_name(&self) -> Option<&str> {
        self.head.file_name()
    }

    /// Reads the rest of the content into memory.
    ///
    /// # Errors
    ///
    /// [`PartTooLong`](MultipartError::PartTooLong) for more than `len_max` bytes, and the errors
    /// of [`Multipart::next_part`].
    pub fn content(&mut self, len_max: u64) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        loop {
            let piece = self.body.content(usize::MAX)?;
            if piece.is_empty() {
                return Ok(content);
            }
            if (content.len() as u64).saturating_add(piece.len() as u64) > len_max {
                return Err(self.body.fail(MultipartError::PartTooLong));
            }
            content.extend_from_slice(piece);
        }
    }

    /// Reads the rest of the content into memory, as text.
    ///
    /// # Errors
    ///
    /// As [`content`](Self::content), and [`NotText`](MultipartError::NotText).
    pub fn text(&mut self, len_max: u64) -> io::Result<String> {
        let content = self.content(len_max)?;
        String::from_utf8(content).map_err(|_not_utf8| self.body.fail(MultipartError::NotText))
    }
}

impl<R: Read> Read for Part<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let piece = self.body.content(buffer.len())?;
        let place = buffer.get_mut(..piece.len()).unwrap_or_default();
        place.copy_from_slice(piece);
        Ok(piece.len())
    }
}

/// A form in memory, returned by [`Multipart::collect`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Form {
    fields: Vec<Field>,
}

impl Form {
    /// Returns all fields, in the order sent.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Returns the first field with this name; `None` if there is none.
    pub fn get(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.head.name() == name)
    }

    /// Returns the text of the first field with this name; `None` if there is none, or if it is not
    /// UTF-8.
    pub fn text(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(&self.get(name)?.content).ok()
    }
}

/// A field or file of a form, in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// The header lines.
    pub head: PartHead,
    /// The content.
    pub content: Vec<u8>,
}
