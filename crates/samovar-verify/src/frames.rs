//! [`Frames`]: the index of zstd frames.

/// Version of the format of the index.
const VERSION: u8 = 1;

/// Maximum length of the index, in bytes. It is enough for 64 GiB in frames of 256 KiB.
const LEN_MAX: usize = 1 << 20;

/// Builds the index of zstd frames. It starts with one byte, its version. Two LEB128 numbers follow
/// for each frame: its compressed length and its content length. A skippable frame has content
/// length 0.
pub(super) struct Frames {
    index: Vec<u8>,
    count: u64,
}

impl Frames {
    pub(super) const fn new() -> Self {
        Self {
            index: Vec::new(),
            count: 0,
        }
    }

    /// Adds a frame to the index. Lengths are in bytes.
    pub(super) fn push(&mut self, compressed_len: u64, content_len: u64) {
        if self.count == 0 {
            self.index.push(VERSION);
        }
        self.count = self.count.saturating_add(1);
        if self.index.len() <= LEN_MAX {
            push_leb128(&mut self.index, compressed_len);
            push_leb128(&mut self.index, content_len);
        }
    }

    /// Returns the index. Returns `None` if it has fewer than two frames or is longer than 1 MiB.
    pub(super) fn finish(self) -> Option<Vec<u8>> {
        (self.count > 1 && self.index.len() <= LEN_MAX).then_some(self.index)
    }
}

/// Returns the compressed length and the content length of each frame in an index, in bytes.
/// Returns `None` if the index is malformed.
#[must_use]
pub fn frames_of(index: &[u8]) -> Option<Vec<(u64, u64)>> {
    let (version, mut rest) = index.split_first()?;
    if *version != VERSION {
        return None;
    }
    let mut frames = Vec::new();
    while !rest.is_empty() {
        frames.push((take_leb128(&mut rest)?, take_leb128(&mut rest)?));
    }
    Some(frames)
}

fn take_leb128(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn push_leb128(out: &mut Vec<u8>, mut number: u64) {
    loop {
        let [low, ..] = number.to_le_bytes();
        number >>= 7;
        if number == 0 {
            out.push(low & 0x7f);
            return;
        }
        out.push(low | 0x80);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_is_pairs_of_leb128() {
        let mut frames = Frames::new();
        frames.push(1, 127);
        frames.push(128, 300);
        frames.push(u64::MAX, 0);
        let mut expected = vec![1, 1, 127, 0x80, 1, 0xac, 2];
        expected.extend([0xff; 9]);
        expected.extend([1, 0]);
        assert_eq!(frames.finish(), Some(expected.clone()));
        let lens = vec![(1, 127), (128, 300), (u64::MAX, 0)];
        assert_eq!(frames_of(&expected), Some(lens));
    }

    #[test]
    fn malformed_indexes_are_not_read() {
        assert_eq!(frames_of(&[1]), Some(vec![]));
        for index in [
            &[][..],
            &[2, 1, 1],
            &[1, 1],
            &[1, 0x80, 1],
            &[1, 1, 0x80],
            &[
                1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 1,
            ],
            &[
                1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x81, 0, 1,
            ],
        ] {
            assert_eq!(frames_of(index), None, "{index:x?}");
        }
    }

    #[test]
    fn one_frame_needs_no_index() {
        let mut frames = Frames::new();
        frames.push(5, 7);
        assert_eq!(frames.finish(), None);
        assert_eq!(Frames::new().finish(), None);
    }

    #[test]
    fn index_is_bounded() {
        let mut frames = Frames::new();
        for _ in 0..LEN_MAX {
            frames.push(9, 0);
        }
        assert!(frames.index.len() < LEN_MAX + 32);
        assert_eq!(frames.finish(), None);
    }
}
