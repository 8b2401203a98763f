//! Pseudo-random contents of files, the same on every machine and in every run.
//!
//! Only integer arithmetic is used: one changed byte in a file would change the hashes of all store
//! paths that depend on it.

use std::io::{self, Write};

use crate::nar;
use crate::random::SplitMix64;

/// The content of a generated file.
#[derive(Debug, Clone)]
pub enum Content {
    /// These bytes.
    Bytes(Vec<u8>),
    /// Incompressible bytes.
    Noise {
        /// Seed of the bytes.
        seed: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Words and lines, about as compressible as source code.
    Prose {
        /// Seed of the words.
        seed: u64,
        /// Number of bytes.
        len: u64,
    },
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
    use crate::nar::Content as _;

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
}
