//! What occurs most often, in bounded memory: Space-Saving.
//!
//! # Theory of operation
//!
//! So many counters, and no more. What has one is counted; what has none takes the least one over,
//! with its count, which is remembered as the most by which the new count may be wrong. So a count
//! is never too low, too high by its error at most, and no error is more than the sum of all
//! weights divided by the number of counters. What weighs more than that has a counter for
//! certain.
//!
//! # Source
//!
//! Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent and Top-k Elements in Data
//! Streams (ICDT 2005).

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

/// The counters.
#[derive(Debug)]
pub(crate) struct Sketch<K> {
    capacity: usize,
    counters: HashMap<K, Counter>,
    /// The same, the least first.
    order: BTreeSet<(u64, K)>,
}

/// How often something occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counter {
    /// Not too low.
    pub(crate) count: u64,
    /// By how much it may be too high.
    pub(crate) error: u64,
    /// Which of 64 marks came with it.
    pub(crate) marks: u64,
}

impl<K: Copy + Ord + Hash> Sketch<K> {
    /// One of so many counters, at least one.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            counters: HashMap::new(),
            order: BTreeSet::new(),
        }
    }

    /// `key` occurred: so often, by the one with this mark.
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

    /// Where a key that is new begins.
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

    /// Those that occurred most often, the first of them first.
    pub(crate) fn top(&self, count_max: usize) -> impl Iterator<Item = (K, Counter)> {
        let keys = self.order.iter().rev().take(count_max);
        keys.filter_map(|(_, key)| Some((*key, *self.counters.get(key)?)))
    }
}

impl Counter {
    /// About how many different marks there would be, were there more than 64: the share of those
    /// not seen tells (linear counting). Beyond some 200 it is a guess.
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
        fn counts_are_within_their_bounds(
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
    fn marks_are_counted_about() {
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
