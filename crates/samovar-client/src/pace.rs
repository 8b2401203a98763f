//! [`Pace`]: how long a client waits for a download; [`Paced`]: a body that must keep it.

use std::io::{self, ErrorKind, Read};
use std::time::{Duration, Instant};

use crate::fault::{Fault, is_timeout};
use crate::remote::Remote;
use samovar_text::human;

/// The slowest download that is not given up.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Maximum wait for a connection, for the head of the response, and for each read of its body.
    pub silence: Duration,
    /// Number of bytes of a body that must arrive within `window`.
    pub len_min: u64,
    /// Maximum time of waiting for `len_min` bytes.
    pub window: Duration,
}

impl Pace {
    /// 1 KiB per second: a sixth of the speed of a modem.
    pub const DOWNLOAD: Self = Self {
        silence: Duration::from_secs(15),
        len_min: 30 << 10,
        window: Duration::from_secs(30),
    };
}

/// The body of a response that must arrive at the minimum speed of a [`Pace`]. Only the
/// time during which the reader waits for the server counts.
#[derive(Debug)]
pub struct Paced<R> {
    inner: R,
    pace: Pace,
    remote: Remote,
    /// Number of bytes received in this window.
    received: u64,
    /// Time waited in this window.
    waited: Duration,
}

impl<R> Paced<R> {
    /// Returns a body that must keep this pace. `remote`: for messages.
    pub fn new(inner: R, pace: Pace, remote: Remote) -> Self {
        Self {
            inner,
            pace,
            remote,
            received: 0,
            waited: Duration::ZERO,
        }
    }

    /// Counts received bytes and the time of waiting for them. Returns whether the server is fast
    /// enough.
    fn keeps_pace(&mut self, count: u64, waited: Duration) -> bool {
        self.received += count;
        self.waited += waited;
        if self.received < self.pace.len_min {
            return self.waited <= self.pace.window;
        }
        self.received = 0;
        self.waited = Duration::ZERO;
        true
    }

    fn failure(&self, error: io::Error) -> io::Error {
        let (kind, origin) = (error.kind(), self.remote.origin());
        let error = ureq::Error::from(error);
        if is_timeout(&error) {
            let time = self.pace.silence;
            let text = format!("{origin} sent nothing for {time:?}");
            return io::Error::new(ErrorKind::TimedOut, text);
        }
        let reason = Fault::of(&error, &self.remote).reason;
        let text = format!("the connection to {origin} broke: {reason}");
        io::Error::new(kind, text)
    }
}

impl<R: Read> Read for Paced<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let started_at = Instant::now();
        match self.inner.read(buffer) {
            Ok(0) => Ok(0),
            Ok(count) if self.keeps_pace(count as u64, started_at.elapsed()) => Ok(count),
            Ok(_) => {
                let (origin, pace) = (self.remote.origin(), self.pace);
                let (len, time) = (human(pace.len_min), pace.window);
                let text = format!("{origin} sent less than {len} in {time:?}");
                Err(io::Error::new(ErrorKind::TimedOut, text))
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Err(error),
            Err(error) => Err(self.failure(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_at_the_minimum_speed_is_accepted_and_a_slower_one_is_not() {
        let pace = Pace {
            silence: Duration::MAX,
            len_min: 100,
            window: Duration::from_secs(10),
        };
        let second = Duration::from_secs(1);
        let mut body = Paced::new(io::empty(), pace, Remote::parse("http://a").unwrap());
        for _ in 0..100 {
            assert!(body.keeps_pace(10, second));
        }
        // The window ends with its last byte, however late it arrives.
        assert!(body.keeps_pace(1, 10 * second));
        assert!(body.keeps_pace(99, second));
        assert!(body.keeps_pace(99, 10 * second));
        assert!(!body.keeps_pace(0, Duration::from_nanos(1)));
    }
}
