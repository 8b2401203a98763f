//! [`NarFile`]: the file of a NAR, opened for reading.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

/// The file of a NAR, opened for reading. Reads are independent of each other.
#[derive(Debug, Clone)]
pub struct NarFile {
    file: Arc<File>,
    /// Length of the NAR's file, in bytes.
    len: u64,
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
    pub(crate) fn local(file: File, len: u64) -> Self {
        Self {
            file: Arc::new(file),
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

    /// Returns the local file with these bytes, and where they are in it, if all of them are there.
    #[must_use]
    pub fn whole(&self, range: Range<u64>) -> Option<(Arc<File>, Range<u64>)> {
        Some((Arc::clone(&self.file), range))
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
        drop(waker);
        Ok(Ready::Bytes(Arc::clone(&self.file), range))
    }

    /// Reads bytes from an offset on. Waits until there are some. Returns 0 at the end of the file.
    ///
    /// # Errors
    ///
    /// If the bytes cannot be had.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = self.len.saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX);
        let len = len.min(buffer.len());
        self.file.read_at(&mut buffer[..len], offset)
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
