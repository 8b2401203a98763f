//! [`Report`]: the result of a push.

use std::time::Duration;

use super::ledger::Summary;
use super::pin::PinReport;

/// The result of a push, with its duration and number of requests.
#[derive(Debug, Default)]
pub struct Report {
    /// URL of the cache, without `/upload`.
    pub url: String,
    /// Whether nothing was sent.
    pub is_dry: bool,
    /// The paths.
    pub summary: Summary,
    /// Number of paths that the options excluded.
    pub excluded_count: usize,
    /// Whether the cache does not support the push protocol, so that files were uploaded one by
    /// one.
    pub is_stock: bool,
    /// Number of requests.
    pub request_count: u64,
    /// The outcome of `--pin`. `None`: the option is not given.
    pub pin: Option<PinReport>,
    /// Duration.
    pub time: Duration,
}

impl Report {
    /// Adds the result of a later push to the same cache.
    pub(super) fn add(&mut self, other: Self) {
        self.summary.add(other.summary);
        self.excluded_count += other.excluded_count;
        self.is_stock |= other.is_stock;
        // The client counts the requests of all its pushes, so the later count includes the earlier
        // one.
        self.request_count = self.request_count.max(other.request_count);
        self.time += other.time;
    }
}
