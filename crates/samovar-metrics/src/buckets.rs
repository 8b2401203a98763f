//! Histograms of durations.
//!
//! There are ten buckets per decade, from a microsecond to a minute. So a percentile is wrong by
//! less than a third, and usually by much less. The exposed bounds are a subset of all bounds, so
//! the exposed counts are exact.

/// Upper bounds of the buckets in nanoseconds, inclusive. One more bucket counts longer durations.
pub(crate) static BOUNDS_NS: [u64; BOUND_COUNT] = bounds();

const BOUND_COUNT: usize = 79;

/// Number of buckets, including the one for durations over a minute.
pub(crate) const BUCKET_COUNT: usize = BOUND_COUNT + 1;

/// The bounds exposed in `/metrics`, as labels in seconds.
const EXPOSED: [&str; 21] = [
    "1e-05", "2.5e-05", "5e-05", "0.0001", "0.00025", "0.0005", "0.001", "0.0025", "0.005", "0.01",
    "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "30", "60",
];

/// The exposed bounds in nanoseconds, with their labels.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "at most a minute"
)]
pub(crate) fn exposed() -> impl Iterator<Item = (u64, &'static str)> {
    let ns_of = |label: &str| {
        label
            .parse()
            .map_or(0, |seconds: f64| (seconds * 1e9).round() as u64)
    };
    EXPOSED.into_iter().map(move |label| (ns_of(label), label))
}

const fn bounds() -> [u64; BOUND_COUNT] {
    let steps = [100, 125, 160, 200, 250, 300, 400, 500, 600, 800];
    let mut bounds = [0; BOUND_COUNT];
    let (mut index, mut decade) = (0, 10);
    while index < BOUND_COUNT {
        bounds[index] = steps[index % steps.len()] * decade;
        index += 1;
        if index % steps.len() == 0 {
            decade *= 10;
        }
    }
    bounds
}

/// Returns the index of the bucket for a duration.
pub(crate) fn index_of(ns: u64) -> usize {
    BOUNDS_NS.partition_point(|bound| *bound < ns)
}

/// A histogram of durations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Histogram {
    pub(crate) counts: [u64; BUCKET_COUNT],
    pub(crate) sum_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: [0; BUCKET_COUNT],
            sum_ns: 0,
        }
    }
}

impl Histogram {
    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the durations counted since an earlier state of the same histogram.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let mut counts = self.counts;
        for (count, earlier) in counts.iter_mut().zip(earlier.counts) {
            *count = count.saturating_sub(earlier);
        }
        let sum_ns = self.sum_ns.saturating_sub(earlier.sum_ns);
        Self { counts, sum_ns }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (count, other) in self.counts.iter_mut().zip(other.counts) {
            *count += other;
        }
        self.sum_ns += other.sum_ns;
    }

    /// Returns the number of durations up to a bound, which must be one of [`BOUNDS_NS`].
    pub(crate) fn count_up_to(&self, bound_ns: u64) -> u64 {
        let end = index_of(bound_ns) + 1;
        self.counts.iter().take(end).sum()
    }

    /// Estimates a percentile in seconds, assuming that durations are spread evenly within a
    /// bucket. Returns zero if nothing was counted.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub(crate) fn percentile_s(&self, percent: u64) -> f64 {
        // Computed in integers: in floating point, 75 * 0.28 is slightly more than 21 and would be
        // rounded up to 22.
        let rank = (self.count() * percent).div_ceil(100) as f64;
        let (mut below, mut low_ns) = (0.0, 0);
        for (index, count) in self.counts.iter().enumerate() {
            let count = *count as f64;
            // Durations over a minute are reported as one minute.
            let high_ns = BOUNDS_NS.get(index).copied().unwrap_or(low_ns);
            if count > 0.0 && below + count >= rank {
                let part = ((rank - below) / count).clamp(0.0, 1.0);
                return (low_ns as f64 + part * (high_ns - low_ns) as f64) / 1e9;
            }
            below += count;
            low_ns = high_ns;
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bounds_ascend_and_contain_the_exposed_ones() {
        assert!(BOUNDS_NS.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!((BOUNDS_NS[0], BOUNDS_NS[78]), (1_000, 60_000_000_000));
        for (bound_ns, label) in exposed() {
            assert!(BOUNDS_NS.contains(&bound_ns), "{bound_ns} {label}");
        }
    }

    proptest! {
        #[test]
        fn percentiles_are_exact_within_a_bucket(
            mut list in prop::collection::vec(1_001_u64..60_000_000_000, 1..200),
            percent in 1_usize..=100,
        ) {
            let mut histogram = Histogram::default();
            for ns in &list {
                histogram.counts[index_of(*ns)] += 1;
            }
            list.sort_unstable();
            let rank = (list.len() * percent).div_ceil(100);
            let exact = list[rank - 1] as f64 / 1e9;
            let estimate = histogram.percentile_s(percent as u64);
            prop_assert!(estimate <= exact * 1.34 && estimate >= exact / 1.34,
                "{estimate} for {exact}");
            let up_to = |bound_ns| list.iter().filter(|ns| **ns <= bound_ns).count() as u64;
            for (bound_ns, _) in exposed() {
                prop_assert_eq!(histogram.count_up_to(bound_ns), up_to(bound_ns));
            }
        }
    }

    #[test]
    fn the_percentile_of_an_empty_histogram_is_zero() {
        assert_eq!(Histogram::default().percentile_s(99), 0.0);
    }
}
