//! Parsers of the request bodies of the push protocol.
//!
//! # Grammar
//!
//! ```text
//! open    = *(hash-part " " nar-hash " " number LF)
//! pack    = *("nar " nar-hash " " compression " " number LF bytes) "end " number LF
//! publish = *("narinfo " number LF bytes) "end " number LF
//! ```
//!
//! `hash-part` and `nar-hash` are in Nix's base-32, 32 and 52 characters. `compression` is a name
//! that narinfos use. A `number` is decimal, below 2^64, without leading zeros. `bytes` are as many
//! as the number before them states. The number after `end` is the number of records. Nothing
//! follows the last LF.

use std::io::{self, BufRead, Read};
use std::marker::PhantomData;

use samovar_nix::narinfo::Compression;
use samovar_nix::{HashPart, NarHash, StorePath};

use super::framed::Framed;
use crate::publish::NARINFO_LEN_MAX;

/// Maximum number of paths in the body of `open`.
pub const OPEN_COUNT_MAX: usize = 100_000;

/// Maximum length of the body of `open`, in bytes: [`OPEN_COUNT_MAX`] lines of maximum length.
pub const OPEN_LEN_MAX: u64 = (OPEN_COUNT_MAX * OPEN_LINE_LEN_MAX) as u64;

/// Maximum length of a pack and of a part of a NAR, in bytes.
pub const BODY_LEN_MAX: u64 = 32 << 20;

/// Maximum length of the body of `publish`, in bytes.
pub const PUBLISH_LEN_MAX: u64 = 8 << 20;

/// Maximum number of narinfos in the body of `publish`.
pub const PUBLISH_COUNT_MAX: usize = 4096;

/// Maximum number of NARs in a pack.
pub const PACK_COUNT_MAX: usize = 16_384;

/// Maximum length of a line, in bytes, without its LF.
const LINE_LEN_MAX: usize = 128;

/// Maximum length of a line of the body of `open`, in bytes: one with the longest name of a path.
const OPEN_LINE_LEN_MAX: usize = 32 + 1 + 52 + 1 + 20 + 1 + 211 + 1;

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

/// A path that a client wants to push: a line of the body of `open`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenLine {
    /// Hash part of the path to push.
    pub hash_part: HashPart,
    /// SHA-256 of the path's NAR.
    pub nar_hash: NarHash,
    /// Length of the path's NAR, in bytes.
    pub nar_size: u64,
    /// The path. `None`: the client does not state its name.
    pub path: Option<StorePath>,
}

/// Reads the body of `open`, with at most `count_max` lines.
///
/// # Errors
///
/// An error of the source, or one that contains [`WireError::OpenLine`] or [`WireError::TooMany`].
pub fn read_open(mut source: impl BufRead, count_max: usize) -> io::Result<Vec<OpenLine>> {
    let mut lines = Vec::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut start = source.by_ref().take(OPEN_LINE_LEN_MAX as u64);
        if start.read_until(b'\n', &mut line)? == 0 {
            return Ok(lines);
        }
        if lines.len() >= count_max {
            return Err(WireError::TooMany(count_max).into());
        }
        let parsed = line.strip_suffix(b"\n").and_then(open_line);
        lines.push(parsed.ok_or(WireError::OpenLine(lines.len() + 1))?);
    }
}

fn open_line(line: &[u8]) -> Option<OpenLine> {
    let mut words = line.splitn(4, |byte| *byte == b' ');
    let mut word = || words.next();
    let hash_part = word()?;
    Some(OpenLine {
        hash_part: HashPart::parse(hash_part).ok()?,
        nar_hash: NarHash::parse_nixbase32(word()?).ok()?,
        nar_size: number(word()?)?,
        path: match word() {
            None => None,
            Some(name) => {
                let base_name = [hash_part, b"-", name].concat();
                let base_name = std::str::from_utf8(&base_name).ok()?;
                Some(StorePath::from_base_name(base_name).ok()?)
            }
        },
    })
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

    /// Returns the length of the record that follows the line, in bytes.
    fn record_len(&self) -> u64;
}

/// The line before each NAR in a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackLine {
    /// SHA-256 of the NAR.
    pub nar_hash: NarHash,
    /// Compression of the record's bytes.
    pub compression: Compression,
    /// Length of the compressed NAR after the line, in bytes.
    pub len: u64,
}

impl RecordLine for PackLine {
    const FORM: &'static str = "nar <NAR hash> <compression> <length>";
    const COUNT_MAX: usize = PACK_COUNT_MAX;
    const LEN_MAX: u64 = BODY_LEN_MAX;

    fn parse(line: &[u8]) -> Option<Self> {
        let [b"nar", nar_hash, compression, len] = words(line)? else {
            return None;
        };
        Some(Self {
            nar_hash: NarHash::parse_nixbase32(nar_hash).ok()?,
            compression: Compression::from_name(std::str::from_utf8(compression).ok()?)?,
            len: number(len)?,
        })
    }

    fn record_len(&self) -> u64 {
        self.len
    }
}

/// The line before each narinfo in the body of `publish`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NarinfoLine {
    /// Length of the narinfo after the line, in bytes.
    pub len: u64,
}

impl RecordLine for NarinfoLine {
    const FORM: &'static str = "narinfo <length>";
    const COUNT_MAX: usize = PUBLISH_COUNT_MAX;
    const LEN_MAX: u64 = NARINFO_LEN_MAX as u64;

    fn parse(line: &[u8]) -> Option<Self> {
        let [b"narinfo", len] = words(line)? else {
            return None;
        };
        let len = number(len)?;
        Some(Self { len })
    }

    fn record_len(&self) -> u64 {
        self.len
    }
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
        if line == format!("end {}", self.count).into_bytes() {
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
        self.count += 1;
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
            number: self.count + 1,
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

/// Splits a line into exactly `N` words, separated by one space.
pub(super) fn words<const N: usize>(line: &[u8]) -> Option<[&[u8]; N]> {
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').take(N + 1).collect();
    words.try_into().ok()
}

/// Parses a decimal number without leading zeros.
pub fn number(text: &[u8]) -> Option<u64> {
    let is_canonical =
        text.iter().all(u8::is_ascii_digit) && (text == b"0" || text.first() != Some(&b'0'));
    is_canonical
        .then(|| std::str::from_utf8(text).ok()?.parse().ok())
        .flatten()
}

#[cfg(test)]
mod tests;
