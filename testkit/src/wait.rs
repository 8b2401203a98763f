//! Polling with a deadline.

use std::time::{Duration, Instant};

/// Deadline of every wait in tests: long enough for a busy machine, reached only by failing tests.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Pause between two checks of a condition.
const STEP: Duration = Duration::from_millis(2);

/// Waits until `condition` holds.
///
/// # Panics
///
/// After [`PATIENCE`], naming `what`.
#[track_caller]
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    assert!(holds_within(PATIENCE, condition), "not in time: {what}");
}

/// Polls `condition` until it holds or `limit` has passed; returns whether it held.
pub fn holds_within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if start.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(STEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_polled_until_it_holds() {
        let mut count = 0;
        eventually("the third call", || {
            count += 1;
            count == 3
        });
        assert_eq!(count, 3);
        assert!(!holds_within(Duration::ZERO, || false));
    }
}
