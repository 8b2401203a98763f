//! Limits the rate of log lines of one kind.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of lines in a time window.
const LINE_COUNT: u32 = 5;
/// Length of a time window.
const WINDOW: Duration = Duration::from_secs(10);

/// Limits the rate of log lines of one kind.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    window_start: Option<Instant>,
    passed: u32,
    suppressed: u64,
}

impl Throttle {
    /// Admits a line and returns the number of lines suppressed since the last one, or returns
    /// `None` to suppress it.
    pub(super) fn pass(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = state
            .window_start
            .is_none_or(|start| now.saturating_duration_since(start) >= WINDOW);
        if is_over {
            state.window_start = Some(now);
            state.passed = 0;
        }
        if state.passed == LINE_COUNT {
            state.suppressed += 1;
            return None;
        }
        state.passed += 1;
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suppressed_lines_are_counted() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        for _ in 0..LINE_COUNT {
            assert_eq!(throttle.pass(now), Some(0));
        }
        for _ in 0..3 {
            assert_eq!(throttle.pass(now + WINDOW / 2), None);
        }
        assert_eq!(throttle.pass(now + WINDOW), Some(3));
        assert_eq!(throttle.pass(now + WINDOW), Some(0));
    }
}
