//! Load generators for patterns that wrk cannot produce. Each uses one or few threads, so that the
//! server stays the bottleneck.

pub(crate) mod echo;
pub(crate) mod idle;
pub(crate) mod line;
pub(crate) mod poll;
pub(crate) mod put;
pub(crate) mod sleepers;
pub(crate) mod upload;

use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// What a load generator has done and measured.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Seen {
    /// Number of completed requests, messages or bodies.
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

/// Runs `client` on `count` threads; returns the sum of their results.
pub(crate) fn on_threads(count: usize, client: impl Fn() -> Result<u64> + Sync) -> Result<u64> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(&client)).collect();
        let joined = threads.into_iter().map(ScopedJoinHandle::join);
        joined
            .map(|count| count.ok().context("a client panicked").flatten())
            .sum()
    })
}

/// Transfers bodies on `count` threads until `seconds` have passed. Each thread calls `start` once,
/// and then the returned function for each body.
pub(crate) fn bodies<F: FnMut() -> Result<()>>(
    count: usize,
    seconds: f64,
    start: impl Fn() -> Result<F> + Sync,
) -> Result<Seen> {
    let started = Instant::now();
    let count = on_threads(count, || {
        let mut transfer = start()?;
        let mut count = 0;
        // Transfer at least two bodies, because the first one grows the TCP windows.
        while count < 2 || started.elapsed().as_secs_f64() < seconds {
            transfer()?;
            count += 1;
        }
        Ok(count)
    })?;
    Ok(Seen {
        count,
        duration: started.elapsed(),
        latencies_us: Vec::new(),
    })
}
