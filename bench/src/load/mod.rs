//! Load generators for patterns that wrk cannot produce. Each uses one or few threads, so that the
//! server stays the bottleneck.

pub(crate) mod echo;
pub(crate) mod idle;
pub(crate) mod poll;
pub(crate) mod slow;
pub(crate) mod upload;
pub(crate) mod websocket;

use std::time::Duration;

/// Results of a load generator.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Seen {
    /// Number of requests, messages or bodies.
    pub(crate) count: u64,
    pub(crate) duration: Duration,
    /// Latencies in microseconds, in ascending order.
    pub(crate) latencies_us: Vec<f64>,
}

impl Seen {
    /// Returns a percentile of the latencies, in microseconds; `part` is in percent.
    pub(crate) fn percentile_us(&self, part: usize) -> f64 {
        let at = self.latencies_us.len() * part / 100;
        self.latencies_us.get(at).copied().unwrap_or_default()
    }
}
