//! Decompresses LZ4. The input must be one frame that is neither legacy nor skippable.
//!
//! `lz4_flex` accepts a frame that ends between two blocks as complete. [`Framing`] therefore
//! follows the lengths in the frame to detect a missing end mark.

use std::io::{self, Read};

use lz4_flex::frame::FrameDecoder;

use super::{Input, Refusal, truncated};

pub(super) struct Reader<'a> {
    decoder: FrameDecoder<Source<'a>>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(input: Input<'a>) -> Self {
        Self {
            decoder: FrameDecoder::new(Source {
                input,
                framing: Framing::new(),
            }),
        }
    }

    pub(super) fn input(&mut self) -> &mut Input<'a> {
        &mut self.decoder.get_mut().input
    }

    pub(super) fn into_input(self) -> Input<'a> {
        self.decoder.into_inner().input
    }

    /// Decompresses into `out`. Returns 0 at the end of the input.
    pub(super) fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.decoder.get_ref().framing.is_done() {
                return if self.input().is_at_end()? {
                    Ok(0)
                } else {
                    Err(io::Error::other(Refusal::BytesAfterStream {
                        format: "lz4",
                    }))
                };
            }
            // 0 means the end of the frame, an empty block, or the end of the input.
            let len = self.decoder.read(out)?;
            if len > 0 {
                return Ok(len);
            }
            if !self.decoder.get_ref().framing.is_done() && self.input().is_at_end()? {
                return Err(truncated());
            }
        }
    }
}

/// The input of the decoder. Each byte that the decoder reads also advances `framing`.
struct Source<'a> {
    input: Input<'a>,
    framing: Framing,
}

impl Read for Source<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = self.input.read(out)?;
        self.framing.push(out.get(..len).unwrap_or_default())?;
        Ok(len)
    }
}

const MAGIC: [u8; 4] = 0x184d_2204_u32.to_le_bytes();

const FLAG_BLOCK_CHECKSUM: u8 = 0x10;
const FLAG_CONTENT_SIZE: u8 = 0x08;
const FLAG_CONTENT_CHECKSUM: u8 = 0x04;
const FLAG_DICTIONARY: u8 = 0x01;

/// The part of a frame that comes next.
#[derive(Clone, Copy)]
enum Part {
    /// Magic, flags, block size, optional fields, header checksum.
    Header,
    /// Length of the next block. 0 is the end mark.
    BlockLen,
    /// Bytes to skip, which are followed by the length of the next block or, if `is_last`, by the
    /// end of the frame.
    Skip {
        len: u64,
        is_last: bool,
    },
    Done,
}

/// Follows the lengths in a frame to find its end. The decoder checks everything else.
struct Framing {
    part: Part,
    /// The first bytes of the current part. Only the first 5 bytes of a header are needed.
    bytes: [u8; 5],
    /// Number of bytes of the current part read so far.
    len: usize,
    flags: u8,
}

impl Framing {
    const fn new() -> Self {
        Self {
            part: Part::Header,
            bytes: [0; 5],
            len: 0,
            flags: 0,
        }
    }

    const fn is_done(&self) -> bool {
        matches!(self.part, Part::Done)
    }

    const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn push(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while let Some((&byte, rest)) = bytes.split_first() {
            if let Part::Skip { len, is_last } = self.part {
                let skipped = bytes.len().min(usize::try_from(len).unwrap_or(usize::MAX));
                bytes = bytes.get(skipped..).unwrap_or_default();
                self.skip(len.saturating_sub(skipped as u64), is_last);
                continue;
            }
            bytes = rest;
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = byte;
            }
            self.len = self.len.saturating_add(1);
            self.step()?;
        }
        Ok(())
    }

    /// Processes one more byte of a header or of a block length.
    fn step(&mut self) -> io::Result<()> {
        match self.part {
            Part::Header => {
                if self.len == MAGIC.len() && !self.bytes.starts_with(&MAGIC) {
                    return Err(io::Error::other("it does not start with an LZ4 frame"));
                }
                let [.., flags] = self.bytes;
                self.flags = flags;
                let mut header_len = 7;
                if self.has(FLAG_CONTENT_SIZE) {
                    header_len += 8;
                }
                if self.has(FLAG_DICTIONARY) {
                    header_len += 4;
                }
                if self.len == header_len {
                    self.start(Part::BlockLen);
                }
            }
            Part::BlockLen if self.len == 4 => {
                let [a, b, c, d, _] = self.bytes;
                let word = u32::from_le_bytes([a, b, c, d]);
                if word == 0 {
                    let has_checksum = self.has(FLAG_CONTENT_CHECKSUM);
                    self.skip(if has_checksum { 4 } else { 0 }, true);
                } else {
                    let has_checksum = self.has(FLAG_BLOCK_CHECKSUM);
                    let checksum_len = if has_checksum { 4 } else { 0 };
                    // The highest bit marks an uncompressed block.
                    self.skip(u64::from(word & !(1 << 31)) + checksum_len, false);
                }
            }
            Part::BlockLen | Part::Skip { .. } | Part::Done => {}
        }
        Ok(())
    }

    fn skip(&mut self, len: u64, is_last: bool) {
        let part = match (len, is_last) {
            (0, true) => Part::Done,
            (0, false) => Part::BlockLen,
            _ => Part::Skip { len, is_last },
        };
        self.start(part);
    }

    fn start(&mut self, part: Part) {
        self.part = part;
        self.bytes = [0; 5];
        self.len = 0;
    }
}
