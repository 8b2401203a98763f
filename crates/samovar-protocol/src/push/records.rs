//! [`Records`]: the bodies of `pack` and `publish`, and the errors of all bodies.
//!
//! # Grammar
//!
//! ```text
//! body = *(line LF bytes) "end " number LF
//! ```
//!
//! `line` is a [`RecordLine`]. A `number` is decimal, below 2^64, without leading zeros. `bytes`
//! are as many as the line before them states. The number after `end` is the number of records.
//! Nothing follows the last LF.

use std::io::{self, BufRead, Read};
use std::marker::PhantomData;

use crate::framed::Framed;

/// Maximum length of the line before a record, and of the last line, in bytes, without its LF.
pub const LINE_LEN_MAX: usize = 128;

/// Reason why a body does not follow the grammar, or exceeds a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A line of the body of `open` is malformed.
    #[error(
        "line {0} is not a hash part, a NAR hash, a NAR size and maybe a name, separated by one \
         space"
    )]
    OpenLine(usize),
    /// The line before a record is malformed.
    #[error("record {number} does not start with the line {form:?}, or with \"end {count}\"")]
    Record {
        /// Number of the record, from 1.
        number: usize,
        /// The expected form of the line.
        form: &'static str,
        /// Number of records before the malformed line.
        count: usize,
    },
    /// A record is longer than allowed.
    #[error("record {number} has {len} bytes, the limit is {limit}")]
    RecordTooLong {
        /// Number of the record, from 1.
        number: usize,
        /// Length that the line before the record states, in bytes.
        len: u64,
        /// Maximum length of a record, in bytes.
        limit: u64,
    },
    /// There are more lines or records than allowed.
    #[error("the body has more than {0} entries: send several requests")]
    TooMany(usize),
    /// The body ends before its `end` line.
    #[error("the body ends before its line \"end\"")]
    Truncated,
    /// Bytes follow the `end` line.
    #[error("bytes follow the line \"end\"")]
    BytesAfterEnd,
}

impl WireError {
    /// Returns the `WireError` inside an error of [`Records`], even if other code has wrapped that
    /// error. Returns `None` for other errors.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }

    /// Returns whether the body exceeds a limit (HTTP status 413) instead of violating the grammar
    /// (400).
    #[must_use]
    pub const fn is_too_large(&self) -> bool {
        matches!(self, Self::TooMany(_) | Self::RecordTooLong { .. })
    }
}

impl From<WireError> for io::Error {
    fn from(error: WireError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// The line before each record in the body of a `pack` or `publish` request. It gives the length
/// of the record.
pub trait RecordLine: Copy {
    /// The expected form of the line, for error messages.
    const FORM: &'static str;
    /// Maximum number of records in a body.
    const COUNT_MAX: usize;
    /// Maximum length of the record after the line, in bytes.
    const LEN_MAX: u64;

    /// Parses the line, without its LF. Returns `None` if the line is malformed.
    fn parse(line: &[u8]) -> Option<Self>;

    /// Returns the line, without its LF.
    fn text(&self) -> String;

    /// Returns the length of the record that follows the line, in bytes.
    fn record_len(&self) -> u64;
}

/// Appends a record to a body: the line, then the bytes. The line must state their length.
pub fn write_record(body: &mut Vec<u8>, line: &impl RecordLine, bytes: &[u8]) {
    debug_assert_eq!(line.record_len(), bytes.len() as u64);
    body.extend_from_slice(line.text().as_bytes());
    body.push(b'\n');
    body.extend_from_slice(bytes);
}

/// Appends the last line to a body with this number of records.
pub fn write_end(body: &mut Vec<u8>, count: usize) {
    body.extend_from_slice(end_line(count).as_bytes());
    body.push(b'\n');
}

fn end_line(count: usize) -> String {
    format!("end {count}")
}

/// Reads the records of a `pack` or `publish` body.
///
/// [`next_record`](Self::next_record) reads the line before a record; after that, [`Read`] returns
/// the bytes of the record. If the body breaks the grammar, the error of both contains a
/// [`WireError`]; then the rest of the body must not be read.
#[derive(Debug)]
pub struct Records<R, L> {
    body: Framed<R>,
    /// Number of records whose line has been read.
    count: usize,
    is_ended: bool,
    line: PhantomData<L>,
}

impl<R: BufRead, L: RecordLine> Records<R, L> {
    /// Creates a reader of the body in `source`.
    pub fn new(source: R) -> Self {
        Self {
            body: Framed::new(source),
            count: 0,
            is_ended: false,
            line: PhantomData,
        }
    }

    /// Skips the rest of the current record, and reads the line before the next one. Returns `None`
    /// at the end of the body.
    ///
    /// # Errors
    ///
    /// An error of the source, or one that contains a [`WireError`].
    pub fn next_record(&mut self) -> io::Result<Option<L>> {
        io::copy(self, &mut io::sink())?;
        if self.is_ended {
            return Ok(None);
        }
        let (truncated, too_long) = (WireError::Truncated, self.no_record());
        let line = self.body.read_line(LINE_LEN_MAX, truncated, too_long)?;
        if line == end_line(self.count).as_bytes() {
            self.is_ended = true;
            return match self.body.is_at_end()? {
                true => Ok(None),
                false => Err(WireError::BytesAfterEnd.into()),
            };
        }
        let line = L::parse(&line).ok_or_else(|| self.no_record())?;
        if self.count >= L::COUNT_MAX {
            return Err(WireError::TooMany(L::COUNT_MAX).into());
        }
        // The number is at most `COUNT_MAX`.
        self.count = self.count.saturating_add(1);
        let (number, len, limit) = (self.count, line.record_len(), L::LEN_MAX);
        if len > limit {
            return Err(WireError::RecordTooLong { number, len, limit }.into());
        }
        self.body.set_left(len);
        Ok(Some(line))
    }

    /// Returns the number of the current record, from 1.
    pub fn number(&self) -> usize {
        self.count
    }

    fn no_record(&self) -> WireError {
        WireError::Record {
            number: self.count.saturating_add(1),
            form: L::FORM,
            count: self.count,
        }
    }
}

impl<R: BufRead, L> Read for Records<R, L> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.body.read(buffer, WireError::Truncated)
    }
}

#[cfg(test)]
mod tests;
