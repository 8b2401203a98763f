//! Shows the progress of a transfer or of hashing: on a terminal as one line that is updated in
//! place, elsewhere as a new line every 30 seconds.

use std::io::{self, IsTerminal, Read, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use samovar_text::human;

use crate::notice::{ERASE, notice};

/// Time between two progress lines if standard error is not a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(30);

/// Time between two updates of the line on a terminal.
const UPDATE_INTERVAL: Duration = Duration::from_millis(200);

/// The progress of a transfer or of hashing, in bytes before compression.
#[derive(Debug)]
pub struct Progress {
    /// Whether standard error is a terminal.
    is_terminal: bool,
    is_hidden: bool,
    /// Past participle for the line, such as `pushed`.
    verb: &'static str,
    /// Total length in bytes.
    len: u64,
    done_len: AtomicU64,
    sent_len: AtomicU64,
    started_at: Instant,
    line_at: Mutex<Instant>,
}

impl Progress {
    /// Starts the display. `verb`: past participle for the line, such as `pushed`. `len`: total
    /// length in bytes.
    pub fn start(verb: &'static str, len: u64) -> Self {
        let now = Instant::now();
        Self {
            is_terminal: io::stderr().is_terminal(),
            is_hidden: false,
            verb,
            len,
            done_len: AtomicU64::new(0),
            sent_len: AtomicU64::new(0),
            started_at: now,
            line_at: Mutex::new(now),
        }
    }

    /// Counts without a display.
    pub fn hidden() -> Self {
        Self {
            is_terminal: false,
            is_hidden: true,
            ..Self::start("", 0)
        }
    }

    /// Adds `len` bytes. `sent_len`: compressed bytes that were sent for them, or 0 if the server
    /// already had them.
    pub fn add(&self, len: u64, sent_len: u64) {
        let done_len = self.done_len.fetch_add(len, Ordering::Relaxed) + len;
        self.sent_len.fetch_add(sent_len, Ordering::Relaxed);
        let interval = match self.is_terminal {
            true => UPDATE_INTERVAL,
            false => LINE_INTERVAL,
        };
        let mut line_at = self.line_at.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_hidden || line_at.elapsed() < interval {
            return;
        }
        *line_at = Instant::now();
        // A tree that changes is hashed again.
        let done_len = done_len.min(self.len);
        let line = line(self.verb, done_len, self.len, self.started_at.elapsed());
        if self.is_terminal {
            write!(io::stderr(), "{ERASE}{line}").ok();
        } else {
            notice(&line);
        }
    }

    /// Returns a reader that adds the bytes that are read from it.
    pub fn counted<R: Read>(&self, reader: R) -> impl Read {
        Counted {
            reader,
            progress: self,
        }
    }

    /// Returns the number of compressed bytes sent so far.
    pub fn sent_len(&self) -> u64 {
        self.sent_len.load(Ordering::Relaxed)
    }

    /// Erases the progress line, on a terminal.
    pub fn end(&self) {
        if self.is_terminal {
            write!(io::stderr(), "{ERASE}").ok();
        }
    }
}

struct Counted<'a, R> {
    reader: R,
    progress: &'a Progress,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.progress.add(count as u64, 0);
        Ok(count)
    }
}

fn line(verb: &str, done_len: u64, len: u64, elapsed: Duration) -> String {
    let milliseconds = elapsed.as_millis().max(1);
    let rate = u128::from(done_len) * 1000 / milliseconds;
    let left = u128::from(len.saturating_sub(done_len));
    let seconds = left.checked_div(rate);
    let rate = human(u64::try_from(rate).unwrap_or(u64::MAX));
    let left = seconds.map_or_else(String::new, |seconds| format!(", {seconds} s left"));
    format!(
        "{verb} {} of {}, {rate}/s{left}",
        human(done_len),
        human(len)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_rate_and_time_left() {
        assert_eq!(
            line("pushed", 10 << 20, 100 << 20, Duration::from_secs(10)),
            "pushed 10.0 MiB of 100.0 MiB, 1.0 MiB/s, 90 s left"
        );
        assert_eq!(
            line("pulled", 0, 100, Duration::ZERO),
            "pulled 0 B of 100 B, 0 B/s"
        );
    }
}
