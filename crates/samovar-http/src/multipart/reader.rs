//! Parts as readers.

use std::io::{self, Read};

use super::{Event, MultipartError, MultipartErrorKind as Kind, MultipartLimits, Parser, PartHead};
use crate::http::MediaType;

/// Bytes read at once, if a body's limits do not ask for more.
const BUFFER_LEN: usize = 16 * 1024;

/// A multipart body as it is read. Holds a buffer of 16 KiB and nothing else of the body.
#[derive(Debug)]
pub struct Multipart<R> {
    body: R,
    parser: Parser,
    part_len_max: u64,
    buffer: Vec<u8>,
    /// Invariant: `start <= end <= buffer.len()`. Between them lies what is read and not parsed.
    start: usize,
    end: usize,
    /// What lies before is known to be content, so it is not searched again.
    known_end: usize,
    /// Bytes of content of this part so far.
    part_len: u64,
    /// The content of a part is under way.
    is_in_part: bool,
    is_failed: bool,
}

impl<R: Read> Multipart<R> {
    /// Reads `body` as what the value of a `Content-Type` says.
    ///
    /// # Errors
    ///
    /// If that is not `multipart/form-data` with a boundary.
    pub fn new(content_type: &[u8], body: R) -> Result<Self, MultipartError> {
        Self::with_limits(content_type, body, MultipartLimits::default())
    }

    /// The same with other limits.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_limits(
        content_type: &[u8],
        body: R,
        limits: MultipartLimits,
    ) -> Result<Self, MultipartError> {
        let parser = Parser::with_limits(&boundary(content_type)?, limits)?;
        let buffer = vec![0; parser.pending_len_max().max(BUFFER_LEN)];
        Ok(Self {
            body,
            parser,
            part_len_max: limits.part_len_max,
            buffer,
            start: 0,
            end: 0,
            known_end: 0,
            part_len: 0,
            is_in_part: false,
            is_failed: false,
        })
    }

    /// The next part; `None` behind the last. What was not read of the part before is skipped.
    ///
    /// # Errors
    ///
    /// If the body is malformed, too large or cannot be read. Final: every later call fails too.
    pub fn next_part(&mut self) -> Result<Option<Part<'_, R>>, MultipartError> {
        while self.is_in_part {
            self.content(usize::MAX)?;
        }
        loop {
            let (taken, event) = self.step()?;
            let at = self.start;
            self.start += taken;
            match event {
                Event::Head => {
                    let lines = self.buffer.get(at..self.start).unwrap_or_default();
                    let head = PartHead::parse(lines);
                    self.is_failed = head.is_err();
                    self.is_in_part = true;
                    self.part_len = 0;
                    return Ok(Some(Part {
                        head: head?,
                        body: self,
                    }));
                }
                Event::End => return Ok(None),
                _ => {}
            }
        }
    }

    /// All parts, in memory: for forms whose size the route bounds. At most `len_max` bytes of
    /// content in sum.
    ///
    /// # Errors
    ///
    /// As [`next_part`](Self::next_part), and [`PartTooLong`](Kind::PartTooLong) for more than
    /// `len_max`.
    pub fn collect(mut self, len_max: u64) -> Result<Form, MultipartError> {
        let (mut entries, mut left) = (Vec::new(), len_max);
        while let Some(mut part) = self.next_part()? {
            let content = part.content(left)?;
            left -= content.len() as u64;
            entries.push(Entry {
                head: part.head,
                content,
            });
        }
        Ok(Form { entries })
    }

    /// Some bytes of the part that is under way, at most `len_max`; none at its end.
    fn content(&mut self, len_max: usize) -> Result<&[u8], MultipartError> {
        if self.known_end <= self.start && self.is_in_part {
            let (len, event) = self.step()?;
            self.is_in_part = event != Event::PartEnd;
            self.known_end = self.start + len;
        }
        let at = self.start;
        let len = self.known_end.saturating_sub(at).min(len_max);
        self.part_len = self.part_len.saturating_add(len as u64);
        if self.part_len > self.part_len_max {
            self.is_failed = true;
            return Err(Kind::PartTooLong.into());
        }
        self.start += len;
        Ok(self.buffer.get(at..self.start).unwrap_or_default())
    }

    fn step(&mut self) -> Result<(usize, Event), MultipartError> {
        if self.is_failed {
            return Err(Kind::Read.into());
        }
        let step = self.try_step();
        self.is_failed = step.is_err();
        step
    }

    fn try_step(&mut self) -> Result<(usize, Event), MultipartError> {
        loop {
            let input = self.buffer.get(self.start..self.end).unwrap_or_default();
            match self.parser.step(input)? {
                (_, Event::Incomplete) => self.fill()?,
                step => return Ok(step),
            }
        }
    }

    fn fill(&mut self) -> Result<(), MultipartError> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end, self.known_end) = (0, self.end - self.start, 0);
        // There is room: what is incomplete is always shorter than the buffer.
        let room = self.buffer.get_mut(self.end..).unwrap_or_default();
        let len = loop {
            match self.body.read(room) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(MultipartError {
                        kind: Kind::Read,
                        source: Some(error),
                    });
                }
                Ok(len) => break len,
            }
        };
        if len == 0 {
            return Err(Kind::Truncated.into());
        }
        self.end += len;
        Ok(())
    }
}

fn boundary(content_type: &[u8]) -> Result<String, MultipartError> {
    const ESSENCE: &[u8] = b"multipart/form-data";
    let mut value = content_type.trim_ascii().to_vec();
    if let Some((essence, [separator @ b',', ..])) = value.split_at_mut_checked(ESSENCE.len())
        && essence.eq_ignore_ascii_case(ESSENCE)
    {
        *separator = b';';
    }
    let media_type = MediaType::parse(&value).ok_or(Kind::MediaType)?;
    if !media_type.is("multipart/form-data") {
        return Err(Kind::MediaType.into());
    }
    let boundary = media_type.parameter("boundary").ok_or(Kind::Boundary)?;
    Ok(boundary.into_owned())
}

/// A part of a form: its head, and its content as a [`Read`].
#[derive(Debug)]
pub struct Part<'a, R> {
    head: PartHead,
    body: &'a mut Multipart<R>,
}

impl<R: Read> Part<'_, R> {
    /// The header lines.
    pub fn head(&self) -> &PartHead {
        &self.head
    }

    /// The name of the form's field.
    pub fn name(&self) -> &str {
        self.head.name()
    }

    /// As [`PartHead::file_name`]: the client's word, and not a path.
    pub fn file_name(&self) -> Option<&str> {
        self.head.file_name()
    }

    /// What is left of the content, if it is at most `len_max` bytes.
    ///
    /// # Errors
    ///
    /// [`PartTooLong`](Kind::PartTooLong), or as [`Multipart::next_part`].
    pub fn content(&mut self, len_max: u64) -> Result<Vec<u8>, MultipartError> {
        let mut content = Vec::new();
        loop {
            let piece = self.body.content(usize::MAX)?;
            if piece.is_empty() {
                return Ok(content);
            }
            if (content.len() as u64).saturating_add(piece.len() as u64) > len_max {
                return Err(Kind::PartTooLong.into());
            }
            content.extend_from_slice(piece);
        }
    }

    /// The same as text.
    ///
    /// # Errors
    ///
    /// As [`content`](Self::content), and [`NotText`](Kind::NotText).
    pub fn text(&mut self, len_max: u64) -> Result<String, MultipartError> {
        String::from_utf8(self.content(len_max)?).map_err(|_not_text| Kind::NotText.into())
    }
}

impl<R: Read> Read for Part<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let piece = self.body.content(buf.len()).map_err(into_io_error)?;
        let place = buf.get_mut(..piece.len()).unwrap_or_default();
        place.copy_from_slice(piece);
        Ok(piece.len())
    }
}

/// The error of the body where that is the cause, so that readers see it as it is.
fn into_io_error(mut error: MultipartError) -> io::Error {
    match error.source.take() {
        Some(cause) => cause,
        None => io::Error::other(error),
    }
}

/// A whole form in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Form {
    entries: Vec<Entry>,
}

impl Form {
    /// All parts in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The first part with this name.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.head.name() == name)
    }

    /// The text of the first part with this name; `None` too if it is not UTF-8.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.text()
    }
}

/// A part in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its head.
    pub head: PartHead,
    /// Its content.
    pub content: Vec<u8>,
}

impl Entry {
    /// The content as text; `None` if it is not UTF-8.
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.content).ok()
    }
}
