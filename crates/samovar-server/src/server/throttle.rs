//! Lines of one kind, so many in a while.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lines let through in one window.
const LINE_COUNT: u32 = 5;
/// How long a window is.
const WINDOW: Duration = Duration::from_secs(10);

/// Counts lines of one kind.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    window_start: Option<Instant>,
    passed: u32,
    left_out: u64,
}

impl Throttle {
    /// Whether a line may be written now, and how many were not since the last one.
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
            state.left_out += 1;
            return None;
        }
        state.passed += 1;
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_counted() {
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
