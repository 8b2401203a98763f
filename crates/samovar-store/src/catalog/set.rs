//! A set of hash parts that grows by whole batches and is otherwise immutable.
//!
//! Batches pile up as tables of falling size, each at least [`RATIO`] times the next: a batch that
//! would break that order is merged with its neighbour. So a set of a million paths has a handful
//! of tables, adding one path copies a handful of small ones, and the big one is rebuilt once in a
//! hundred thousand additions. The tables themselves are shared between the sets before and after.

use std::sync::Arc;

use samovar_nix::HashPart;

use super::seed::Seed;
use super::table::{Key, Table};

/// How much larger a table is than the next one.
const RATIO: usize = 8;

/// A set of hash parts; cloning is cheap.
#[derive(Debug, Clone)]
pub(super) struct Set {
    seed: Seed,
    /// Invariant: the key counts fall, each at least `RATIO` times the next.
    tables: Vec<Arc<Table>>,
}

impl Set {
    /// The set without elements.
    pub(super) fn empty() -> Self {
        Self {
            seed: Seed::random(),
            tables: Vec::new(),
        }
    }

    /// A set of these keys.
    pub(super) fn build(keys: Vec<Key>) -> Self {
        let seed = Seed::random();
        Self {
            seed,
            tables: vec![Arc::new(Table::build(seed, keys))],
        }
    }

    /// The set with more keys.
    pub(super) fn with(&self, keys: Vec<Key>) -> Self {
        let mut set = self.clone();
        if keys.is_empty() {
            return set;
        }
        let mut last = Arc::new(Table::build(self.seed, keys));
        while let Some(table) = set
            .tables
            .pop_if(|table| table.key_count() < RATIO * last.key_count())
        {
            last = Arc::new(Table::merge(&table, &last));
        }
        set.tables.push(last);
        set
    }

    /// Whether the hash part is in the set.
    pub(super) fn contains(&self, hash_part: &HashPart) -> bool {
        self.tables.iter().any(|table| table.contains(hash_part))
    }

    /// How many keys there are, those in two tables counted twice.
    pub(super) fn key_count(&self) -> usize {
        self.tables.iter().map(|table| table.key_count()).sum()
    }

    /// How many bytes of memory the tables take.
    pub(super) fn memory_len(&self) -> usize {
        self.tables.iter().map(|table| table.memory_len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(index: u32) -> Key {
        let mut key = [7; 20];
        key[..4].copy_from_slice(&index.to_be_bytes());
        key
    }

    #[test]
    fn grows_one_by_one_and_stays_ordered() {
        let mut set = Set::empty();
        for index in 0..5000 {
            set = set.with(vec![key(index)]);
            for pair in set.tables.windows(2) {
                assert!(pair[0].key_count() >= RATIO * pair[1].key_count());
            }
        }
        assert!(set.tables.len() <= 5, "{} tables", set.tables.len());
        for index in 0..6000 {
            assert_eq!(
                set.contains(&HashPart::from_bytes(key(index))),
                index < 5000
            );
        }
    }

    #[test]
    fn the_set_before_is_unchanged() {
        let before = Set::build(vec![key(1)]);
        let after = before.with(vec![key(2)]);
        assert!(!before.contains(&HashPart::from_bytes(key(2))));
        assert!(after.contains(&HashPart::from_bytes(key(1))));
    }
}
