//! Pseudo-random numbers that are the same on every machine and in every run.
//!
//! Integer arithmetic only: another machine's mathematics library may round a logarithm
//! differently, and a file that differs by one byte changes the hashes of all paths above it.

use std::io::{self, Write};

use testkit::random::SplitMix64;

/// Generator of the sample's contents.
#[derive(Debug, Clone)]
pub(crate) struct Random(SplitMix64);

impl Random {
    /// Starts the sequence of `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// Returns the next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// Returns a number below `bound`, which must not be 0. The modulo bias is harmless here.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns an index into a list of `count` items, which must not be 0.
    pub(crate) fn place(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).expect("less than a usize is a usize")
    }

    /// Returns a file size as in a `node_modules` folder: median 2.6 KB, mean 9 KB, long tail.
    pub(crate) fn file_len(&mut self) -> u64 {
        // Pairs of a rank, in thousandths of all files, and the size at that rank, interpolated
        // linearly. They follow a log-normal curve without computing logarithms.
        const LEN_AT: [(u64, u64); 9] = [
            (0, 20),
            (100, 350),
            (250, 900),
            (500, 2_600),
            (750, 7_500),
            (900, 18_000),
            (970, 46_000),
            (990, 90_000),
            (1000, 260_000),
        ];
        let place = self.below(1000);
        let spread = self.next();
        for pair in LEN_AT.windows(2) {
            if let [(_, low), (end, high)] = *pair
                && place < end
            {
                return low + spread % (high - low);
            }
        }
        0
    }

    /// Writes `len` incompressible bytes.
    pub(crate) fn write_noise(&mut self, len: u64, out: &mut dyn Write) -> io::Result<()> {
        let mut left = len;
        while left > 0 {
            let word = self.next().to_le_bytes();
            let part = left.min(8);
            out.write_all(word.get(..part as usize).unwrap_or_default())?;
            left -= part;
        }
        Ok(())
    }

    /// Writes `len` bytes of words in lines.
    pub(crate) fn write_prose(&mut self, len: u64, out: &mut dyn Write) -> io::Result<()> {
        const WORDS: [&str; 16] = [
            "const ",
            "return ",
            "function",
            "(value, ",
            "index) ",
            "=> {\n",
            "  }\n",
            "module",
            ".exports",
            " = ",
            "require(",
            "'./util')",
            ";\n",
            "// see ",
            "undefined ",
            "export ",
        ];
        let mut left = len;
        while left > 0 {
            let choice = self.next();
            let word = WORDS
                .get((choice & 15) as usize)
                .copied()
                .unwrap_or_default();
            // A number after some words, because the words alone would compress to almost nothing.
            let number = if choice & 0x30 == 0 {
                format!("{:x} ", choice >> 40)
            } else {
                String::new()
            };
            for part in [word.as_bytes(), number.as_bytes()] {
                let len = usize::try_from(left).map_or(part.len(), |left| left.min(part.len()));
                let part = part.get(..len).unwrap_or_default();
                out.write_all(part)?;
                left -= part.len() as u64;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_splitmix64() {
        let mut random = Random::new(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn file_lens_are_those_of_node_modules() {
        let mut random = Random::new(7);
        let mut lens: Vec<u64> = (0..45_000).map(|_| random.file_len()).collect();
        lens.sort_unstable();
        let average = lens.iter().sum::<u64>() / 45_000;
        assert!(
            (2_400..2_800).contains(&lens[22_500]),
            "median {}",
            lens[22_500]
        );
        assert!((8_000..10_000).contains(&average), "average {average}");
    }
}
