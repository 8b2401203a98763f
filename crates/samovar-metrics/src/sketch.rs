//! The most frequent keys of a stream, in bounded memory: the Space-Saving algorithm.
//!
//! # Theory of operation
//!
//! The number of counters is fixed. A key without a counter replaces the key with the lowest count
//! and continues from that count, which is also stored as the maximum error of the new count. So a
//! count is never too low, and too high by its error at most. No error exceeds the sum of all
//! weights divided by the number of counters, and a key that weighs more than that always has a
//! counter.
//!
//! # Source
//!
//! Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent and Top-k Elements in Data
//! Streams (ICDT 2005).

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

/// Default number of counters. The error of a count is at most a thousandth of the total.
const COUNTER_COUNT: usize = 1024;

/// The counters of the most frequent keys.
#[derive(Debug)]
pub(crate) struct Sketch<K> {
    capacity: usize,
    counters: HashMap<K, Counter>,
    /// The counters in ascending order of counts.
    order: BTreeSet<(u64, K)>,
}

/// The estimated weight of a key, and its error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counter {
    /// The estimated weight of the key. It is never too low.
    pub(crate) count: u64,
    /// Maximum amount by which `count` may be too high.
    pub(crate) error: u64,
    /// The marks that were added with the key: a set of numbers from 0 to 63, one bit each.
    pub(crate) marks: u64,
}

impl<K: Copy + Ord + Hash> Default for Sketch<K> {
    fn default() -> Self {
        Self::new(COUNTER_COUNT)
    }
}

impl<K: Copy + Ord + Hash> Sketch<K> {
    /// Creates a sketch with `capacity` counters, at least one.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            counters: HashMap::new(),
            order: BTreeSet::new(),
        }
    }

    /// Adds `weight` to the count of `key`, and `mark` to its marks.
    pub(crate) fn add(&mut self, key: K, weight: u64, mark: u64) {
        let before = match self.counters.get(&key) {
            Some(counter) => {
                self.order.remove(&(counter.count, key));
                *counter
            }
            None => self.make_room(),
        };
        let counter = Counter {
            count: before.count.saturating_add(weight),
            marks: before.marks | 1 << (mark % 64),
            ..before
        };
        self.order.insert((counter.count, key));
        self.counters.insert(key, counter);
    }

    /// Returns a counter for a new key. If all counters are in use, replaces the lowest one.
    fn make_room(&mut self) -> Counter {
        let least = match self.counters.len() < self.capacity {
            true => None,
            false => self.order.pop_first(),
        };
        let count = least.map_or(0, |(count, key)| {
            self.counters.remove(&key);
            count
        });
        Counter {
            count,
            error: count,
            marks: 0,
        }
    }

    /// Returns the keys with the highest counts, in descending order.
    pub(crate) fn top(&self, count_max: usize) -> impl Iterator<Item = (K, Counter)> {
        let keys = self.order.iter().rev().take(count_max);
        keys.filter_map(|(_, key)| Some((*key, *self.counters.get(key)?)))
    }
}

impl Counter {
    /// Estimates the number of distinct values whose hashes are the marks, from the share of marks
    /// that did not occur (linear counting). Above about 200 the estimate is coarse.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and 267"
    )]
    pub(crate) fn mark_count(&self) -> u64 {
        let unseen = f64::from(self.marks.count_zeros()).max(0.99);
        (64.0 * (64.0 / unseen).ln()).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn counts_are_within_their_errors(
            capacity in 1_usize..12,
            stream in prop::collection::vec((0_u8..40, 0_u64..1000), 0..400),
        ) {
            let mut sketch = Sketch::new(capacity);
            let mut exact: HashMap<u8, u64> = HashMap::new();
            for (key, weight) in &stream {
                sketch.add(*key, *weight, 0);
                *exact.entry(*key).or_default() += weight;
            }
            let sum: u64 = exact.values().sum();
            let bound = sum / capacity as u64;
            let top: Vec<_> = sketch.top(usize::MAX).collect();
            prop_assert!(top.len() <= capacity);
            prop_assert_eq!(sketch.order.len(), sketch.counters.len());
            prop_assert!(top.windows(2).all(|pair| pair[0].1.count >= pair[1].1.count));
            for (key, counter) in &top {
                let real = exact[key];
                prop_assert!(real <= counter.count);
                prop_assert!(counter.count - counter.error <= real);
                prop_assert!(counter.error <= bound);
            }
            for (key, real) in exact {
                let is_there = top.iter().any(|(other, _)| *other == key);
                prop_assert!(real <= bound || is_there, "{key} occurred {real} times of {sum}");
            }
        }
    }

    #[test]
    fn the_number_of_distinct_marks_is_estimated() {
        let mut sketch = Sketch::new(1);
        assert_eq!(sketch.top(1).count(), 0);
        for (mark, expected) in [(0, 1), (0, 1), (1, 2), (2, 3)] {
            sketch.add((), 1, mark);
            let (_, counter) = sketch.top(1).next().expect("there is one");
            assert_eq!(counter.mark_count(), expected);
        }
        (0..64).for_each(|mark| sketch.add((), 1, mark));
        let (_, counter) = sketch.top(1).next().expect("there is one");
        assert!(counter.mark_count() > 200);
    }
}
