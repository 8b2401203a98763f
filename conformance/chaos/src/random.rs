//! Numbers from a seed: the plan of a run, though not its timing, can be had again.

/// `SplitMix64`.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// The numbers of one actor of a run.
    pub(crate) fn of(seed: u64, actor: &str) -> Self {
        let mut random = Self(seed);
        for byte in actor.bytes() {
            random.0 = random.next() ^ u64::from(byte);
        }
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Less than `end`, which is not zero.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// `from..until`.
    pub(crate) fn between(&mut self, from: u64, until: u64) -> u64 {
        from + self.next() % (until - from).max(1)
    }

    /// True in so many of a hundred cases.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    /// One of these, each as often as its weight says.
    pub(crate) fn weighted<T: Copy>(&mut self, choices: &[(u64, T)]) -> T {
        let sum: u64 = choices.iter().map(|(weight, _)| weight).sum();
        let mut at = self.next() % sum;
        for &(weight, choice) in choices {
            if at < weight {
                return choice;
            }
            at -= weight;
        }
        choices[0].1
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let words = (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes());
        words.take(len).collect()
    }
}
