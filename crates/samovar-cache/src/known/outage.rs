//! Outages of the store, reported once rather than for each request.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use samovar_store::StoreError;

use crate::sync::Locked;

/// Interval after which an error that continues is reported once more.
const REPEAT_TIME: Duration = Duration::from_secs(60);

/// The current outage's error, and the time of its last report.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    last: Mutex<Option<(StoreError, Instant)>>,
}

impl Outage {
    /// Records a store error. Returns whether it must be reported.
    pub(crate) fn note(&self, error: StoreError, now: Instant) -> bool {
        let mut last = self.last.locked();
        let must_report =
            last.is_none_or(|(known, at)| known != error || now.duration_since(at) >= REPEAT_TIME);
        if must_report {
            *last = Some((error, now));
        }
        must_report
    }

    /// Returns whether the last store access has failed.
    pub(crate) fn is_on(&self) -> bool {
        self.last.locked().is_some()
    }

    /// Records a successful store access. Returns whether it ends an outage.
    pub(crate) fn clear(&self) -> bool {
        self.last.locked().take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use samovar_store::Unavailable;

    use super::*;

    #[test]
    fn an_error_is_reported_once_a_minute() {
        let (outage, now) = (Outage::default(), Instant::now());
        assert!(!outage.clear());
        assert!(!outage.is_on());
        assert!(outage.note(StoreError::Busy, now));
        assert!(outage.is_on());
        assert!(!outage.note(StoreError::Busy, now));
        assert!(outage.note(StoreError::Unavailable(Unavailable::DatabaseMissing), now));
        assert!(outage.note(StoreError::Busy, now));
        assert!(outage.note(StoreError::Busy, now + REPEAT_TIME));
        assert!(outage.clear());
        assert!(!outage.clear());
    }
}
