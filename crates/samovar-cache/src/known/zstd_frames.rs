//! Compresses NARs into independent zstd frames (RFC 8878). A [`SeekTable`] ends such a file.

use std::fmt;
use std::io;
use std::sync::Mutex;

use samovar_nix::SeekTable;
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

#[cfg(test)]
mod tests {
    use super::*;

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
