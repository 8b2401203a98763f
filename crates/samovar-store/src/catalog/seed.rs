//! A secret random seed for placing hash parts in a table.

use std::hash::{BuildHasher, RandomState};

/// The bytes of a hash part.
pub(super) type Key = [u8; 20];

/// A secret hash function: clients cannot choose hash parts that collide.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seed {
    whiten: u64,
    multiply: u64,
}

impl Seed {
    /// Takes randomness from the standard library's hasher keys.
    pub(super) fn random() -> Self {
        let state = RandomState::new();
        Self {
            whiten: state.hash_one(0_u8),
            multiply: state.hash_one(1_u8) | 1,
        }
    }

    /// Maps a key to a number. The numbers are uniformly distributed if the keys are.
    pub(super) fn mix(self, key: &Key) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = *key;
        let product = u128::from(u64::from_le_bytes([a, b, c, d, e, f, g, h]) ^ self.whiten)
            * u128::from(self.multiply);
        let [low, high] = [product, product >> 64].map(|half| half & u128::from(u64::MAX));
        // Combining both halves lets the key's last bits affect the result.
        u64::try_from(low ^ high).unwrap_or_default()
    }
}
