//! This machine's clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns this machine's time, in seconds since 1970.
pub(crate) fn unix_now_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = since.map_or(0, |since| since.as_secs());
    i64::try_from(seconds).unwrap_or(i64::MAX)
}
