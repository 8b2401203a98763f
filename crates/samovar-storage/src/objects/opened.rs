//! [`NarFile`]: the file of a NAR, opened for reading.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use super::arrival::{Failure, Reader};

/// The file of a NAR, opened for reading. Reads are independent of each other.
#[derive(Debug, Clone)]
pub struct NarFile {
    source: Source,
    /// Offset of the file in its object, in bytes.
    start: u64,
    /// Length of the file, in bytes.
    len: u64,
}

#[derive(Debug, Clone)]
enum Source {
    /// A local file with the whole object.
    Local(Arc<File>),
    /// An object that is being received.
    Arriving(Reader),
}

/// What can be read now.
#[derive(Debug)]
pub enum Ready {
    /// These bytes of this local file. The range is not empty.
    Bytes(Arc<File>, Range<u64>),
    /// Nothing yet. The waker is called when that changes.
    Wait,
}

impl NarFile {
    pub(super) fn local(file: File, start: u64, len: u64) -> Self {
        Self {
            source: Source::Local(Arc::new(file)),
            start,
            len,
        }
    }

    pub(super) fn arriving(reader: Reader, start: u64, len: u64) -> Self {
        Self {
            source: Source::Arriving(reader),
            start,
            len,
        }
    }

    /// Returns the length of the file, in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the file has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the local file with these bytes, and where they are in it. `None`: the object is
    /// still being received.
    #[must_use]
    pub fn whole(&self, range: Range<u64>) -> Option<(Arc<File>, Range<u64>)> {
        let file = match &self.source {
            Source::Local(file) => Arc::clone(file),
            Source::Arriving(reader) => reader.whole()?,
        };
        Some((file, self.start + range.start..self.start + range.end))
    }

    /// Returns the first of these bytes, as many as can be read now. `range` is not empty and ends
    /// within the file. If there are none yet, `waker` is called when there are some, or when they
    /// will not come.
    ///
    /// # Errors
    ///
    /// If the bytes cannot be had.
    pub fn ready(
        &self,
        range: Range<u64>,
        waker: impl FnOnce() + Send + 'static,
    ) -> io::Result<Ready> {
        let (at, end) = (self.start + range.start, self.start + range.end);
        match &self.source {
            Source::Local(file) => Ok(Ready::Bytes(Arc::clone(file), at..end)),
            Source::Arriving(reader) => match reader.ready(at, waker).map_err(failed)? {
                Some((file, there)) => Ok(Ready::Bytes(file, at..end.min(there))),
                None => Ok(Ready::Wait),
            },
        }
    }

    /// Reads bytes from an offset on. Waits until there are some. Returns 0 at the end of the file.
    ///
    /// # Errors
    ///
    /// If the bytes cannot be had.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut left = self.len.saturating_sub(offset);
        if left == 0 {
            return Ok(0);
        }
        let at = self.start + offset;
        let file = match &self.source {
            Source::Local(file) => Arc::clone(file),
            Source::Arriving(reader) => {
                let (file, there) = reader.wait(at).map_err(failed)?;
                left = left.min(there - at);
                file
            }
        };
        let len = usize::try_from(left).unwrap_or(usize::MAX);
        let len = len.min(buffer.len());
        file.read_at(&mut buffer[..len], at)
    }

    /// Fills the buffer with the bytes from an offset on. Waits until they are there.
    ///
    /// # Errors
    ///
    /// If the bytes cannot be had, or the file ends before.
    pub fn read_exact_at(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.read_at(buffer, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => {
                    buffer = &mut buffer[len..];
                    offset += len as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns a reader that begins at an offset.
    #[must_use]
    pub fn reader(self, offset: u64) -> NarReader {
        NarReader { file: self, offset }
    }
}

/// Reads the file of a NAR from an offset on.
#[derive(Debug)]
pub struct NarReader {
    file: NarFile,
    offset: u64,
}

impl NarReader {
    /// Returns the file.
    #[must_use]
    pub fn into_file(self) -> NarFile {
        self.file
    }
}

impl Read for NarReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read_at(buffer, self.offset)?;
        self.offset += len as u64;
        Ok(len)
    }
}

fn failed(failure: Failure) -> io::Error {
    io::Error::other(failure.to_string())
}
