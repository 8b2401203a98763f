//! [`Framed`]: reads a body of lines, each of which may have bytes after it.

use std::io::{self, BufRead, Read};

/// A body of lines, each of which may have bytes after it. Its errors are errors of the caller's
/// format.
#[derive(Debug)]
pub(crate) struct Framed<R> {
    source: R,
    /// Number of unread bytes after the last line.
    left: u64,
}

impl<R: BufRead> Framed<R> {
    pub(crate) fn new(source: R) -> Self {
        Self { source, left: 0 }
    }

    /// Reads the next line. Returns it without its LF. The bytes after the line before must have
    /// been read. `truncated`: the error for the end of the body. `too_long`: that for a line of
    /// more than `len_max` bytes.
    pub(crate) fn read_line<E: Into<io::Error>>(
        &mut self,
        len_max: usize,
        truncated: E,
        too_long: E,
    ) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        // Read one byte more than allowed, for the LF.
        let mut source = self.source.by_ref().take(len_max as u64 + 1);
        source.read_until(b'\n', &mut line)?;
        match line.pop() {
            Some(b'\n') => Ok(line),
            _ if line.len() >= len_max => Err(too_long.into()),
            _ => Err(truncated.into()),
        }
    }

    /// Sets the number of bytes after the last line.
    pub(crate) fn set_left(&mut self, len: u64) {
        self.left = len;
    }

    /// Reads from the bytes after the last line. `truncated`: the error for the end of the body.
    pub(crate) fn read<E: Into<io::Error>>(
        &mut self,
        buffer: &mut [u8],
        truncated: E,
    ) -> io::Result<usize> {
        let len = usize::try_from(self.left).map_or(buffer.len(), |left| left.min(buffer.len()));
        if len == 0 {
            return Ok(0);
        }
        let read = self
            .source
            .read(buffer.get_mut(..len).unwrap_or_default())?;
        if read == 0 {
            return Err(truncated.into());
        }
        self.left = self.left.saturating_sub(read as u64);
        Ok(read)
    }

    /// Returns whether the body has ended.
    pub(crate) fn is_at_end(&mut self) -> io::Result<bool> {
        Ok(self.source.fill_buf()?.is_empty())
    }
}
