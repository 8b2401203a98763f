//! What an engine says of an object.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rusty_s3::Method;

use crate::error::{BucketError, Fault};
use crate::wire::{Answer, Request, Wire};

/// What an engine says of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stat {
    /// Length in bytes.
    pub len: u64,
    /// When it was written, in seconds since 1970 by the engine's clock. 0: the engine says
    /// nothing.
    pub modified_at: i64,
    /// Entity tag with its quotation marks. Empty: the engine says nothing.
    pub etag: String,
    /// SHA-256 of the whole content, if the engine keeps it. It does so for objects of one PUT.
    pub sha256: Option<[u8; 32]>,
}

/// Returns what the engine says of the object with this whole key.
///
/// The answer to a HEAD has no text, so it does not tell an absent object from an absent bucket or
/// an unknown access key, for which some engines have status 404, too. A GET then tells.
pub(crate) fn head(wire: &Wire, key: &str) -> Result<Option<Stat>, BucketError> {
    let request = Request::object(Method::Head, key).signed("x-amz-checksum-mode", "ENABLED");
    let failed = |what| wire.error(request.to_string(), Fault::Answer { what });
    for _ in 0..2 {
        let answer = match wire.send(&request) {
            Ok(answer) => answer,
            Err(error) if error.is_absent() && is_absent(wire, key)? => return Ok(None),
            // It was written in between.
            Err(error) if error.is_absent() => continue,
            Err(error) => return Err(error),
        };
        let stat = stat(&answer);
        answer.finish();
        return stat.map(Some).ok_or_else(|| failed("HEAD has no length"));
    }
    Err(failed(
        "HEAD says that it is absent, and GET that it is not",
    ))
}

/// Whether the engine says that it has no such object, rather than anything else.
fn is_absent(wire: &Wire, key: &str) -> Result<bool, BucketError> {
    let request = Request::object(Method::Get, key).header("range", "bytes=0-0");
    match wire.send(&request) {
        Ok(_) => Ok(false),
        Err(error) if error.is_absent() => Ok(true),
        // An empty object has no first byte.
        Err(error) if matches!(error.fault(), Fault::Range) => Ok(false),
        Err(error) => Err(error),
    }
}

fn stat(answer: &Answer) -> Option<Stat> {
    Some(Stat {
        len: answer.len()?,
        modified_at: answer.modified_at().unwrap_or_default(),
        etag: answer.etag().unwrap_or_default().to_owned(),
        sha256: answer.header("x-amz-checksum-sha256").and_then(digest),
    })
}

/// Reads a digest in base 64. That of an object in parts has a hyphen and their number.
fn digest(text: &str) -> Option<[u8; 32]> {
    STANDARD.decode(text).ok()?.try_into().ok()
}
