//! [`NarStream`]: downloads the file of a NAR, and continues after an interruption.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::bail;
use ureq::BodyReader;

use crate::http::Http;

/// Maximum number of interruptions in a row, without a byte received between them.
const INTERRUPTION_COUNT_MAX: u32 = 5;

/// The file of a NAR, as it is downloaded. After an interruption, requests the rest.
pub(crate) struct NarStream {
    http: Http,
    /// Path of the URL, which begins with a slash.
    url: String,
    body: BodyReader<'static>,
    /// Number of bytes received.
    received: Arc<AtomicU64>,
    /// Length of the file, in bytes. `None`: the server has not stated it.
    len: Option<u64>,
    interruption_count: u32,
}

impl NarStream {
    /// Starts the download. `received`: counts the received bytes.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, or does not have the file.
    pub(crate) fn start(
        http: &Http,
        url: String,
        received: Arc<AtomicU64>,
    ) -> anyhow::Result<Self> {
        let response = http.get(&url)?;
        match response.status().as_u16() {
            200 => {}
            404 | 410 => bail!(
                "{} is gone: the cache no longer has the file",
                http.url(&url)
            ),
            _ => return Err(http.refused("a download", response)),
        }
        let body = response.into_body();
        Ok(Self {
            http: http.clone(),
            url,
            len: body.content_length(),
            body: body.into_reader(),
            received,
            interruption_count: 0,
        })
    }

    fn resume(&mut self) -> anyhow::Result<()> {
        let start = self.received.load(Ordering::Relaxed);
        let http = self.http.with_header("Range", format!("bytes={start}-"));
        let response = http.get(&self.url)?;
        if response.status() != 206 {
            return Err(http.refused("to continue a download", response));
        }
        let is_right = response
            .headers()
            .get("Content-Range")
            .and_then(|value| value.to_str().ok())
            .is_some_and(|value| value.starts_with(&format!("bytes {start}-")));
        if !is_right {
            bail!("{} answered with another range", self.http.url(&self.url));
        }
        self.body = response.into_body().into_reader();
        Ok(())
    }
}

impl Read for NarStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.body.read(buffer);
            let received = self.received.load(Ordering::Relaxed);
            let is_complete = self.len.is_none_or(|len| received >= len);
            let failure = match read {
                Ok(0) if !is_complete && !buffer.is_empty() => {
                    io::Error::new(io::ErrorKind::UnexpectedEof, "the download was cut off")
                }
                Ok(count) => {
                    self.received.fetch_add(count as u64, Ordering::Relaxed);
                    self.interruption_count = 0;
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            self.interruption_count += 1;
            if self.interruption_count > INTERRUPTION_COUNT_MAX || self.len.is_none() {
                return Err(failure);
            }
            self.resume()
                .map_err(|error| io::Error::other(format!("{failure}; {error:#}")))?;
        }
    }
}
