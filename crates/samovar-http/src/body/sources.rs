//! Sources for files, readers and iterators.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::{Batch, Progress, Source};

/// The source for a file range, which the kernel sends if possible.
pub(crate) struct FileRange {
    file: Arc<File>,
    range: Range<u64>,
}

/// Maximum number of file bytes in a batch. Other bodies are served between two batches.
const FILE_PART_LEN: u64 = 2 << 20;

impl FileRange {
    pub(crate) fn new(file: Arc<File>, range: Range<u64>) -> Self {
        Self { file, range }
    }
}

impl Source for FileRange {
    fn len(&self) -> Option<u64> {
        Some(self.range.end.saturating_sub(self.range.start))
    }

    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        let left = self.range.end.saturating_sub(self.range.start);
        let len = left.min(FILE_PART_LEN);
        batch.file(Arc::clone(&self.file), self.range.start, len);
        self.range.start += len;
        Ok(if len == left {
            Progress::End
        } else {
            Progress::More
        })
    }
}

/// The source for the bytes of a reader.
pub(crate) struct Reader<R> {
    reader: R,
    len: Option<u64>,
    left: Option<u64>,
}

impl<R> Reader<R> {
    pub(crate) fn new(reader: R, len: Option<u64>) -> Self {
        Self {
            reader,
            len,
            left: len,
        }
    }
}

impl<R: Read + Send> Source for Reader<R> {
    fn len(&self) -> Option<u64> {
        self.len
    }

    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        if self.left == Some(0) {
            return Ok(Progress::End);
        }
        let len = loop {
            match self.reader.read(batch.room()) {
                Ok(len) => break len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        batch.advance(len);
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(len as u64);
        }
        Ok(if len == 0 || self.left == Some(0) {
            Progress::End
        } else {
            Progress::More
        })
    }

    fn may_wait(&self) -> bool {
        true
    }
}

/// The source for the pieces of an iterator.
pub(crate) struct Pieces<I> {
    pieces: I,
    /// A piece whose bytes from `at` on did not fit into the last batch. Invariant: `at <=
    /// piece.len()`.
    piece: Vec<u8>,
    at: usize,
}

impl<I> Pieces<I> {
    pub(crate) fn new(pieces: I) -> Self {
        Self {
            pieces,
            piece: Vec::new(),
            at: 0,
        }
    }
}

impl<I: Iterator<Item = io::Result<Vec<u8>>> + Send> Source for Pieces<I> {
    fn len(&self) -> Option<u64> {
        None
    }

    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        loop {
            let rest = &self.piece[self.at..];
            if !rest.is_empty() {
                self.at += batch.put(rest);
                return Ok(Progress::More);
            }
            let Some(piece) = self.pieces.next() else {
                return Ok(Progress::End);
            };
            (self.piece, self.at) = (piece?, 0);
        }
    }

    fn may_wait(&self) -> bool {
        true
    }
}

/// A source that never waits for anything but a disk.
pub(crate) struct KeepingSlot(pub(crate) Box<dyn Source>);

impl Source for KeepingSlot {
    fn len(&self) -> Option<u64> {
        self.0.len()
    }

    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        self.0.pull(batch)
    }

    fn next_pull(&self) -> Option<Instant> {
        self.0.next_pull()
    }

    fn file_failed(&mut self, error: &io::Error) {
        self.0.file_failed(error);
    }
}
