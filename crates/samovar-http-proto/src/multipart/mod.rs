//! Multipart forms: [`Parser`] finds the parts of a body in any pieces of it, [`PartHead`] reads
//! the header lines of a part.
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
//! | [`part_count_max`](Limits::part_count_max) | 1000 | each part costs memory |
//! | [`head_len_max`](Limits::head_len_max) | 8192 bytes | header lines of one part are in memory |
//!
//! # Quirks
//!
//! * Only CR LF ends a line. A bare LF is content, and an error in a header line.
//! * A boundary counts at any place after CR LF (RFC 2046, 5.1.1). If neither `--` nor the end of
//!   the line follows, the body is refused: other servers would continue to read.
//! * The Wolfram language's client sends `multipart/form-data, boundary=x`, with a comma.
//! * Browsers send quotes in names as `%22` (HTML's form-data encoding). That is not decoded: they
//!   do not encode the character `%`, so the text is ambiguous.
//! * Browsers send a body without a part for an empty form.
//!
//! # Source
//!
//! RFC 7578; RFC 2046, section 5.1; HTML, "multipart form data".

mod head;
mod parser;
#[cfg(test)]
mod tests;

pub use head::PartHead;
pub use parser::{Event, Parser};

use crate::http::{MediaType, Status};

/// Limits of a multipart body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of parts. Default: 1000.
    pub part_count_max: usize,
    /// Maximum length of the header lines of one part, with the empty line, in bytes. Default:
    /// 8192.
    pub head_len_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            part_count_max: 1000,
            head_len_max: 8192,
        }
    }
}

/// Reason why a multipart body was refused: always the client's error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MultipartError {
    /// The `Content-Type` is not `multipart/form-data`.
    #[error("the body must be a form with files (multipart/form-data)")]
    MediaType,
    /// The `Content-Type` has no boundary, or an invalid one.
    #[error("multipart body: the content type has no valid boundary")]
    Boundary,
    /// Neither a line end nor `--` follows a boundary.
    #[error("multipart body: a boundary is followed by other text")]
    Delimiter,
    /// A header line of a part is malformed.
    #[error("multipart body: a part has a malformed header line")]
    Header,
    /// A part does not have exactly one `Content-Disposition: form-data` with a name.
    #[error("multipart body: a part needs one content disposition with a name")]
    Disposition,
    /// The body ends before its last delimiter.
    #[error("multipart body: it ends before its last boundary")]
    Truncated,
    /// A part that must be text is not UTF-8.
    #[error("multipart body: a field is not valid UTF-8")]
    NotText,
    /// The body has more parts than [`Limits::part_count_max`].
    #[error("multipart body: it has too many parts")]
    TooManyParts,
    /// The header lines of a part are longer than [`Limits::head_len_max`].
    #[error("multipart body: the header lines of a part are too long")]
    HeadTooLong,
    /// A part is longer than its reader accepts.
    #[error("multipart body: a part is too long")]
    PartTooLong,
}

impl MultipartError {
    /// Returns the status of the response to the client.
    pub fn status(self) -> Status {
        match self {
            Self::MediaType => Status::UNSUPPORTED_MEDIA_TYPE,
            Self::TooManyParts | Self::HeadTooLong | Self::PartTooLong => Status::CONTENT_TOO_LARGE,
            Self::Boundary
            | Self::Delimiter
            | Self::Header
            | Self::Disposition
            | Self::Truncated
            | Self::NotText => Status::BAD_REQUEST,
        }
    }
}

/// Returns the boundary in the value of a `Content-Type`.
///
/// # Errors
///
/// [`MediaType`](MultipartError::MediaType) unless the value is `multipart/form-data`, and
/// [`Boundary`](MultipartError::Boundary) if it has no boundary. [`Parser::new`] checks the
/// characters of the boundary.
///
/// # Examples
///
/// ```
/// use samovar_http_proto::multipart::boundary;
///
/// assert_eq!(boundary(b"multipart/form-data; boundary=\"a b\"").as_deref(), Ok("a b"));
/// ```
pub fn boundary(content_type: &[u8]) -> Result<String, MultipartError> {
    const ESSENCE: &[u8] = b"multipart/form-data";
    let mut value = content_type.trim_ascii().to_vec();
    if let Some((essence, [separator @ b',', ..])) = value.split_at_mut_checked(ESSENCE.len())
        && essence.eq_ignore_ascii_case(ESSENCE)
    {
        *separator = b';';
    }
    let media_type = MediaType::parse(&value).ok_or(MultipartError::MediaType)?;
    if !media_type.is("multipart/form-data") {
        return Err(MultipartError::MediaType);
    }
    let boundary = media_type.parameter("boundary");
    Ok(boundary.ok_or(MultipartError::Boundary)?.into_owned())
}
