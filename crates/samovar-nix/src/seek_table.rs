//! The seek table at the end of a file of independent zstd frames: [`SeekTable`] writes it, and
//! [`Frames`] reads it.
//!
//! # Source
//!
//! zstd, `contrib/seekable_format/zstd_seekable_compression_format.md`. Decoders that do not know
//! the format skip the table, because it is a skippable frame.

mod frames;

pub use frames::{Frame, Frames};

/// Magic number of the skippable frame that contains a seek table.
const SKIPPABLE_MAGIC: u32 = 0x184D_2A5E;

/// Magic number at the end of a seek table.
const FOOTER_MAGIC: u32 = 0x8F92_EAB1;

/// Magic number of the skippable frame with which [`pad`] lengthens a frame.
const PADDING_MAGIC: u32 = 0x184D_2A50;

/// Maximum ratio of the length of a frame's content to the length of the frame, after [`pad`].
const RATIO_MAX: usize = 1000;

/// Appends a skippable frame to a frame that has less than a thousandth of the length of its
/// content, such as one of zeros. Servers refuse files that expand more, because they may be made
/// to use up memory or disks. Decompressors ignore the skippable frame.
pub fn pad(frame: &mut Vec<u8>, content_len: usize) {
    let len_min = content_len.div_ceil(RATIO_MAX);
    if frame.len() < len_min {
        let len = len_min.saturating_sub(frame.len()).saturating_sub(8);
        frame.extend_from_slice(&PADDING_MAGIC.to_le_bytes());
        frame.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
        frame.resize(frame.len().saturating_add(len), 0);
    }
}

/// A seek table that is being built. It lists the compressed length and the content length of each
/// frame.
#[derive(Debug, Default)]
pub struct SeekTable {
    entries: Vec<u8>,
    count: u32,
}

impl SeekTable {
    /// Length of an entry, in bytes.
    pub const ENTRY_LEN: u64 = 8;

    /// Length in bytes of a seek table without entries: the header of a skippable frame, and a
    /// footer.
    pub const EMPTY_LEN: u64 = 17;

    /// Adds the next frame. Lengths are in bytes, and below 4 GiB.
    pub fn add(&mut self, frame_len: usize, content_len: usize) {
        for len in [frame_len, content_len] {
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            self.entries.extend_from_slice(&len.to_le_bytes());
        }
        self.count = self.count.saturating_add(1);
    }

    /// Returns whether the table has no frame.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Appends the table to the file, as a skippable frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        let len = u32::try_from(self.entries.len().saturating_add(9)).unwrap_or(u32::MAX);
        out.extend_from_slice(&SKIPPABLE_MAGIC.to_le_bytes());
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&self.entries);
        out.extend_from_slice(&self.count.to_le_bytes());
        // Flags of the footer: the table contains no checksums.
        out.push(0);
        out.extend_from_slice(&FOOTER_MAGIC.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_frame_is_padded() {
        for (len, content_len, expected) in [
            (10, 10_000, 10),
            (10, 10_001, 18),
            (10, 18_000, 18),
            (10, 18_001, 19),
            (60, 1 << 20, 1049),
            (2000, 1 << 20, 2000),
        ] {
            let mut frame = vec![1; len];
            pad(&mut frame, content_len);
            assert_eq!(frame.len(), expected, "{len} {content_len}");
            assert!(frame.starts_with(&vec![1; len]));
            if expected > len {
                let skipped = u32::try_from(expected - len - 8).unwrap();
                let header = [PADDING_MAGIC.to_le_bytes(), skipped.to_le_bytes()].concat();
                assert_eq!(frame[len..len + 8], header);
            }
        }
    }

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
        let file_len = 0x0102 + 7 + out.len() as u64 - 1;
        assert!(Frames::parse(&out, file_len, 0x0304 + 8).is_some());
        assert_eq!(
            out.len() as u64,
            1 + SeekTable::EMPTY_LEN + 2 * SeekTable::ENTRY_LEN
        );
    }
}
