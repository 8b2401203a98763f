//! [`Assembler`]: makes the file of the NAR that a recipe describes.
//!
//! # Frames of the file
//!
//! The file consists of independent zstd frames of 1 MiB of content, and ends with a seek table.
//! A frame of the base whose content is copied as a whole is copied without compressing it again.
//! The content between such frames is compressed into frames of 256 KiB to 1.25 MiB. If there is
//! less of it, the next frame of the base is compressed again together with it. So each frame but
//! the last one has at least 256 KiB of content, however often a NAR is the base of the next one.

use std::io::{self, BufReader, Read};

use samovar_nix::SeekTable;
use samovar_protocol::recipe::{self, Operation, RecipeError};
use zstd::bulk::Compressor;
use zstd::zstd_safe::compress_bound;

use super::base::Base;
use super::{AssembleError, FRAME_LEN_MIN};
use crate::error::StorageError;
use crate::push::PushError;
use crate::receive::{PutError, Refusal};

/// Compression level of new frames.
const LEVEL: i32 = 3;

/// Content length of a frame, in bytes.
const FRAME_LEN: usize = 1 << 20;

/// Length of the content from which a frame is compressed, in bytes. The rest is long enough for a
/// frame.
const PENDING_LEN_MAX: usize = FRAME_LEN + FRAME_LEN_MIN;

/// Length of the buffer between the recipe and its operations, in bytes.
const BUFFER_LEN: usize = 64 << 10;

/// A reader of the file of a NAR, which it makes while it is read.
pub(super) struct Assembler<'a, 'b> {
    recipe: recipe::Reader<BufReader<&'a mut dyn Read>>,
    base: Base<'b>,
    /// Length of the base NAR, in bytes.
    base_size: u64,
    /// Number of bytes that may still be copied from the base.
    copy_left: u64,
    /// Checks the length of the file so far.
    check_len: &'a dyn Fn(u64) -> Result<(), Refusal>,
    /// Number of operations whose line has been read.
    number: usize,
    operation: Left,
    /// Content that is not compressed yet, shorter than [`PENDING_LEN_MAX`].
    pending: Vec<u8>,
    /// The latest part of the file.
    out: Vec<u8>,
    /// Index in `out` of the first unread byte.
    out_start: usize,
    /// Length of the file so far, in bytes.
    len: u64,
    table: SeekTable,
    compressor: Compressor<'static>,
    failure: Option<PushError>,
}

/// The rest of the current operation.
#[derive(Debug, Clone, Copy)]
enum Left {
    /// Nothing: the next operation follows.
    None,
    Copy {
        offset: u64,
        len: u64,
    },
    Data {
        len: u64,
    },
    /// The recipe has ended, and the file with it.
    End,
}

impl<'a, 'b> Assembler<'a, 'b> {
    pub(super) fn new(
        recipe: &'a mut dyn Read,
        base: Base<'b>,
        base_size: u64,
        copy_max: u64,
        check_len: &'a dyn Fn(u64) -> Result<(), Refusal>,
    ) -> Result<Self, PushError> {
        Ok(Self {
            recipe: recipe::Reader::new(BufReader::with_capacity(BUFFER_LEN, recipe)),
            base,
            base_size,
            copy_left: copy_max,
            check_len,
            number: 0,
            operation: Left::None,
            pending: Vec::with_capacity(PENDING_LEN_MAX),
            out: Vec::new(),
            out_start: 0,
            len: 0,
            table: SeekTable::default(),
            compressor: Compressor::new(LEVEL).map_err(compressing)?,
            failure: None,
        })
    }

    /// Removes and returns the error that has ended the reading. Returns `None` if there was none.
    pub(super) fn take_failure(&mut self) -> Option<PushError> {
        self.failure.take()
    }

    /// Continues the recipe until the next part of the file is in `out`, or the file has ended.
    fn fill(&mut self) -> Result<(), PushError> {
        self.out.clear();
        self.out_start = 0;
        while self.out.is_empty() {
            self.operation = match self.operation {
                Left::None => self.next_operation()?,
                Left::Copy { offset, len } => self.copy(offset, len)?,
                Left::Data { len } => self.data(len)?,
                Left::End => return Ok(()),
            };
        }
        self.len += self.out.len() as u64;
        Ok((self.check_len)(self.len).map_err(PutError::from)?)
    }

    fn next_operation(&mut self) -> Result<Left, PushError> {
        let operation = self.recipe.next_operation().map_err(of_recipe)?;
        self.number += 1;
        let (offset, len) = match operation {
            Some(Operation::Data { len }) => return Ok(Left::Data { len }),
            Some(Operation::Copy { offset, len }) => (offset, len),
            None if !self.pending.is_empty() => {
                self.compress(self.pending.len())?;
                // The recipe returns its end again.
                return Ok(Left::None);
            }
            None => {
                self.table.write(&mut self.out);
                return Ok(Left::End);
            }
        };
        if offset
            .checked_add(len)
            .is_none_or(|end| end > self.base_size)
        {
            return Err(AssembleError::PastEnd {
                number: self.number,
                base_size: self.base_size,
            }
            .into());
        }
        let copy_left = self.copy_left.checked_sub(len);
        self.copy_left = copy_left.ok_or(AssembleError::Work)?;
        Ok(Left::Copy { offset, len })
    }

    /// Copies a part of a piece of the base. Returns the rest.
    fn copy(&mut self, offset: u64, len: u64) -> Result<Left, PushError> {
        let copied = match self.base.whole_frame(offset, len) {
            Some(_) if self.pending.len() >= FRAME_LEN_MIN => {
                self.compress(self.pending.len())?;
                0
            }
            Some(frame) if self.pending.is_empty() => {
                match self.base.read_frame(frame, &mut self.out)? {
                    Some(content_len) => {
                        self.table.add(self.out.len(), content_len);
                        content_len
                    }
                    None => self.decompress(offset, len)?,
                }
            }
            _ => self.decompress(offset, len)?,
        };
        Ok(match len.saturating_sub(copied as u64) {
            0 => Left::None,
            len => Left::Copy {
                offset: offset + copied as u64,
                len,
            },
        })
    }

    /// Appends a part of a piece of the base to the pending content, up to the next frame at most.
    /// Returns the length of the part, in bytes.
    fn decompress(&mut self, offset: u64, len: u64) -> Result<usize, PushError> {
        let next = self.base.next_frame(offset).unwrap_or(u64::MAX);
        let start = self.pending.len();
        let len = self.capacity(len.min(next - offset));
        self.pending.resize(start + len, 0);
        self.base.read(offset, &mut self.pending[start..])?;
        self.compress_full()?;
        Ok(len)
    }

    /// Appends a part of the new bytes of the recipe to the pending content. Returns the rest.
    fn data(&mut self, len: u64) -> Result<Left, PushError> {
        let start = self.pending.len();
        let taken = self.capacity(len);
        self.pending.resize(start + taken, 0);
        let read = self.recipe.read_exact(&mut self.pending[start..]);
        read.map_err(of_recipe)?;
        self.compress_full()?;
        Ok(match len - taken as u64 {
            0 => Left::None,
            len => Left::Data { len },
        })
    }

    /// Returns the smaller of a length and the capacity left in the pending content, in bytes.
    fn capacity(&self, len: u64) -> usize {
        let capacity = PENDING_LEN_MAX - self.pending.len();
        usize::try_from(len).map_or(capacity, |len| len.min(capacity))
    }

    /// Compresses a frame if there is content for it and for another one.
    fn compress_full(&mut self) -> Result<(), PushError> {
        match self.pending.len() >= PENDING_LEN_MAX {
            true => self.compress(FRAME_LEN),
            false => Ok(()),
        }
    }

    /// Compresses the first `len` bytes of the pending content into a frame.
    fn compress(&mut self, len: usize) -> Result<(), PushError> {
        self.out.reserve(compress_bound(len));
        let content = &self.pending[..len];
        let compressed = self.compressor.compress_to_buffer(content, &mut self.out);
        let frame_len = compressed.map_err(compressing)?;
        self.table.add(frame_len, len);
        self.pending.drain(..len);
        Ok(())
    }
}

impl Read for Assembler<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.out_start == self.out.len() {
            self.fill().map_err(|failure| {
                self.failure = Some(failure);
                io::Error::other("cannot assemble the NAR")
            })?;
        }
        let len = (&self.out[self.out_start..]).read(buffer)?;
        self.out_start += len;
        Ok(len)
    }
}

/// Converts an error of reading the recipe.
fn of_recipe(error: io::Error) -> PushError {
    if let Some(error) = RecipeError::of(&error) {
        return AssembleError::Recipe(error).into();
    }
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return AssembleError::Recipe(RecipeError::Truncated).into();
    }
    match error.downcast::<AssembleError>() {
        Ok(error) => error.into(),
        Err(error) => PutError::Source(error).into(),
    }
}

fn compressing(error: io::Error) -> PushError {
    StorageError::file("cannot compress", "an assembled NAR", error).into()
}
