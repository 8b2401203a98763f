//! The answer of the engine to a request that succeeded.

use std::io::{self, Read};

use ureq::BodyReader;
use ureq::http::{HeaderMap, Response, header};

use crate::error::Fault;
use crate::limit::Permit;

/// Maximum length of an answer that is kept in memory: a list of 1000 keys of 1 KiB, each character
/// of them encoded as six, and their other fields.
const TEXT_LEN_MAX: u64 = 16 << 20;

/// The answer to a request that succeeded.
#[derive(Debug)]
pub(crate) struct Answer {
    status: u16,
    headers: HeaderMap,
    body: ureq::Body,
    /// The request is in flight until its answer has been read.
    permit: Permit,
}

impl Answer {
    pub(crate) fn new(response: Response<ureq::Body>, permit: Permit) -> Self {
        let (parts, body) = response.into_parts();
        Self {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body,
            permit,
        }
    }

    pub(crate) fn status(&self) -> u16 {
        self.status
    }

    /// Returns a header, if it is there and is ASCII text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the length of the body that the headers announce.
    pub(crate) fn len(&self) -> Option<u64> {
        self.header(header::CONTENT_LENGTH.as_str())?.parse().ok()
    }

    pub(crate) fn etag(&self) -> Option<&str> {
        self.header(header::ETAG.as_str())
    }

    /// Returns the header Last-Modified, in seconds since 1970.
    pub(crate) fn modified_at(&self) -> Option<i64> {
        unix_time(self.header(header::LAST_MODIFIED.as_str())?)
    }

    /// Returns the engine's clock, in seconds since 1970.
    pub(crate) fn date(&self) -> Option<i64> {
        unix_time(self.header(header::DATE.as_str())?)
    }

    /// Reads the whole body, which is a text.
    pub(crate) fn text(self) -> Result<String, Fault> {
        let (mut reader, _permit) = self.into_reader(TEXT_LEN_MAX);
        let mut text = String::new();
        reader.read_to_string(&mut text).map_err(unread)?;
        Ok(text)
    }

    /// Reads the rest of a body of no interest, so that the connection can be used again.
    pub(crate) fn finish(self) {
        let (mut reader, _permit) = self.into_reader(TEXT_LEN_MAX);
        // If it fails, the connection is closed, and that is all.
        drop(io::copy(&mut reader, &mut io::sink()));
    }

    /// Returns the reader of the body, and what keeps the request in flight.
    pub(crate) fn into_reader(self, len_max: u64) -> (BodyReader<'static>, Permit) {
        let reader = self.body.into_with_config().limit(len_max).reader();
        (reader, self.permit)
    }
}

/// Returns a date of HTTP in seconds since 1970.
pub(crate) fn unix_time(date: &str) -> Option<i64> {
    let time = httpdate::parse_http_date(date).ok()?;
    let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
    i64::try_from(since.as_secs()).ok()
}

fn unread(error: io::Error) -> Fault {
    if error.kind() == io::ErrorKind::InvalidData {
        Fault::Answer {
            what: "it is no text",
        }
    } else {
        Fault::Unreachable(error)
    }
}
