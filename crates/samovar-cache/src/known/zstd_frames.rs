//! Compresses NARs into independent zstd frames, and writes the seek table that ends such a file.
//!
//! # Source
//!
//! Frames: RFC 8878. Seek table: zstd, `contrib/seekable_format/zstd_seekable_compression_format.md`.

use std::fmt;
use std::io;
use std::sync::Mutex;

use zstd::bulk::Compressor;

use crate::sync::Locked;

/// Compression level. It reduces a NAR to about a third of its size, at about 400 MB/s per core.
const LEVEL: i32 = 3;

/// Number of NAR bytes in a frame. Longer frames hardly compress better.
pub(crate) const FRAME_LEN: usize = 4 << 20;

/// Number of NAR bytes in a frame that is sent from memory.
pub(crate) const MEMORY_FRAME_LEN: usize = 256 << 10;

/// Maximum number of idle encoders that are kept for later frames. Each takes 10 MB of memory.
const IDLE_COUNT_MAX: usize = 4;

/// The idle encoders. A worker takes one to compress a frame, and then gives it back.
#[derive(Debug, Default)]
pub(crate) struct FrameEncoders(Mutex<Vec<FrameEncoder>>);

/// A compressor and its buffers.
pub(crate) struct FrameEncoder {
    compressor: Compressor<'static>,
    nar: Vec<u8>,
    frame: Vec<u8>,
}

impl fmt::Debug for FrameEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FrameEncoder")
    }
}

impl FrameEncoders {
    pub(crate) fn take(&self) -> io::Result<FrameEncoder> {
        if let Some(encoder) = self.0.locked().pop() {
            return Ok(encoder);
        }
        Ok(FrameEncoder {
            compressor: Compressor::new(LEVEL)?,
            nar: vec![0; FRAME_LEN],
            frame: Vec::with_capacity(zstd::zstd_safe::compress_bound(FRAME_LEN)),
        })
    }

    pub(crate) fn give_back(&self, encoder: FrameEncoder) {
        let mut idle = self.0.locked();
        if idle.len() < IDLE_COUNT_MAX {
            idle.push(encoder);
        }
    }
}

impl FrameEncoder {
    /// Returns the encoder's buffer for NAR bytes, its empty buffer for the compressed frame, and
    /// its compressor.
    pub(crate) fn parts(&mut self) -> (&mut [u8], &mut Vec<u8>, &mut Compressor<'static>) {
        self.frame.clear();
        (&mut self.nar, &mut self.frame, &mut self.compressor)
    }
}

/// Returns the maximum length in bytes of the compressed file of a NAR of `nar_size` bytes.
pub(crate) fn len_max(nar_size: u64) -> u64 {
    let frame_count = nar_size.div_ceil(FRAME_LEN as u64);
    let frame_overhead = (zstd::zstd_safe::compress_bound(FRAME_LEN) - FRAME_LEN) as u64;
    nar_size + frame_count * (frame_overhead + SeekTable::ENTRY_LEN) + SeekTable::EMPTY_LEN
}

/// The seek table at the end of a compressed file. It lists the compressed and the uncompressed
/// length of each frame.
#[derive(Debug, Default)]
pub(crate) struct SeekTable {
    entries: Vec<u8>,
}

impl SeekTable {
    const ENTRY_LEN: u64 = 8;

    /// Length in bytes of a seek table without entries: the header of a skippable frame, and a
    /// footer.
    const EMPTY_LEN: u64 = 17;

    pub(crate) fn add(&mut self, frame_len: usize, nar_len: usize) {
        for len in [frame_len, nar_len] {
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            self.entries.extend_from_slice(&len.to_le_bytes());
        }
    }

    /// Appends the table as a skippable frame.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        const SKIPPABLE: u32 = 0x184D_2A5E;
        const SEEKABLE: u32 = 0x8F92_EAB1;
        let count = u32::try_from(self.entries.len() / 8).unwrap_or(u32::MAX);
        let len = u32::try_from(self.entries.len() + 9).unwrap_or(u32::MAX);
        out.extend_from_slice(&SKIPPABLE.to_le_bytes());
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&self.entries);
        out.extend_from_slice(&count.to_le_bytes());
        // Flags of the footer: the table contains no checksums.
        out.push(0);
        out.extend_from_slice(&SEEKABLE.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of zstd's specification: entries, number of frames, no checksums, magic number.
    #[test]
    fn a_seek_table_lists_the_lengths_of_all_frames() {
        let mut table = SeekTable::default();
        table.add(0x0102, 0x0304);
        table.add(7, 8);
        let mut out = vec![0xff];
        table.write(&mut out);
        let expected = [
            &[0xff][..],
            &[0x5e, 0x2a, 0x4d, 0x18, 25, 0, 0, 0],
            &[2, 1, 0, 0, 4, 3, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0],
            &[2, 0, 0, 0, 0, 0xb1, 0xea, 0x92, 0x8f],
        ];
        assert_eq!(out, expected.concat());
        assert_eq!(
            out.len() as u64,
            1 + SeekTable::EMPTY_LEN + 2 * SeekTable::ENTRY_LEN
        );
    }

    #[test]
    fn incompressible_nars_fit_into_the_maximum_length() {
        for nar_len in [1, FRAME_LEN - 1, FRAME_LEN, FRAME_LEN + 1] {
            let nar = noise(nar_len);
            let encoders = FrameEncoders::default();
            let (mut table, mut len) = (SeekTable::default(), 0);
            for part in nar.chunks(FRAME_LEN) {
                let mut encoder = encoders.take().unwrap();
                let (_, frame, compressor) = encoder.parts();
                compressor.compress_to_buffer(part, frame).unwrap();
                table.add(frame.len(), part.len());
                len += frame.len();
                encoders.give_back(encoder);
            }
            let mut footer = Vec::new();
            table.write(&mut footer);
            assert!(
                (len + footer.len()) as u64 <= len_max(nar_len as u64),
                "{nar_len}"
            );
        }
    }

    /// Bytes of a linear congruential generator, which zstd cannot compress.
    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let next = |state: &mut u64| {
            *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (*state >> 56) as u8
        };
        (0..len).map(|_| next(&mut state)).collect()
    }
}
