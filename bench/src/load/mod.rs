//! Clients for what wrk cannot do. Each is one thread or a few, so that the server is the one that
//! is measured.

pub(crate) mod echo;
pub(crate) mod idle;
pub(crate) mod poll;
pub(crate) mod slow;
pub(crate) mod upload;
pub(crate) mod websocket;

use std::time::Duration;

/// What a client saw.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Seen {
    /// Requests, messages or bodies.
    pub(crate) count: u64,
    pub(crate) duration: Duration,
    /// In microseconds, in ascending order.
    pub(crate) latencies_us: Vec<f64>,
}

impl Seen {
    /// The latency that `part` of a hundred stay below, in microseconds.
    pub(crate) fn percentile_us(&self, part: usize) -> f64 {
        let at = self.latencies_us.len() * part / 100;
        self.latencies_us.get(at).copied().unwrap_or_default()
    }
}
