//! Decompresses xz: one or several streams of LZMA2 blocks, without filters and without padding
//! between streams.
//!
//! `lzma-rust2` decodes the data and compares checksums. However, it checks neither the sizes in
//! block headers, nor the records of the index, nor the length of the index. Clients check these,
//! and would fail on a file that was accepted here. [`Framing`] therefore follows the structure of
//! the input and checks them.

use std::io::{self, Read};

use lzma_rust2::XzReader;
use sha2::{Digest, Sha256};

use super::{Input, Limits, Refusal};

pub(super) struct Reader<'a> {
    decoder: XzReader<Source<'a>>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(input: Input<'a>, limits: &Limits) -> Self {
        let framing = Framing::new(limits.lzma_dictionary_max);
        Self {
            decoder: XzReader::new(Source { input, framing }, true),
        }
    }

    pub(super) fn input(&mut self) -> &mut Input<'a> {
        &mut self.decoder.inner_mut().input
    }

    pub(super) fn into_input(self) -> Input<'a> {
        self.decoder.into_inner().input
    }

    /// Decompresses into `out`. Returns 0 at the end of the input.
    pub(super) fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.decoder.read(out)
    }
}

/// The input of the decoder. The framing is checked before the decoder reads the bytes.
struct Source<'a> {
    input: Input<'a>,
    framing: Framing,
}

impl Read for Source<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = self.input.read(out)?;
        self.framing.push(out.get(..len).unwrap_or_default())?;
        self.input.reserve(self.framing.dictionary_len)?;
        Ok(len)
    }
}

const MAGIC: &[u8] = b"\xfd7zXZ\0";

/// Length of a stream's header, and of its footer, in bytes.
const STREAM_HEADER_LEN: usize = 12;

/// Maximum length of a block's header, in bytes.
const BLOCK_HEADER_LEN_MAX: usize = 1024;

const FLAG_COMPRESSED_SIZE: u8 = 0x40;
const FLAG_UNCOMPRESSED_SIZE: u8 = 0x80;
/// Mask for the number of filters minus one, and the reserved bits.
const FLAGS_OF_FILTERS: u8 = 0x3f;

/// Identifier of the LZMA2 filter, and the length of its properties.
const LZMA2: [u8; 2] = [0x21, 1];

/// Maximum value of LZMA2's properties.
const LZMA2_PROPERTIES_MAX: u8 = 40;

/// The part of a stream that comes next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    StreamHeader,
    /// The header of a block, or the byte that starts the index.
    BlockHeader,
    /// The control byte and the lengths of an LZMA2 chunk.
    Chunk,
    /// The data of a chunk, with the number of bytes left.
    ChunkData(u64),
    /// The padding and checksum after the last chunk of a block, with the number of bytes left.
    BlockEnd(u64),
    /// One of the numbers in the index.
    IndexNumber,
    /// The padding and checksum of the index, with the number of bytes left.
    IndexEnd(u64),
    StreamFooter,
}

/// Checks that the actual sizes of blocks match those in the block headers and in the index.
struct Framing {
    dictionary_max: u32,
    /// Length of the largest dictionary found so far, in bytes.
    dictionary_len: u64,
    part: Part,
    /// The bytes of the current part read so far. Empty while data is skipped.
    bytes: Vec<u8>,
    /// Whether the current stream is the first one.
    is_first: bool,
    /// Length of the checksum of each block, in bytes.
    check_len: u64,
    block: Block,
    /// The index records that the blocks so far require.
    required: Records,
    index: Index,
}

/// Sizes of the current block, in bytes.
#[derive(Default)]
struct Block {
    header_len: u64,
    /// Sizes that the block's header states. `None`: the header does not state the size.
    stated_compressed: Option<u64>,
    stated_uncompressed: Option<u64>,
    /// Sizes of the data read so far.
    compressed: u64,
    uncompressed: u64,
}

/// The part of the index read so far.
#[derive(Default)]
struct Index {
    len: u64,
    /// Number of records that the index states. `None` until it is read.
    count: Option<u64>,
    /// The first number of a record (unpadded size) until the second one is read. Otherwise `None`.
    unpadded: Option<u64>,
    records: Records,
}

/// Number and hash of a sequence of records. The records themselves are not stored, because their
/// number is unlimited.
#[derive(Default)]
struct Records {
    count: u64,
    hasher: Sha256,
}

impl Records {
    fn push(&mut self, unpadded: u64, uncompressed: u64) {
        self.count = self.count.saturating_add(1);
        self.hasher.update(unpadded.to_le_bytes());
        self.hasher.update(uncompressed.to_le_bytes());
    }
}

impl Framing {
    fn new(dictionary_max: u32) -> Self {
        Self {
            dictionary_max,
            dictionary_len: 0,
            part: Part::StreamHeader,
            bytes: Vec::new(),
            is_first: true,
            check_len: 0,
            block: Block::default(),
            required: Records::default(),
            index: Index::default(),
        }
    }

    fn push(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while let Some((&byte, rest)) = bytes.split_first() {
            match self.part {
                Part::ChunkData(left) => {
                    let left = skip(&mut bytes, left);
                    self.chunk_data(left);
                }
                Part::BlockEnd(left) => {
                    let left = skip(&mut bytes, left);
                    self.block_end(left);
                }
                Part::IndexEnd(left) => {
                    let left = skip(&mut bytes, left);
                    self.index_end(left);
                }
                Part::StreamHeader
                | Part::BlockHeader
                | Part::Chunk
                | Part::IndexNumber
                | Part::StreamFooter => {
                    bytes = rest;
                    self.bytes.push(byte);
                    self.step()?;
                }
            }
        }
        Ok(())
    }

    /// Processes one more byte of a part whose bytes are collected.
    fn step(&mut self) -> io::Result<()> {
        let bytes = self.bytes.as_slice();
        match self.part {
            Part::StreamHeader => {
                let known = bytes.get(..MAGIC.len()).unwrap_or(bytes);
                if !MAGIC.starts_with(known) && !self.is_first {
                    return Err(io::Error::other(Refusal::BytesAfterStream { format: "xz" }));
                }
                if bytes.len() == STREAM_HEADER_LEN {
                    self.check_len = check_len(bytes.get(7).copied().unwrap_or(0));
                    self.is_first = false;
                    self.required = Records::default();
                    self.start(Part::BlockHeader);
                }
            }
            Part::BlockHeader => {
                let size = bytes.first().copied().unwrap_or(0);
                if size == 0 {
                    self.index = Index {
                        len: 1,
                        ..Index::default()
                    };
                    self.start(Part::IndexNumber);
                } else if bytes.len() == (usize::from(size) + 1) * 4 {
                    let dictionary_len;
                    (self.block, dictionary_len) = block(bytes, self.dictionary_max)?;
                    self.dictionary_len = self.dictionary_len.max(dictionary_len);
                    self.start(Part::Chunk);
                }
            }
            Part::Chunk => self.chunk()?,
            Part::IndexNumber => {
                if bytes.last().is_some_and(|byte| byte & 0x80 == 0) || bytes.len() > 9 {
                    self.index_number()?;
                }
            }
            Part::StreamFooter => {
                if bytes.len() == STREAM_HEADER_LEN {
                    let index_words = u64::from(u32_at(bytes, 4)) + 1;
                    if index_words * 4 != self.index.len {
                        return Err(corrupt("the footer states another length of the index"));
                    }
                    self.start(Part::StreamHeader);
                }
            }
            Part::ChunkData(_) | Part::BlockEnd(_) | Part::IndexEnd(_) => {}
        }
        Ok(())
    }

    /// Parses the control byte and the lengths of a chunk.
    fn chunk(&mut self) -> io::Result<()> {
        let bytes = self.bytes.as_slice();
        let control = bytes.first().copied().unwrap_or(0);
        let (header_len, uncompressed, data_len) = match control {
            0 => (1, 0, 0),
            1 | 2 => {
                let len = u64::from(u16_at(bytes, 1)) + 1;
                (3, len, len)
            }
            0x80.. => {
                let high = u64::from(control & 0x1f) << 16;
                let uncompressed = high + u64::from(u16_at(bytes, 1)) + 1;
                let compressed = u64::from(u16_at(bytes, 3)) + 1;
                let header_len = if control < 0xc0 { 5 } else { 6 };
                (header_len, uncompressed, compressed)
            }
            _ => return Err(corrupt("invalid control byte of LZMA2")),
        };
        if bytes.len() < header_len {
            return Ok(());
        }
        let block = &mut self.block;
        block.compressed = block
            .compressed
            .saturating_add(data_len)
            .saturating_add(header_len as u64);
        block.uncompressed = block.uncompressed.saturating_add(uncompressed);
        if control != 0 {
            self.start(Part::ChunkData(data_len));
            return Ok(());
        }
        if is_other(block.stated_compressed, block.compressed)
            || is_other(block.stated_uncompressed, block.uncompressed)
        {
            return Err(corrupt("the header of a block states another size"));
        }
        let unpadded = block
            .header_len
            .saturating_add(block.compressed)
            .saturating_add(self.check_len);
        self.required.push(unpadded, block.uncompressed);
        let padding = padding(block.compressed);
        self.block_end(padding + self.check_len);
        Ok(())
    }

    fn chunk_data(&mut self, left: u64) {
        self.start(if left == 0 {
            Part::Chunk
        } else {
            Part::ChunkData(left)
        });
    }

    fn block_end(&mut self, left: u64) {
        self.start(if left == 0 {
            Part::BlockHeader
        } else {
            Part::BlockEnd(left)
        });
    }

    /// Parses one number of the index.
    fn index_number(&mut self) -> io::Result<()> {
        let number = number(&mut self.bytes.as_slice())?;
        let index = &mut self.index;
        index.len = index.len.saturating_add(self.bytes.len() as u64);
        match (index.count, index.unpadded.take()) {
            (None, _) => index.count = Some(number),
            (Some(_), None) => index.unpadded = Some(number),
            (Some(_), Some(unpadded)) => index.records.push(unpadded, number),
        }
        self.bytes.clear();
        let is_complete = index.count == Some(index.records.count) && index.unpadded.is_none();
        if !is_complete {
            return Ok(());
        }
        let required = std::mem::take(&mut self.required);
        let records = std::mem::take(&mut index.records);
        if required.count != records.count
            || required.hasher.finalize() != records.hasher.finalize()
        {
            return Err(corrupt("the index does not match the blocks"));
        }
        let end_len = padding(index.len) + 4;
        index.len = index.len.saturating_add(end_len);
        self.index_end(end_len);
        Ok(())
    }

    fn index_end(&mut self, left: u64) {
        self.start(if left == 0 {
            Part::StreamFooter
        } else {
            Part::IndexEnd(left)
        });
    }

    fn start(&mut self, part: Part) {
        self.part = part;
        self.bytes.clear();
    }
}

/// Removes up to `left` bytes from the front of `bytes`. Returns the number of bytes still to
/// remove.
fn skip(bytes: &mut &[u8], left: u64) -> u64 {
    let len = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
    *bytes = bytes.get(len..).unwrap_or_default();
    left.saturating_sub(len as u64)
}

/// Parses the header of a block. Also returns the length of its dictionary, in bytes.
fn block(header: &[u8], dictionary_max: u32) -> io::Result<(Block, u64)> {
    debug_assert!(header.len() <= BLOCK_HEADER_LEN_MAX);
    let flags = header.get(1).copied().unwrap_or(0);
    if flags & FLAGS_OF_FILTERS != 0 {
        return Err(filters());
    }
    let mut rest = header.get(2..).unwrap_or_default();
    let mut size = |flag| (flags & flag != 0).then(|| number(&mut rest)).transpose();
    let stated_compressed = size(FLAG_COMPRESSED_SIZE)?;
    let stated_uncompressed = size(FLAG_UNCOMPRESSED_SIZE)?;
    let Some((properties, _)) = rest
        .strip_prefix(LZMA2.as_slice())
        .and_then(|rest| rest.split_first())
    else {
        return Err(filters());
    };
    let len = dictionary_len(*properties).filter(|len| *len <= u64::from(dictionary_max));
    let Some(dictionary_len) = len else {
        return Err(io::Error::other(Refusal::Window {
            format: "xz",
            limit: dictionary_max.into(),
        }));
    };
    let block = Block {
        header_len: header.len() as u64,
        stated_compressed,
        stated_uncompressed,
        compressed: 0,
        uncompressed: 0,
    };
    Ok((block, dictionary_len))
}

/// Computes the length of the dictionary in bytes from LZMA2's properties.
fn dictionary_len(properties: u8) -> Option<u64> {
    match properties {
        0..LZMA2_PROPERTIES_MAX => Some(u64::from(2 | (properties & 1)) << (properties / 2 + 11)),
        LZMA2_PROPERTIES_MAX => Some(u64::from(u32::MAX)),
        _ => None,
    }
}

/// Removes and returns the multibyte integer at the front of `bytes`: 1 to 9 bytes with 7 bits
/// each, the lowest bits first.
fn number(bytes: &mut &[u8]) -> io::Result<u64> {
    let mut number = 0;
    for shift in (0..63).step_by(7) {
        let Some((&byte, rest)) = bytes.split_first() else {
            break;
        };
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            if byte == 0 && shift > 0 {
                break;
            }
            return Ok(number);
        }
    }
    Err(corrupt("invalid number in a header or the index"))
}

/// Returns the length in bytes of a checksum of this type. The decoder refuses unsupported types.
const fn check_len(check: u8) -> u64 {
    match check {
        1 => 4,
        4 => 8,
        10 => 32,
        _ => 0,
    }
}

/// Returns the number of padding bytes from `len` to the next multiple of four.
const fn padding(len: u64) -> u64 {
    len.wrapping_neg() % 4
}

fn is_other(stated: Option<u64>, found: u64) -> bool {
    stated.is_some_and(|stated| stated != found)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes
        .get(at..)
        .and_then(|bytes| bytes.first_chunk())
        .map_or(0, |bytes| u16::from_be_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..)
        .and_then(|bytes| bytes.first_chunk())
        .map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn corrupt(reason: &'static str) -> io::Error {
    io::Error::other(reason)
}

fn filters() -> io::Error {
    corrupt("a block has a filter other than LZMA2")
}
