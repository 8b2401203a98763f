//! The request bodies of the push protocol: parsers without I/O.
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

use samovar_nix::narinfo::Compression;
use samovar_nix::{HashPart, NarHash};

use crate::publish::NARINFO_LEN_MAX;

/// Maximum number of paths in the body of `open`.
pub const OPEN_COUNT_MAX: usize = 100_000;

/// Maximum length of the body of `open`, in bytes: [`OPEN_COUNT_MAX`] lines of maximum length.
pub const OPEN_LEN_MAX: u64 = OPEN_COUNT_MAX as u64 * (32 + 1 + 52 + 1 + 20 + 1);

/// Maximum length of a pack and of a part of a NAR, in bytes.
pub const BODY_LEN_MAX: u64 = 32 << 20;

/// Maximum length of the body of `publish`, in bytes.
pub const PUBLISH_LEN_MAX: u64 = 8 << 20;

/// Maximum number of narinfos in the body of `publish`.
pub const PUBLISH_COUNT_MAX: usize = 4096;

/// Maximum number of NARs in a pack.
pub const PACK_COUNT_MAX: usize = 16_384;

/// Maximum length of the line before a record, in bytes, without its LF.
const LINE_LEN_MAX: usize = 128;

/// Reason why a body does not follow the grammar, or exceeds a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A line of the body of `open` has another form.
    #[error("line {0} is not a hash part, a NAR hash and a NAR size, separated by one space")]
    OpenLine(usize),
    /// The line before a record has another form.
    #[error("record {number} does not start with the line {form:?}, or with \"end {count}\"")]
    Record {
        /// Number of the record, from 1.
        number: usize,
        /// The line with which a record starts.
        form: &'static str,
        /// Number of records before it.
        count: usize,
    },
    /// A record is longer than allowed.
    #[error("record {number} has {len} bytes, the limit is {limit}")]
    RecordTooLong {
        /// Number of the record, from 1.
        number: usize,
        /// Length that its line states, in bytes.
        len: u64,
        /// Maximum length, in bytes.
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
    /// Whether a limit was exceeded (HTTP status 413) rather than the grammar violated (400).
    #[must_use]
    pub const fn is_too_large(&self) -> bool {
        matches!(self, Self::TooMany(_) | Self::RecordTooLong { .. })
    }
}

/// A path that a client wants to push: a line of the body of `open`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenLine {
    /// Hash part of the path.
    pub hash_part: HashPart,
    /// SHA-256 of its NAR.
    pub nar_hash: NarHash,
    /// Length of its NAR, in bytes.
    pub nar_size: u64,
}

/// Parses the body of `open`, with at most `count_max` lines.
///
/// # Errors
///
/// [`WireError::OpenLine`], [`WireError::TooMany`].
pub fn parse_open(body: &[u8], count_max: usize) -> Result<Vec<OpenLine>, WireError> {
    let mut lines = Vec::new();
    for line in body.split_inclusive(|byte| *byte == b'\n') {
        if lines.len() >= count_max {
            return Err(WireError::TooMany(count_max));
        }
        let parsed = line.strip_suffix(b"\n").and_then(open_line);
        lines.push(parsed.ok_or(WireError::OpenLine(lines.len() + 1))?);
    }
    Ok(lines)
}

fn open_line(line: &[u8]) -> Option<OpenLine> {
    let [hash_part, nar_hash, nar_size] = words(line)?;
    Some(OpenLine {
        hash_part: HashPart::parse(hash_part).ok()?,
        nar_hash: NarHash::parse_nixbase32(nar_hash).ok()?,
        nar_size: number(nar_size)?,
    })
}

/// The line before a record.
pub trait RecordLine: Copy {
    /// Form of the line, for error messages.
    const FORM: &'static str;
    /// Maximum number of records in a body.
    const COUNT_MAX: usize;
    /// Maximum length of a record, in bytes.
    const LEN_MAX: u64;

    /// Parses the line, without its LF.
    fn parse(line: &[u8]) -> Option<Self>;

    /// Returns the length of the record after the line, in bytes.
    fn record_len(&self) -> u64;
}

/// The line before a NAR in a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackLine {
    /// SHA-256 of the NAR.
    pub nar_hash: NarHash,
    /// Compression of the record.
    pub compression: Compression,
    /// Length of the record, in bytes.
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

/// The line before a narinfo in the body of `publish`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NarinfoLine {
    /// Length of the record, in bytes.
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

/// A record of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<L> {
    /// The line before it.
    pub line: L,
    /// Offset of its first byte in the body.
    pub offset: u64,
}

/// Finds the records of a body that arrives in pieces.
#[derive(Debug)]
pub struct Scanner<L> {
    records: Vec<Record<L>>,
    /// The current line so far.
    line: Vec<u8>,
    /// Number of bytes left of the current record.
    record_left: u64,
    /// Number of bytes scanned.
    offset: u64,
    is_ended: bool,
}

impl<L: RecordLine> Default for Scanner<L> {
    fn default() -> Self {
        Self {
            records: Vec::new(),
            line: Vec::new(),
            record_left: 0,
            offset: 0,
            is_ended: false,
        }
    }
}

impl<L: RecordLine> Scanner<L> {
    /// Scans the next piece of the body.
    ///
    /// # Errors
    ///
    /// Any [`WireError`]; then the scanner must not be used again.
    pub fn push(&mut self, mut piece: &[u8]) -> Result<(), WireError> {
        while !piece.is_empty() {
            if self.is_ended {
                return Err(WireError::BytesAfterEnd);
            }
            let taken = match self.record_left {
                0 => self.scan_line(piece)?,
                left => {
                    let taken =
                        usize::try_from(left).map_or(piece.len(), |left| left.min(piece.len()));
                    self.record_left = left.saturating_sub(taken as u64);
                    taken
                }
            };
            self.offset = self.offset.saturating_add(taken as u64);
            piece = piece.get(taken..).unwrap_or_default();
        }
        Ok(())
    }

    /// Scans to the end of the current line, or of the piece. Returns the number of bytes scanned.
    fn scan_line(&mut self, piece: &[u8]) -> Result<usize, WireError> {
        let line_end = piece.iter().position(|byte| *byte == b'\n');
        let rest = piece
            .get(..line_end.unwrap_or(piece.len()))
            .unwrap_or(piece);
        if self.line.len().saturating_add(rest.len()) > LINE_LEN_MAX {
            return Err(self.no_record());
        }
        self.line.extend_from_slice(rest);
        if line_end.is_none() {
            return Ok(rest.len());
        }
        let taken = rest.len().saturating_add(1);
        let line = std::mem::take(&mut self.line);
        if line == format!("end {}", self.records.len()).into_bytes() {
            self.is_ended = true;
            return Ok(taken);
        }
        let line = L::parse(&line).ok_or_else(|| self.no_record())?;
        let (number, len, limit) = (
            self.records.len().saturating_add(1),
            line.record_len(),
            L::LEN_MAX,
        );
        if number > L::COUNT_MAX {
            return Err(WireError::TooMany(L::COUNT_MAX));
        }
        if len > limit {
            return Err(WireError::RecordTooLong { number, len, limit });
        }
        self.record_left = len;
        let offset = self.offset.saturating_add(taken as u64);
        self.records.push(Record { line, offset });
        Ok(taken)
    }

    fn no_record(&self) -> WireError {
        let count = self.records.len();
        WireError::Record {
            number: count.saturating_add(1),
            form: L::FORM,
            count,
        }
    }

    /// Ends the body. Returns its records.
    ///
    /// # Errors
    ///
    /// [`WireError::Truncated`].
    pub fn finish(self) -> Result<Vec<Record<L>>, WireError> {
        match self.is_ended {
            true => Ok(self.records),
            false => Err(WireError::Truncated),
        }
    }
}

/// Splits a line into exactly `N` words, separated by one space.
fn words<const N: usize>(line: &[u8]) -> Option<[&[u8]; N]> {
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
