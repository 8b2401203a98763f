//! [`NarStream`]: downloads the file of a NAR, and continues after an interruption.

use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure};
use ureq::http::Response;
use ureq::{Body, BodyReader};

use crate::http::{Http, content_length, content_range};

#[cfg(test)]
mod tests;

/// Maximum number of interruptions in a row, with less than a window of [`Pace`] received between
/// them.
///
/// [`Pace`]: crate::pace::Pace
const INTERRUPTION_COUNT_MAX: u32 = 5;

/// Number of interruptions that a timeout counts as, because it takes much longer.
const TIMEOUT_WEIGHT: u32 = 3;

/// Pause after the first interruption. It doubles with each further one.
const PAUSE: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 250 });

/// The file of a NAR, as it is downloaded. After an interruption, requests the rest.
pub(crate) struct NarStream {
    http: Http,
    /// Path of the URL, which begins with a slash.
    url: String,
    body: BodyReader<'static>,
    /// Counts the received bytes of all downloads.
    received: Arc<AtomicU64>,
    /// Offset in the file of the next byte.
    position: u64,
    /// Offset in the file at which the download ends. `None`: the server has not stated it.
    end: Option<u64>,
    /// Length of the file, in bytes.
    len: Option<u64>,
    /// Strong entity tag of the file.
    etag: Option<String>,
    interruption_count: u32,
    /// Offset of the last interruption.
    interrupted_at: u64,
    /// The error that ended the download, because decompressors hide it.
    failure: Arc<OnceLock<String>>,
}

impl NarStream {
    /// Starts the download. `range`: bytes of the file; `None`: all. `received`: counts the
    /// received bytes.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, or does not have the file.
    pub(crate) fn start(
        http: &Http,
        url: String,
        range: Option<Range<u64>>,
        received: Arc<AtomicU64>,
    ) -> anyhow::Result<Self> {
        let response = match &range {
            Some(range) => http.with_header("Range", header(range)).get(&url)?,
            None => http.get(&url)?,
        };
        let (mut position, mut len) = (0, content_length(&response));
        let mut end = len;
        match (response.status().as_u16(), range) {
            (200, None) => {}
            (206, Some(range)) => {
                let (at, total) = content_range(&response).unzip();
                ensure!(
                    at == Some(range.start),
                    "{} answered with another range",
                    http.url(&url)
                );
                (position, end, len) = (range.start, Some(range.end), total);
            }
            (404 | 410, _) => bail!(
                "{} is gone: the cache no longer has the file",
                http.url(&url)
            ),
            (200, Some(_)) => bail!("{} no longer supports range requests", http.url(&url)),
            _ => return Err(http.refused("a download", response)),
        }
        Ok(Self {
            http: http.clone(),
            url,
            end,
            len,
            etag: etag(&response),
            body: response.into_body().into_reader(),
            received,
            position,
            interruption_count: 0,
            interrupted_at: position,
            failure: Arc::default(),
        })
    }

    /// Returns a cell that gets the error that ends the download.
    pub(crate) fn failure(&self) -> Arc<OnceLock<String>> {
        Arc::clone(&self.failure)
    }

    /// Requests the rest after an interruption, unless there were too many.
    fn resume(&mut self, failure: io::Error) -> io::Result<()> {
        if self.position - self.interrupted_at >= self.http.pace().len_min {
            self.interruption_count = 0;
        }
        self.interrupted_at = self.position;
        let pause = PAUSE * (1 << self.interruption_count.min(INTERRUPTION_COUNT_MAX));
        self.interruption_count += match failure.kind() {
            ErrorKind::TimedOut => TIMEOUT_WEIGHT,
            _ => 1,
        };
        if self.interruption_count > INTERRUPTION_COUNT_MAX {
            return Err(failure);
        }
        let Some(end) = self.end else {
            return Err(failure);
        };
        thread::sleep(pause);
        let requested = self.request(self.position..end);
        requested.map_err(|error| io::Error::other(format!("{failure}; {error:#}")))
    }

    fn request(&mut self, rest: Range<u64>) -> anyhow::Result<()> {
        let start = rest.start;
        let mut http = self.http.with_header("Range", header(&rest));
        if let Some(etag) = &self.etag {
            http = http.with_header("If-Range", etag.clone());
        }
        let response = http.get(&self.url)?;
        let url = self.http.url(&self.url);
        match response.status().as_u16() {
            206 => {
                let range = content_range(&response);
                let is_right = range.is_some_and(|(at, len)| at == start && Some(len) == self.len);
                ensure!(is_right, "{url} answered with another range");
                self.body = response.into_body().into_reader();
            }
            // The server has no ranges, or another file.
            200 if self.end == self.len => {
                let is_same = content_length(&response) == self.len && etag(&response) == self.etag;
                ensure!(is_same, "{url} has changed during the download");
                self.body = response.into_body().into_reader();
                io::copy(&mut self.body.by_ref().take(start), &mut io::sink())?;
            }
            _ => return Err(http.refused("to continue a download", response)),
        }
        Ok(())
    }
}

/// Returns the value of a `Range` header.
fn header(range: &Range<u64>) -> String {
    format!("bytes={}-{}", range.start, range.end.saturating_sub(1))
}

fn etag(response: &Response<Body>) -> Option<String> {
    let etag = response.headers().get("ETag")?.to_str().ok()?;
    etag.starts_with('"').then(|| etag.to_owned())
}

impl Read for NarStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let is_complete = self.end.is_none_or(|end| self.position >= end);
            let failure = match self.body.read(buffer) {
                Ok(0) if !is_complete && !buffer.is_empty() => {
                    let url = self.http.url(&self.url);
                    let text = format!("the download of {url} ended early");
                    io::Error::new(ErrorKind::UnexpectedEof, text)
                }
                Ok(count) => {
                    self.position += count as u64;
                    self.received.fetch_add(count as u64, Ordering::Relaxed);
                    return Ok(count);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            if let Err(error) = self.resume(failure) {
                self.failure.set(error.to_string()).ok();
                return Err(error);
            }
        }
    }
}
