//! A number nobody outside the process knows.

use std::hash::{BuildHasher, RandomState};

use super::table::Key;

/// Scatters keys in a way that cannot be foreseen from outside.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seed {
    whiten: u64,
    multiply: u64,
}

impl Seed {
    /// A seed from the operating system's randomness, by way of the standard hasher's keys.
    pub(super) fn random() -> Self {
        let state = RandomState::new();
        Self {
            whiten: state.hash_one(0_u8),
            multiply: state.hash_one(1_u8) | 1,
        }
    }

    /// Maps a key to a number, spread evenly for keys that are themselves spread evenly.
    pub(super) fn mix(self, key: &Key) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = *key;
        let product = u128::from(u64::from_le_bytes([a, b, c, d, e, f, g, h]) ^ self.whiten)
            * u128::from(self.multiply);
        let [low, high] = [product, product >> 64].map(|half| half & u128::from(u64::MAX));
        // Both halves: the low one alone would leave the last bits of the key without effect.
        u64::try_from(low ^ high).unwrap_or_default()
    }
}
