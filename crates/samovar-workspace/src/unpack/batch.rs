//! [`Batch`]: files on their way to a thread that writes them.

use std::ops::Range;

use crate::root::Attributes;

/// Maximum number of bytes of contents and paths in a batch. Larger files are split.
pub(super) const BATCH_LEN: usize = 256 << 10;

/// Maximum number of files in a batch: a thread gets work before many tiny files are collected.
const FILE_COUNT_MAX: usize = 128;

/// Files, or a part of a large file.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Paths and contents of all parts.
    bytes: Vec<u8>,
    parts: Vec<Part>,
}

/// A file, or a part of it.
#[derive(Debug)]
pub(super) struct Part {
    path: Range<usize>,
    content: Range<usize>,
    /// Whether the file has to be created.
    pub(super) is_first: bool,
    /// Whether the file is complete with this part.
    pub(super) is_last: bool,
    pub(super) new_file: NewFile,
}

/// A file to be written.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewFile {
    /// Mode with which the file is created.
    pub(super) mode: u16,
    /// Attributes of the complete file. `None`: those with which it was created.
    pub(super) attributes: Option<Attributes>,
    /// Expected SHA-256 of the contents.
    pub(super) digest: Option<[u8; 32]>,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns whether a file with contents of this length should start in another batch.
    pub(super) fn is_full_for(&self, size: u64) -> bool {
        let left = BATCH_LEN.saturating_sub(self.bytes.len()) as u64;
        !self.is_empty() && (self.parts.len() >= FILE_COUNT_MAX || size > left)
    }

    /// Adds a part without contents.
    pub(super) fn begin(&mut self, path: &[u8], is_first: bool, new_file: NewFile) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(path);
        let end = self.bytes.len();
        self.parts.push(Part {
            path: start..end,
            content: end..end,
            is_first,
            is_last: false,
            new_file,
        });
    }

    /// Moves contents from `input` to the last part. Leaves what exceeds [`BATCH_LEN`].
    pub(super) fn fill(&mut self, input: &mut &[u8]) {
        let capacity = BATCH_LEN.saturating_sub(self.bytes.len());
        let (taken, rest) = input.split_at(capacity.min(input.len()));
        self.bytes.extend_from_slice(taken);
        *input = rest;
        if let Some(part) = self.parts.last_mut() {
            part.content.end = self.bytes.len();
        }
    }

    /// Marks the file of the last part as complete.
    pub(super) fn end(&mut self) {
        if let Some(part) = self.parts.last_mut() {
            part.is_last = true;
        }
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.parts.clear();
    }

    pub(super) fn parts(&self) -> &[Part] {
        &self.parts
    }

    pub(super) fn path(&self, part: &Part) -> &[u8] {
        self.bytes.get(part.path.clone()).unwrap_or_default()
    }

    pub(super) fn content(&self, part: &Part) -> &[u8] {
        self.bytes.get(part.content.clone()).unwrap_or_default()
    }
}
