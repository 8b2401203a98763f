//! Saying once what many requests meet.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use samovar_store::StoreError;

/// The same error is reported again after this long.
const REPEAT_TIME: Duration = Duration::from_secs(60);

/// Whether the store is in trouble, and since when that was last said.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    last: Mutex<Option<(StoreError, Instant)>>,
}

impl Trouble {
    /// Notes an error; `true` if it should be reported.
    pub(crate) fn note(&self, error: StoreError, now: Instant) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news =
            last.is_none_or(|(known, at)| known != error || now.duration_since(at) >= REPEAT_TIME);
        if is_news {
            *last = Some((error, now));
        }
        is_news
    }

    /// Notes an answer; `true` if there was trouble until now.
    pub(crate) fn clear(&self) -> bool {
        // Nothing waits for this lock for long: reports are rare.
        self.last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .is_some()
    }
}

#[cfg(test)]
mod tests {
    use samovar_store::Unavailable;

    use super::*;

    #[test]
    fn news_only() {
        let (trouble, now) = (Trouble::default(), Instant::now());
        assert!(!trouble.clear());
        assert!(trouble.note(StoreError::Busy, now));
        assert!(!trouble.note(StoreError::Busy, now));
        assert!(trouble.note(StoreError::Unavailable(Unavailable::DatabaseMissing), now));
        assert!(trouble.note(StoreError::Busy, now));
        assert!(trouble.note(StoreError::Busy, now + REPEAT_TIME));
        assert!(trouble.clear());
        assert!(!trouble.clear());
    }
}
