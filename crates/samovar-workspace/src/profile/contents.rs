//! Reads the contents of files: finds duplicates, and measures how well they compress.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};

/// Level of zstd: about 400 MB per second and core.
const LEVEL: i32 = 1;

/// Maximum number of files whose hashes are remembered: about 40 MB. Duplicates of further files
/// are not found.
const KNOWN_MAX: usize = 1_000_000;

const BUFFER_LEN: usize = 128 * 1024;

/// The contents of the files that were read so far.
pub(super) struct Contents {
    /// The first 16 bytes of the SHA-256 hash of each file.
    known: HashSet<[u8; 16]>,
    /// One stream of all contents, as a NAR would be.
    encoder: zstd::Encoder<'static, Counter>,
    buffer: Vec<u8>,
    duplicates: u64,
    duplicate_bytes: u64,
    compress_time: Duration,
}

/// The numbers of all contents.
#[derive(Debug, Clone, Copy)]
pub struct ContentNumbers {
    /// Number of files with the contents of an earlier one, without empty files.
    pub duplicates: u64,
    /// Sum of the sizes of these files, in bytes.
    pub duplicate_bytes: u64,
    /// Length of all contents, compressed as one stream, in bytes.
    pub compressed_len: u64,
    /// Time of the compression in one thread, in seconds.
    pub compress_seconds: f64,
}

/// A writer that counts bytes.
struct Counter(u64);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Contents {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            known: HashSet::new(),
            encoder: zstd::Encoder::new(Counter(0), LEVEL)?,
            buffer: vec![0; BUFFER_LEN],
            duplicates: 0,
            duplicate_bytes: 0,
            compress_time: Duration::ZERO,
        })
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub(super) fn add(&mut self, mut file: impl Read) -> io::Result<()> {
        let mut hash = Sha256::new();
        let mut file_len = 0;
        loop {
            let len = match file.read(&mut self.buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            let bytes = self.buffer.get(..len).unwrap_or_default();
            if bytes.is_empty() {
                break;
            }
            file_len += len as u64;
            hash.update(bytes);
            let started = Instant::now();
            self.encoder.write_all(bytes)?;
            self.compress_time += started.elapsed();
        }
        let hash: [u8; 32] = hash.finalize().into();
        let first = hash.first_chunk().copied().unwrap_or_default();
        let is_known = match self.known.len() < KNOWN_MAX {
            true => !self.known.insert(first),
            false => self.known.contains(&first),
        };
        if is_known && file_len > 0 {
            self.duplicates += 1;
            self.duplicate_bytes += file_len;
        }
        Ok(())
    }

    /// Ends the compressed stream.
    ///
    /// # Errors
    ///
    /// The encoder failed.
    pub(super) fn finish(self) -> io::Result<ContentNumbers> {
        Ok(ContentNumbers {
            duplicates: self.duplicates,
            duplicate_bytes: self.duplicate_bytes,
            compressed_len: self.encoder.finish()?.0,
            compress_seconds: self.compress_time.as_secs_f64(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_files_are_duplicates_unless_they_are_empty() {
        let mut contents = Contents::new().unwrap();
        let long = "0123456789".repeat(100_000);
        for file in ["", "a", "", "b", "a", &long, &long, "a"] {
            contents.add(file.as_bytes()).unwrap();
        }
        let numbers = contents.finish().unwrap();
        assert_eq!(
            (numbers.duplicates, numbers.duplicate_bytes),
            (3, 1_000_002)
        );
        assert!(numbers.compressed_len > 0 && numbers.compressed_len < 10_000);
    }
}
