//! Multipart forms, read part by part.
//!
//! A form with files is read in constant memory: [`Multipart::next_part`] gives one part after the
//! other, and each is a [`Read`](std::io::Read). [`Multipart::collect`] takes all of a small form.
//!
//! ```
//! use samovar_http::multipart::Multipart;
//!
//! let body = b"--x\r\nContent-Disposition: form-data; name=\"title\"\r\n\r\nTea\r\n--x--\r\n";
//! let mut form = Multipart::new(b"multipart/form-data; boundary=x", &body[..]).unwrap();
//! while let Some(mut part) = form.next_part().unwrap() {
//!     assert_eq!(part.name(), "title");
//!     assert_eq!(part.text(100).unwrap(), "Tea");
//! }
//! ```
//!
//! # Encoding
//!
//! ```text
//! body      = [preamble CRLF] "--" boundary *([padding] CRLF part delimiter) "--" anything
//! delimiter = CRLF "--" boundary
//! part      = *(header CRLF) CRLF content
//! ```
//!
//! | limit | default | reason |
//! |---|---|---|
//! | boundary | 70 characters | RFC 2046, 5.1.1 |
//! | [`part_count_max`](MultipartLimits::part_count_max) | 1000 | a part costs memory |
//! | [`head_len_max`](MultipartLimits::head_len_max) | 8192 bytes | those of a part |
//! | [`part_len_max`](MultipartLimits::part_len_max) | none | the body has one |
//!
//! # Quirks
//!
//! * Only CR LF ends a line. A bare LF is content, and an error in a header line.
//! * A boundary counts wherever it stands behind CR LF (RFC 2046, 5.1.1); if then neither `--` nor
//!   the end of the line follows, the body is refused, since others would go on reading.
//! * `multipart/form-data, boundary=x`, with a comma, is what the Wolfram language's client sends.
//! * Quotes in names arrive as `%22` from browsers (HTML's form-data encoding). That is not undone:
//!   the character `%` is not encoded, so nobody can tell.
//! * A body with no part at all is what browsers send for an empty form.
//!
//! # Source
//!
//! RFC 7578; RFC 2046, section 5.1; HTML, "multipart form data".

mod head;
mod parser;
mod reader;
#[cfg(test)]
mod tests;

use std::fmt;

pub use head::PartHead;
pub use parser::{Event, Parser};
pub use reader::{Entry, Form, Multipart, Part};

use crate::http::Status;

/// Bounds of a multipart body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MultipartLimits {
    /// Parts. Default: 1000.
    pub part_count_max: usize,
    /// The header lines of one part, with the empty line, in bytes. Default: 8192.
    pub head_len_max: usize,
    /// The content of one part, in bytes. Default: no limit but that of the body.
    pub part_len_max: u64,
}

impl Default for MultipartLimits {
    fn default() -> Self {
        Self {
            part_count_max: 1000,
            head_len_max: 8192,
            part_len_max: u64::MAX,
        }
    }
}

/// Why a multipart body cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("multipart body: {kind}")]
pub struct MultipartError {
    /// What is wrong.
    pub kind: MultipartErrorKind,
    /// For [`Read`](MultipartErrorKind::Read), why.
    #[source]
    pub source: Option<std::io::Error>,
}

/// What is wrong with a multipart body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MultipartErrorKind {
    /// The `Content-Type` is not `multipart/form-data`.
    MediaType,
    /// The `Content-Type` has no boundary, or one that is none.
    Boundary,
    /// Behind a boundary stands neither a line end nor `--`.
    Delimiter,
    /// A header line is none.
    Header,
    /// There is not one `Content-Disposition: form-data` with a name.
    Disposition,
    /// The body ends before its last delimiter.
    Truncated,
    /// A part is not text in UTF-8 although it should be.
    NotText,
    /// More parts than [`MultipartLimits::part_count_max`].
    TooManyParts,
    /// Header lines longer than [`MultipartLimits::head_len_max`].
    HeadTooLong,
    /// A part longer than [`MultipartLimits::part_len_max`], or than was asked for.
    PartTooLong,
    /// The body could not be read.
    Read,
}

impl MultipartErrorKind {
    /// The status to answer with; `None` for [`Read`](Self::Read), where the cause says it.
    pub fn status(self) -> Option<Status> {
        match self {
            Self::MediaType => Some(Status::UNSUPPORTED_MEDIA_TYPE),
            Self::TooManyParts | Self::HeadTooLong | Self::PartTooLong => {
                Some(Status::CONTENT_TOO_LARGE)
            }
            Self::Read => None,
            _ => Some(Status::BAD_REQUEST),
        }
    }
}

impl fmt::Display for MultipartErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MediaType => "the content type is not multipart/form-data",
            Self::Boundary => "the content type has no valid boundary",
            Self::Delimiter => "a boundary is followed by something else",
            Self::Header => "a part has a malformed header line",
            Self::Disposition => "a part needs one content disposition with a name",
            Self::Truncated => "it ends before its last boundary",
            Self::NotText => "a field is not valid UTF-8",
            Self::TooManyParts => "it has too many parts",
            Self::HeadTooLong => "the header lines of a part are too long",
            Self::PartTooLong => "a part is too long",
            Self::Read => "it could not be read",
        })
    }
}

impl From<MultipartErrorKind> for MultipartError {
    fn from(kind: MultipartErrorKind) -> Self {
        Self { kind, source: None }
    }
}
