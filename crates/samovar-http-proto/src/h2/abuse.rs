//! Rate limits of frames that cost the server more than the client.
//!
//! Each kind has a token bucket that refills with time. If a frame finds its bucket empty, the
//! connection ends with `ENHANCE_YOUR_CALM`.
//!
//! | bucket | burst | per second | frames that take a token |
//! |---|---|---|---|
//! | resets | 200 | 50 | `RST_STREAM` in either direction, `REFUSED_STREAM` included |
//! | control | 500 | 100 | SETTINGS and PING except acknowledgements, PRIORITY, CONTINUATION, unknown frames, empty DATA |
//! | windows | 1000 | 100 | `WINDOW_UPDATE`; each DATA frame sent returns two |
//!
//! *Resets.* A stream that is reset right after it was opened costs its sender nothing and does not
//! count as a concurrent stream, but the server has processed a request (CVE-2023-44487, "rapid
//! reset"). A frame that makes the *server* reset the stream has the same effect (CVE-2025-8671,
//! "made you reset"), so both directions count. A browser that leaves a page resets a hundred
//! streams at once, and then none for a while.
//!
//! *Control.* The server must parse or acknowledge each of these frames, and none carries a request
//! (CVE-2019-9512, -9515, -9518; CVE-2024-27316 for CONTINUATION).
//!
//! *Windows.* A client that reads responses sends about one stream update and one connection update
//! per DATA frame.
//!
//! Opening streams has no bucket: each stream either gets a response, at the server's own pace, or
//! is reset, which takes a token.

use std::time::{Duration, Instant};

use super::frames::{self, Frame};

/// Number of window tokens that each sent DATA frame returns.
const WINDOWS_PER_DATA: u32 = 2;

/// Reason for ending the connection of an abusive peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Abuse {
    /// Too many stream resets, by either side.
    #[error("too many HTTP/2 streams reset")]
    Resets,
    /// Too many frames that carry neither a request nor data.
    #[error("too many HTTP/2 control frames")]
    Control,
    /// Too many window updates.
    #[error("too many HTTP/2 window updates")]
    Windows,
    /// A limit of the `h2` crate was exceeded: the length of header blocks, the number of small
    /// DATA frames, or the number of streams that were reset before the session reported them.
    #[error("HTTP/2 connection exceeded a limit of the library h2")]
    Excess,
    /// A violation of RFC 9113.
    #[error("HTTP/2 protocol error")]
    Protocol,
}

/// A token bucket: `burst` is its capacity, in frames, and `per_second` its refill rate.
#[derive(Debug, Clone)]
struct Bucket {
    left: u32,
    burst: u32,
    per_second: u32,
}

impl Bucket {
    fn full(burst: u32, per_second: u32) -> Self {
        Self {
            left: burst,
            burst,
            per_second,
        }
    }

    fn take(&mut self, abuse: Abuse) -> Result<(), Abuse> {
        self.left = self.left.checked_sub(1).ok_or(abuse)?;
        Ok(())
    }

    fn put(&mut self, count: u32) {
        self.left = self.left.saturating_add(count).min(self.burst);
    }
}

/// The buckets of one connection.
#[derive(Debug, Clone)]
pub(super) struct Budget {
    resets: Bucket,
    control: Bucket,
    windows: Bucket,
    /// Time up to which tokens were added.
    paid: Instant,
}

impl Budget {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            resets: Bucket::full(200, 50),
            control: Bucket::full(500, 100),
            windows: Bucket::full(1000, 100),
            paid: now,
        }
    }

    /// Refills the buckets for the whole seconds since the last call.
    pub(super) fn pass(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.paid).as_secs();
        if seconds > 0 {
            self.paid += Duration::from_secs(seconds);
            let seconds = u32::try_from(seconds).unwrap_or(u32::MAX);
            for bucket in [&mut self.resets, &mut self.control, &mut self.windows] {
                bucket.put(seconds.saturating_mul(bucket.per_second));
            }
        }
    }

    /// Takes a token for a frame from the peer.
    pub(super) fn received(&mut self, frame: Frame) -> Result<(), Abuse> {
        match frame.kind {
            frames::HEADERS => Ok(()),
            frames::DATA if frame.len > 0 || frame.ends_stream() => Ok(()),
            frames::SETTINGS | frames::PING if frame.is_ack() => Ok(()),
            frames::RST_STREAM => self.resets.take(Abuse::Resets),
            frames::WINDOW_UPDATE => self.windows.take(Abuse::Windows),
            _ => self.control.take(Abuse::Control),
        }
    }

    /// Takes or returns tokens for a frame to the peer.
    pub(super) fn sent(&mut self, frame: Frame) -> Result<(), Abuse> {
        match frame.kind {
            frames::DATA => {
                self.windows.put(WINDOWS_PER_DATA);
                Ok(())
            }
            frames::RST_STREAM => self.resets.take(Abuse::Resets),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "an instant to count from")]
mod tests {
    use super::*;
    use crate::h2::frames::Scanner;

    fn frame(kind: u8, flags: u8, len: u8) -> Frame {
        let mut found = None;
        let header = [0, 0, len, kind, flags, 0, 0, 0, 1];
        Scanner::new(0).scan(&header, |frame| found = Some(frame));
        found.unwrap()
    }

    fn budget(now: Instant) -> Budget {
        Budget {
            resets: Bucket::full(3, 2),
            control: Bucket::full(3, 2),
            windows: Bucket::full(3, 2),
            paid: now,
        }
    }

    #[track_caller]
    fn check(costly: Frame, abuse: Abuse) {
        let now = Instant::now();
        let mut budget = budget(now);
        for _ in 0..3 {
            assert_eq!(budget.received(costly), Ok(()));
        }
        assert_eq!(budget.received(costly), Err(abuse));
        budget.pass(now + Duration::from_millis(999));
        assert_eq!(budget.received(costly), Err(abuse));
        budget.pass(now + Duration::from_millis(1000));
        assert_eq!(budget.received(costly), Ok(()));
        assert_eq!(budget.received(costly), Ok(()));
        assert_eq!(budget.received(costly), Err(abuse));
    }

    #[test]
    fn each_kind_has_its_bucket() {
        check(frame(frames::RST_STREAM, 0, 4), Abuse::Resets);
        check(frame(frames::WINDOW_UPDATE, 0, 4), Abuse::Windows);
        for costly in [
            frame(frames::DATA, 0, 0),
            frame(2, 0, 5),
            frame(frames::SETTINGS, 0, 0),
            frame(frames::PING, 0, 8),
            frame(frames::CONTINUATION, 0, 0),
            frame(77, 0, 0),
        ] {
            check(costly, Abuse::Control);
        }
    }

    #[test]
    fn useful_frames_are_free() {
        let mut budget = budget(Instant::now());
        for useful in [
            frame(frames::HEADERS, 5, 9),
            frame(frames::DATA, 0, 1),
            frame(frames::DATA, 1, 0),
            frame(frames::SETTINGS, 1, 0),
            frame(frames::PING, 1, 8),
        ] {
            for _ in 0..10 {
                assert_eq!(budget.received(useful), Ok(()));
            }
        }
    }

    #[test]
    fn sent_resets_count_and_sent_data_refills() {
        let mut budget = budget(Instant::now());
        for _ in 0..3 {
            assert_eq!(budget.sent(frame(frames::RST_STREAM, 0, 4)), Ok(()));
        }
        let reset = frame(frames::RST_STREAM, 0, 4);
        assert_eq!(budget.sent(reset), Err(Abuse::Resets));
        for _ in 0..10 {
            assert_eq!(budget.sent(frame(frames::DATA, 0, 9)), Ok(()));
            assert_eq!(budget.received(frame(frames::WINDOW_UPDATE, 0, 4)), Ok(()));
            assert_eq!(budget.received(frame(frames::WINDOW_UPDATE, 0, 4)), Ok(()));
        }
    }
}
