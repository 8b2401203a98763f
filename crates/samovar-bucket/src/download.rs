//! Reading an object.

use std::fmt;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusty_s3::Method;
use ureq::BodyReader;

use crate::error::{BucketError, Fault};
use crate::limit::Permit;
use crate::statistics::add;
use crate::wire::{Answer, Request, Wire};

/// How often a download goes on after its connection was lost without a byte in between.
const RESUMED_MAX: u32 = 5;

/// Least number of bytes in a second at which an object is read. A slower engine has failed.
const RATE_MIN: u64 = 64 << 10;

/// The bytes of an object, or of a range of it, as they arrive.
///
/// A connection that is lost is replaced by another one, which goes on at the same byte of the same
/// object; the entity tag shows whether it is the same. So the reader sees all announced bytes, or
/// an error: never a short end.
pub struct Download {
    wire: Arc<Wire>,
    /// Whole key.
    key: String,
    /// Bytes of the object that are left.
    left: Range<u64>,
    len: u64,
    total_len: u64,
    etag: String,
    body: Option<(BodyReader<'static>, Permit)>,
    resumed: u32,
    /// Time in which reads were blocked, without that between them.
    blocked: Duration,
}

impl Download {
    /// Returns the number of bytes that it has, from the first to the last.
    #[expect(clippy::len_without_is_empty, reason = "a range is never empty")]
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the length of the whole object.
    #[must_use]
    pub fn total_len(&self) -> u64 {
        self.total_len
    }

    /// Returns the entity tag of the object with its quotation marks; empty if the engine has none.
    #[must_use]
    pub fn etag(&self) -> &str {
        &self.etag
    }

    /// Reads what is there, without another attempt.
    fn read_once(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let begun = Instant::now();
        let Some((body, _permit)) = &mut self.body else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let read = body.read(buffer);
        self.blocked += begun.elapsed();
        let received = self.len - (self.left.end - self.left.start);
        let allowed = self.wire.timing().stall + Duration::from_secs(received / RATE_MIN);
        match read {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) if self.blocked > allowed + self.wire.timing().stall => {
                Err(io::ErrorKind::TimedOut.into())
            }
            other => other,
        }
    }

    /// Connects anew, at the first byte that is missing.
    fn resume(&mut self) -> Result<(), BucketError> {
        self.body = None;
        add(&self.wire.counters().resumed, 1);
        let request = request(&self.key, Some(&self.left), Some(&self.etag));
        let failed = |fault| self.wire.error(request.to_string(), fault);
        let changed = || {
            let what = "it was replaced while it was read";
            failed(Fault::Damaged { what })
        };
        let answer = self.wire.send(&request);
        let answer = match answer {
            // The answer to If-Match.
            Err(error) if error.is_taken() => return Err(changed()),
            other => other?,
        };
        let place = place(&answer, Some(&self.left)).map_err(failed)?;
        let is_same = place.bytes == self.left
            && place.total_len == self.total_len
            && answer.etag().unwrap_or_default() == self.etag;
        if !is_same {
            return Err(changed());
        }
        self.body = Some(answer.into_reader(u64::MAX));
        Ok(())
    }
}

impl Read for Download {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() || self.left.is_empty() {
            return Ok(0);
        }
        let left = self.left.end - self.left.start;
        let wanted = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        loop {
            let error = match self.read_once(&mut buffer[..wanted]) {
                Ok(read) => {
                    self.resumed = 0;
                    // At most `left`.
                    let read_len = u64::try_from(read).unwrap_or(left);
                    self.left.start += read_len;
                    add(&self.wire.counters().received_len, read_len);
                    if self.left.is_empty() {
                        self.end();
                    }
                    return Ok(read);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            self.resumed += 1;
            if self.resumed > RESUMED_MAX
                || error.kind() == io::ErrorKind::TimedOut && self.is_slow()
            {
                let request = format!("GET {}", self.key);
                return Err(self.wire.error(request, Fault::Unreachable(error)).into());
            }
            self.resume()?;
        }
    }
}

impl Download {
    /// Whether the engine is too slow, rather than gone.
    fn is_slow(&self) -> bool {
        self.blocked > self.wire.timing().patience
    }

    /// Frees the connection and the place in flight as soon as the last byte is read.
    fn end(&mut self) {
        if let Some((mut body, _permit)) = self.body.take() {
            // Reads the end of the body, after which the connection can be used again.
            drop(body.read(&mut [0]));
        }
    }
}

impl fmt::Debug for Download {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Download")
            .field("key", &self.key)
            .field("left", &self.left)
            .field("etag", &self.etag)
            .finish_non_exhaustive()
    }
}

/// Begins to read an object.
pub(crate) fn begin(
    wire: &Arc<Wire>,
    key: &str,
    range: Option<Range<u64>>,
) -> Result<Option<Download>, BucketError> {
    let key = wire.whole(key)?;
    let request = request(&key, range.as_ref(), None);
    let failed = |fault| wire.error(request.to_string(), fault);
    if range.as_ref().is_some_and(Range::is_empty) {
        return Err(failed(Fault::Range));
    }
    let answer = match wire.send(&request) {
        Ok(answer) => answer,
        Err(error) if error.is_absent() => return Ok(None),
        Err(error) => return Err(error),
    };
    let place = place(&answer, range.as_ref()).map_err(failed)?;
    Ok(Some(Download {
        wire: Arc::clone(wire),
        len: place.bytes.end - place.bytes.start,
        left: place.bytes,
        total_len: place.total_len,
        etag: answer.etag().unwrap_or_default().to_owned(),
        body: Some(answer.into_reader(u64::MAX)),
        key,
        resumed: 0,
        blocked: Duration::ZERO,
    }))
}

fn request(key: &str, range: Option<&Range<u64>>, etag: Option<&str>) -> Request<'static> {
    let mut request = Request::object(Method::Get, key);
    if let Some(range) = range {
        // Ranges in HTTP name their last byte.
        let last = range.end.saturating_sub(1);
        request = request.header("range", format!("bytes={}-{last}", range.start));
    }
    match etag {
        Some(etag) if !etag.is_empty() => request.header("if-match", etag),
        _ => request,
    }
}

/// Which bytes of an object an answer has.
struct Place {
    bytes: Range<u64>,
    total_len: u64,
}

/// Reads which bytes an answer has, and compares them with those that were asked for.
fn place(answer: &Answer, asked: Option<&Range<u64>>) -> Result<Place, Fault> {
    let wrong = |what| Fault::Answer { what };
    let len = answer.len().ok_or(wrong("it has no length"))?;
    let place = match answer.status() {
        206 => {
            let range = answer.header("content-range").and_then(content_range);
            range.ok_or(wrong("it has no range"))?
        }
        _ => Place {
            bytes: 0..len,
            total_len: len,
        },
    };
    let expected = match asked {
        Some(asked) => asked.start..asked.end.min(place.total_len),
        None => 0..place.total_len,
    };
    if place.bytes == expected && len == expected.end - expected.start {
        Ok(place)
    } else {
        Err(wrong("it has another range than asked for"))
    }
}

/// Reads `bytes FIRST-LAST/TOTAL`.
fn content_range(text: &str) -> Option<Place> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let total_len = total.parse().ok()?;
    (first <= last && last < total_len).then(|| Place {
        bytes: first..last + 1,
        total_len,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_read() {
        let place = content_range("bytes 2-5/10").unwrap();
        assert_eq!((place.bytes, place.total_len), (2..6, 10));
        for wrong in [
            "",
            "bytes */10",
            "bytes 5-2/10",
            "bytes 2-10/10",
            "2-5/10",
            "bytes 0-18446744073709551615/18446744073709551615",
        ] {
            assert!(content_range(wrong).is_none(), "{wrong}");
        }
    }
}
