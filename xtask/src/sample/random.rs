//! Pseudo-random contents that are the same on every machine and in every run.
//!
//! Only integer arithmetic is used: the mathematics library of another machine could round a
//! logarithm differently, and one changed byte in a file would change the hashes of all paths that
//! depend on it.

use std::io::{self, Write};

use testkit::nar;
use testkit::random::SplitMix64;

/// A file system object in a sample store.
pub(super) type Node = nar::Node<Content>;

/// The content of a file in a sample store.
#[derive(Debug, Clone)]
pub(super) enum Content {
    /// These bytes.
    Bytes(Vec<u8>),
    /// Incompressible bytes.
    Noise { seed: u64, len: u64 },
    /// Words and lines, about as compressible as source code.
    Prose { seed: u64, len: u64 },
}

impl From<Vec<u8>> for Content {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl nar::Content for Content {
    fn size(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Noise { len, .. } | Self::Prose { len, .. } => *len,
        }
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Self::Bytes(bytes) => out.write_all(bytes),
            Self::Noise { seed, len } => {
                let len = usize::try_from(*len).map_err(io::Error::other)?;
                out.write_all(&SplitMix64::new(*seed).bytes(len))
            }
            Self::Prose { seed, len } => write_prose(SplitMix64::new(*seed), *len, out),
        }
    }
}

/// Returns a file size as in a `node_modules` folder: median 2.6 KB, mean 9 KB, long tail.
pub(super) fn file_len(random: &mut SplitMix64) -> u64 {
    // Pairs of a rank, in thousandths of all files, and the file size at that rank. Sizes between
    // two ranks are interpolated linearly. The pairs follow a log-normal curve, so that no
    // logarithm has to be computed.
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
    let place = random.between(0, 1000);
    let spread = random.next();
    for pair in LEN_AT.windows(2) {
        if let [(_, low), (end, high)] = *pair
            && place < end
        {
            return low + spread % (high - low);
        }
    }
    0
}

/// Writes `len` bytes of words in lines.
fn write_prose(mut random: SplitMix64, len: u64, out: &mut dyn Write) -> io::Result<()> {
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
        let choice = random.next();
        let word = WORDS
            .get((choice & 15) as usize)
            .copied()
            .unwrap_or_default();
        // Add a number after some words, because words alone would compress to almost nothing.
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

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::nar::Content as _;

    #[test]
    fn generated_contents_have_their_announced_length() {
        for len in [0, 1, 7, 8, 9, 4095, 4096, 4097, 100_000] {
            for content in [
                Content::Noise { seed: 1, len },
                Content::Prose { seed: 1, len },
            ] {
                let mut out = Vec::new();
                content.write(&mut out).unwrap();
                assert_eq!(out.len() as u64, len, "{content:?}");
            }
        }
    }

    #[test]
    fn file_lengths_have_the_median_and_mean_of_node_modules() {
        let mut random = SplitMix64::new(7);
        let mut lens: Vec<u64> = (0..45_000).map(|_| file_len(&mut random)).collect();
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
