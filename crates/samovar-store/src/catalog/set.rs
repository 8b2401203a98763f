//! A persistent set of hash parts that grows in batches.
//!
//! A set is a list of tables of decreasing size, each at least [`RATIO`] times as large as the
//! next. A batch that would break this rule is merged with its neighbour. A set of a million paths
//! has about five tables. Adding one path copies only the small tables; the largest is rebuilt once
//! per hundred thousand additions. Successive sets share their tables.

use std::sync::Arc;

use samovar_nix::HashPart;

use super::seed::{Key, Seed};
use super::table::Table;

/// Minimum ratio between the sizes of neighbouring tables.
const RATIO: usize = 8;

/// A set of hash parts; cloning is cheap.
#[derive(Debug, Clone)]
pub(super) struct Set {
    seed: Seed,
    /// The tables of the set. Invariant: their key counts decrease, and each is at least `RATIO`
    /// times the next.
    tables: Vec<Arc<Table>>,
}

impl Set {
    /// Creates an empty set.
    pub(super) fn empty() -> Self {
        Self {
            seed: Seed::random(),
            tables: Vec::new(),
        }
    }

    /// Builds a set of keys.
    pub(super) fn build(keys: Vec<Key>) -> Self {
        let seed = Seed::random();
        Self {
            seed,
            tables: vec![Arc::new(Table::build(seed, keys))],
        }
    }

    /// Returns the set with more keys added.
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

    /// Returns whether the set holds the hash part.
    pub(super) fn contains(&self, hash_part: &HashPart) -> bool {
        self.tables.iter().any(|table| table.contains(hash_part))
    }

    /// Returns the number of keys; a key in two tables counts twice.
    pub(super) fn key_count(&self) -> usize {
        self.tables.iter().map(|table| table.key_count()).sum()
    }

    /// Returns the memory of the tables, in bytes.
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
    fn adding_keys_leaves_the_earlier_set_unchanged() {
        let before = Set::build(vec![key(1)]);
        let after = before.with(vec![key(2)]);
        assert!(!before.contains(&HashPart::from_bytes(key(2))));
        assert!(after.contains(&HashPart::from_bytes(key(1))));
    }
}
