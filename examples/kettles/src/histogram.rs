//! Histograms of durations and sizes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of durations, in microseconds: about three per decade, more in the range where most
/// responses fall.
pub const MICROS: &[u64] = &[
    50, 100, 200, 300, 500, 750, 1000, 1500, 2000, 3000, 5000, 7500, 10_000, 15_000, 20_000,
    30_000, 50_000, 75_000, 100_000, 200_000, 300_000, 500_000, 1_000_000, 2_000_000, 5_000_000,
    10_000_000,
];

/// Upper bounds of batch sizes, in rows.
pub const ROWS: &[u64] = &[1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000];

/// A histogram with fixed bounds.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// Number of values in each bucket; the bucket after the last bound has no upper bound.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// Contents of a histogram at one moment, or the difference between two moments.
#[derive(Debug, Clone)]
pub struct Snapshot {
    bounds: &'static [u64],
    /// Number of values in each bucket, not cumulative; the bucket after the last bound has no
    /// upper bound.
    pub counts: Vec<u64>,
    /// Sum of all values.
    pub sum: u64,
}

impl Histogram {
    /// Creates an empty histogram.
    pub fn new(bounds: &'static [u64]) -> Self {
        Self {
            bounds,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }

    /// Records a value.
    pub fn add(&self, value: u64) {
        let index = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get(index) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// Records a duration, in microseconds.
    pub fn add_time(&self, duration: Duration) {
        self.add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
    }

    /// Returns the current contents.
    pub fn snapshot(&self) -> Snapshot {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Snapshot {
            bounds: self.bounds,
            counts: self.counts.iter().map(load).collect(),
            sum: load(&self.sum),
        }
    }
}

impl Snapshot {
    /// Creates an empty snapshot.
    pub fn empty(bounds: &'static [u64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len() + 1],
            sum: 0,
        }
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds a snapshot with the same bounds.
    pub fn merge(&mut self, other: &Self) {
        for (own, other) in self.counts.iter_mut().zip(&other.counts) {
            *own += other;
        }
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// Returns the values recorded since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let counts = self.counts.iter().zip(&earlier.counts);
        Self {
            bounds: self.bounds,
            counts: counts
                .map(|(now, then)| now.saturating_sub(*then))
                .collect(),
            sum: self.sum.wrapping_sub(earlier.sum),
        }
    }

    /// Returns each bound with the number of values up to it, in ascending order. The last bound is
    /// infinite, which is written as `None`.
    pub fn cumulative(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        let bounds = self.bounds.iter().copied().map(Some).chain([None]);
        let mut total = 0;
        bounds.zip(&self.counts).map(move |(bound, count)| {
            total += count;
            (bound, total)
        })
    }

    /// Returns the value at `quantile`, interpolated within its bucket; `None` if there are no
    /// values.
    pub fn quantile(&self, quantile: f64) -> Option<f64> {
        let count = self.count();
        #[expect(clippy::cast_precision_loss, reason = "counts are no larger")]
        let wanted = quantile * count as f64;
        let mut lower = 0;
        let mut before = 0;
        for (bound, total) in self.cumulative() {
            let bound = bound.unwrap_or(lower);
            #[expect(clippy::cast_precision_loss, reason = "counts are no larger")]
            if count > 0 && total as f64 >= wanted {
                let share = (wanted - before as f64) / (total - before).max(1) as f64;
                return Some(lower as f64 + share.clamp(0.0, 1.0) * (bound - lower) as f64);
            }
            (lower, before) = (bound, total);
        }
        None
    }

    /// Returns the mean; `None` if there are no values.
    pub fn mean(&self) -> Option<f64> {
        let count = self.count();
        #[expect(clippy::cast_precision_loss, reason = "sums are no larger")]
        (count > 0).then(|| self.sum as f64 / count as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_up_to_their_bound() {
        let histogram = Histogram::new(&[10, 20]);
        for value in [0, 10, 11, 20, 21, 1000] {
            histogram.add(value);
        }
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.counts, [2, 2, 2]);
        assert_eq!(snapshot.sum, 1062);
        let cumulative: Vec<_> = snapshot.cumulative().collect();
        assert_eq!(cumulative, [(Some(10), 2), (Some(20), 4), (None, 6)]);
    }

    #[test]
    fn quantiles_are_between_bounds() {
        let histogram = Histogram::new(&[10, 20, 30]);
        assert_eq!(histogram.snapshot().quantile(0.5), None);
        let empty = histogram.snapshot();
        for _ in 0..10 {
            histogram.add(15);
        }
        let snapshot = histogram.snapshot().since(&empty);
        assert_eq!(snapshot.quantile(0.5), Some(15.0));
        assert_eq!(snapshot.quantile(1.0), Some(20.0));
        assert_eq!(snapshot.mean(), Some(15.0));
        histogram.add(1_000_000);
        assert_eq!(histogram.snapshot().quantile(1.0), Some(30.0));
    }
}
