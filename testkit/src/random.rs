//! Reproducible pseudo-random numbers.

/// The `SplitMix64` generator: the same sequence for the same seed on every machine.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Starts the sequence of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Starts a sequence for the actor `name`; actors with different names have different
    /// sequences.
    pub fn for_actor(seed: u64, name: &str) -> Self {
        let mut random = Self(seed);
        for byte in name.bytes() {
            random.0 = random.next() ^ u64::from(byte);
        }
        random
    }

    /// Returns the next number.
    #[expect(
        clippy::should_implement_trait,
        reason = "the sequence never ends, so there is no Option to return"
    )]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number in `0..end`, uniform up to the rounding of 64 bits; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        let product = u128::from(self.next()) * u128::from(end);
        u64::try_from(product >> 64).unwrap_or_default()
    }

    /// Returns an index into a slice of `len` elements; 0 if `len` is 0.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.next() % len.max(1) as u64).unwrap_or_default()
    }

    /// Returns a number in `from..until`, or `from` if the range is empty.
    pub fn between(&mut self, from: u64, until: u64) -> u64 {
        from + self.next() % until.saturating_sub(from).max(1)
    }

    /// Returns true with a probability of `percent` in 100.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    /// Returns an index into `weights` with a probability proportional to the weight there.
    ///
    /// # Panics
    ///
    /// If `weights` is empty or all weights are 0.
    pub fn weighted(&mut self, weights: &[u64]) -> usize {
        let mut at = self.next() % weights.iter().sum::<u64>();
        let mut index = 0;
        while at >= weights[index] {
            at -= weights[index];
            index += 1;
        }
        index
    }

    /// Returns `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let words = (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes());
        words.take(len).collect()
    }
}

/// Scrambles `value`: the output function of [`SplitMix64`], a bijection.
pub const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_the_reference() {
        // The first numbers of seed 1234567 in the reference implementation.
        let mut random = SplitMix64::new(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }
}
