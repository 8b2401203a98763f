//! [`Moment`] and [`Times`]: readings of a monotonic clock, and the intervals of the protocol.

use std::time::Duration;

/// Reading of a monotonic clock of this machine: the time since some fixed moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Moment(pub Duration);

impl Moment {
    /// Returns the moment that is `interval` later.
    #[must_use]
    pub const fn after(self, interval: Duration) -> Self {
        Self(self.0.saturating_add(interval))
    }

    /// Returns the time from `earlier` to this moment, or zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// The intervals of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Times {
    /// How long a lease lives, from the moment before its renewal was sent.
    pub lease: Duration,
    /// How long a publisher waits for a node that does not confirm. Longer than `lease` by more
    /// than the clocks of two machines can differ over this time.
    pub wait: Duration,
    /// Time from one renewal to the next.
    pub renewal: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            lease: Duration::from_millis(2700),
            wait: Duration::from_secs(3),
            renewal: Duration::from_millis(500),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_ends_before_publishers_stop_waiting() {
        let times = Times::default();
        assert!(times.lease + times.lease / 10 <= times.wait);
        assert!(
            times.renewal * 4 < times.lease,
            "a few renewals may be late"
        );
    }
}
