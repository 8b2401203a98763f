//! An immutable table of hash parts.
//!
//! # Theory of operation
//!
//! The table is an array of 20-byte slots, filled to [`LOAD_PERCENT`]. A key's *home* slot follows
//! from a seeded mix of its first eight bytes, scaled to the number of slots. Keys are ordered by
//! (mix, bytes), each at its home or as close after it as order and collisions allow. Homes rise
//! with the mix, so a search stops at the first slot that is empty or holds a later key. A miss
//! reads three or four slots on average, usually in one or two cache lines, although only one slot
//! in seven is empty.
//!
//! An empty slot holds twenty zero bytes. A key of twenty zero bytes is valid too, so a flag
//! records whether the table has it.
//!
//! The seed prevents clients from choosing hash parts that collide.

use std::cmp::Ordering;

use samovar_nix::HashPart;

use super::seed::{Key, Seed};

/// Fill level of a new table, in percent.
const LOAD_PERCENT: usize = 85;

const EMPTY: Key = [0; 20];

/// An immutable set of hash parts: about 24 bytes per key.
#[derive(Debug)]
pub(super) struct Table {
    seed: Seed,
    /// Number of home slots. Keys that are pushed past the last of them make `slots` longer.
    home_count: u64,
    slots: Box<[Key]>,
    key_count: usize,
    holds_zero: bool,
}

impl Table {
    /// Builds a table of keys given in any order; duplicates count once. Reuses the memory of
    /// `keys` and needs one additional byte per key.
    pub(super) fn build(seed: Seed, mut keys: Vec<Key>) -> Self {
        keys.sort_unstable_by(|left, right| {
            seed.mix(left)
                .cmp(&seed.mix(right))
                .then_with(|| left.cmp(right))
        });
        keys.dedup();
        let key_count = keys.len();
        keys.retain(|key| *key != EMPTY);
        let mut table = Self {
            seed,
            home_count: home_count(key_count),
            slots: Box::default(),
            key_count,
            holds_zero: keys.len() < key_count,
        };
        let mut is_taken = Vec::with_capacity(slot_count(key_count));
        for key in &keys {
            let home = table.home(seed.mix(key));
            if is_taken.len() < home {
                is_taken.resize(home, false);
            }
            is_taken.push(true);
        }
        let mut left = keys.len();
        keys.reserve_exact(is_taken.len() - left);
        keys.resize(is_taken.len(), EMPTY);
        // Start with the last key: keys move towards the end only, so the target slot of each is
        // either empty or its own.
        for (slot, _) in is_taken
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, taken)| **taken)
        {
            left -= 1;
            keys.swap(slot, left);
        }
        table.slots = keys.into_boxed_slice();
        table
    }

    /// Merges two tables of the same seed.
    pub(super) fn merge(left: &Self, right: &Self) -> Self {
        let count = left.key_count + right.key_count;
        Self::from_ordered(
            left.seed,
            count,
            merged(left.seed, left.keys(), right.keys()),
        )
    }

    /// Returns whether the table holds the hash part.
    pub(super) fn contains(&self, hash_part: &HashPart) -> bool {
        let key = hash_part.as_bytes();
        if *key == EMPTY {
            return self.holds_zero;
        }
        let mix = self.seed.mix(key);
        for slot in self.slots.get(self.home(mix)..).unwrap_or_default() {
            if slot == key {
                return true;
            }
            if *slot == EMPTY || (self.seed.mix(slot), slot) > (mix, key) {
                return false;
            }
        }
        false
    }

    /// Returns the number of keys.
    pub(super) fn key_count(&self) -> usize {
        self.key_count
    }

    /// Returns the memory of the slots, in bytes.
    pub(super) fn memory_len(&self) -> usize {
        size_of_val(&*self.slots)
    }

    fn from_ordered(seed: Seed, count_max: usize, keys: impl Iterator<Item = Key>) -> Self {
        let mut table = Self {
            seed,
            home_count: home_count(count_max),
            slots: Box::default(),
            key_count: 0,
            holds_zero: false,
        };
        let mut slots = Vec::with_capacity(slot_count(count_max));
        for key in keys {
            table.key_count += 1;
            if key == EMPTY {
                table.holds_zero = true;
                continue;
            }
            let home = table.home(seed.mix(&key));
            while slots.len() < home {
                slots.push(EMPTY);
            }
            slots.push(key);
        }
        table.slots = slots.into_boxed_slice();
        table
    }

    fn home(&self, mix: u64) -> usize {
        let scaled = (u128::from(mix) * u128::from(self.home_count)) >> 64;
        // The product of two 64-bit numbers, shifted by 64, fits 64 bits.
        usize::try_from(scaled).unwrap_or(usize::MAX)
    }

    fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        let zero = self.holds_zero.then_some(EMPTY);
        // The zero key has no slot. It sorts before all other keys.
        zero.into_iter()
            .chain(self.slots.iter().copied().filter(|slot| *slot != EMPTY))
    }
}

/// Returns the number of home slots of a table with `key_count` keys.
fn home_count(key_count: usize) -> u64 {
    let count = (key_count * 100).div_ceil(LOAD_PERCENT).max(1);
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Estimates the number of slots for `key_count` keys, including those past the last home slot.
fn slot_count(key_count: usize) -> usize {
    let homes = (key_count * 100).div_ceil(LOAD_PERCENT);
    homes + homes / 64 + 8
}

/// Merges two ordered sequences of keys without duplicates.
fn merged(
    seed: Seed,
    left: impl Iterator<Item = Key>,
    right: impl Iterator<Item = Key>,
) -> impl Iterator<Item = Key> {
    let mut left = left.peekable();
    let mut right = right.peekable();
    let rank = move |key: &Key| (*key != EMPTY, seed.mix(key), *key);
    std::iter::from_fn(move || match (left.peek(), right.peek()) {
        (Some(one), Some(other)) => match rank(one).cmp(&rank(other)) {
            Ordering::Less => left.next(),
            Ordering::Greater => right.next(),
            Ordering::Equal => {
                right.next();
                left.next()
            }
        },
        (Some(_), None) => left.next(),
        (None, _) => right.next(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;

    fn contains(table: &Table, key: Key) -> bool {
        table.contains(&HashPart::from_bytes(key))
    }

    /// Generates keys that differ in few bytes, which gives equal mixes and long runs.
    fn key() -> impl Strategy<Value = Key> {
        prop_oneof![
            any::<Key>(),
            (0..4_u8, 0..4_u8).prop_map(|(first, last)| {
                let mut key = EMPTY;
                key[0] = first;
                key[19] = last;
                key
            }),
        ]
    }

    proptest! {
        #[test]
        fn holds_what_it_was_built_of(
            inside in vec(key(), 0..300),
            asked in vec(key(), 0..100),
        ) {
            let table = Table::build(Seed::random(), inside.clone());
            for key in inside.iter().chain(&asked) {
                prop_assert_eq!(contains(&table, *key), inside.contains(key));
            }
        }

        #[test]
        fn a_merge_is_the_union(
            left in btree_set(key(), 0..200),
            right in btree_set(key(), 0..200),
            asked in vec(key(), 0..100),
        ) {
            let seed = Seed::random();
            let build = |keys: &std::collections::BTreeSet<Key>| {
                Table::build(seed, keys.iter().copied().collect())
            };
            let merged = Table::merge(&build(&left), &build(&right));
            prop_assert_eq!(merged.key_count(), left.union(&right).count());
            for key in left.iter().chain(&right).chain(&asked) {
                let expected = left.contains(key) || right.contains(key);
                prop_assert_eq!(contains(&merged, *key), expected);
            }
        }
    }

    #[test]
    fn an_empty_table_holds_nothing() {
        let table = Table::build(Seed::random(), Vec::new());
        assert!(!contains(&table, EMPTY));
        assert!(!contains(&table, [255; 20]));
    }

    #[test]
    fn takes_about_24_bytes_a_key() {
        let keys = (0..100_000_u64).map(|index| {
            let mut key = [0; 20];
            key[..8].copy_from_slice(&index.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
            key
        });
        let table = Table::build(Seed::random(), keys.collect());
        assert!(
            table.memory_len() < 100_000 * 24,
            "{} bytes",
            table.memory_len()
        );
    }
}
