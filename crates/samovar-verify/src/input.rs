//! [`Input`]: copies and hashes the body of an upload while it is read.

use std::io::{self, BufRead, Read, Write};

use sha2::{Digest, Sha256};

use super::{Memory, Refusal, VerifyError};

/// Length of the buffer in bytes. Each `read` of the source and each `write` to the sink fills it
/// at most once.
const BUFFER_LEN: usize = 128 << 10;

/// Number of bytes by which a body may exceed twice the length of its content. Decompressors read
/// less than this before their first output.
const OVERHEAD_MAX: u64 = 32 << 20;

/// Reads a source, and writes each piece to a sink and to a hasher.
///
/// A decompressor reads from this, and may translate or hide errors. The first error is therefore
/// stored, and [`take_failure`](Self::take_failure) returns it unchanged.
pub(super) struct Input<'a> {
    source: &'a mut dyn Read,
    out: &'a mut dyn Write,
    memory: &'a mut dyn Memory,
    /// Length of the window for which memory is reserved, in bytes.
    window_len: u64,
    buffer: Box<[u8]>,
    /// Index in `buffer` of the first unread byte.
    start: usize,
    end: usize,
    is_eof: bool,
    received: u64,
    /// Number of bytes of decompressed content so far.
    content_len: u64,
    /// Hasher of the received bytes. `None` after [`without_hash`](Self::without_hash).
    hasher: Option<Sha256>,
    failure: Option<VerifyError>,
    has_failed: bool,
}

impl<'a> Input<'a> {
    pub(super) fn new(
        source: &'a mut dyn Read,
        out: &'a mut dyn Write,
        memory: &'a mut dyn Memory,
    ) -> Self {
        Self {
            source,
            out,
            memory,
            window_len: 0,
            buffer: vec![0; BUFFER_LEN].into_boxed_slice(),
            start: 0,
            end: 0,
            is_eof: false,
            received: 0,
            content_len: 0,
            hasher: Some(Sha256::new()),
            failure: None,
            has_failed: false,
        }
    }

    /// Reserves memory for a window or dictionary of this length, before the decompressor allocates
    /// it.
    pub(super) fn reserve(&mut self, window_len: u64) -> io::Result<()> {
        if window_len <= self.window_len {
            return Ok(());
        }
        let reserved = self.memory.reserve(window_len);
        reserved.map_err(|error| self.fail(error.into()))?;
        self.window_len = window_len;
        Ok(())
    }

    /// Returns the number of bytes received so far.
    pub(super) const fn received(&self) -> u64 {
        self.received
    }

    /// Sets the number of decompressed bytes so far. May wait for a turn of a processor.
    pub(super) fn set_content_len(&mut self, len: u64) -> Result<(), VerifyError> {
        self.content_len = len;
        Ok(self.memory.work(len)?)
    }

    /// Ends the turn, because nothing is left to decompress.
    pub(super) fn rest(&mut self) {
        self.memory.rest();
    }

    /// Returns the buffered bytes, which were received but not consumed.
    pub(super) fn buffered(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    /// Receives until `len` bytes are buffered or the body ends. Returns the buffered bytes.
    pub(super) fn peek(&mut self, len: usize) -> io::Result<&[u8]> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        while self.end.saturating_sub(self.start) < len && !self.is_eof {
            if self.end == self.buffer.len() {
                self.buffer.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end.saturating_sub(self.start));
            }
            self.receive()?;
        }
        Ok(self.buffered())
    }

    /// Returns whether all bytes were received and consumed. May read from the source to find out.
    pub(super) fn is_at_end(&mut self) -> io::Result<bool> {
        Ok(self.peek(1)?.is_empty())
    }

    /// Removes and returns the first error, unchanged. Returns `None` if there was none.
    pub(super) fn take_failure(&mut self) -> Option<VerifyError> {
        self.failure.take()
    }

    /// Turns hashing off, because the caller hashes the same bytes. No byte may have been consumed
    /// yet.
    pub(super) fn without_hash(&mut self) {
        self.hasher = None;
    }

    /// Returns the SHA-256 of the received bytes, or `None` after
    /// [`without_hash`](Self::without_hash).
    pub(super) fn into_digest(self) -> Option<[u8; 32]> {
        self.hasher.map(|hasher| hasher.finalize().into())
    }

    /// Reads one piece from the source into the free end of the buffer.
    fn receive(&mut self) -> io::Result<()> {
        if self.has_failed {
            return Err(io::Error::other("the upload has failed before"));
        }
        let free = self.buffer.get_mut(self.end..).unwrap_or_default();
        self.memory.rest();
        let len = loop {
            match self.source.read(free) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        let len = match len {
            Ok(len) => len,
            Err(error) => return Err(self.fail(VerifyError::Source(error))),
        };
        let piece = free.get(..len).unwrap_or(free);
        if piece.is_empty() {
            self.is_eof = true;
            return Ok(());
        }
        if let Err(error) = self.memory.work(self.content_len) {
            return Err(self.fail(error.into()));
        }
        if let Some(hasher) = &mut self.hasher {
            hasher.update(piece);
        }
        self.received = self.received.saturating_add(piece.len() as u64);
        self.end = self.end.saturating_add(piece.len());
        if let Err(error) = self.out.write_all(piece) {
            return Err(self.fail(VerifyError::Sink(error)));
        }
        self.check_overhead()
    }

    /// Refuses a body that is much longer than its content, such as a sequence of empty zstd
    /// frames. No other limit would count its bytes, which are stored.
    fn check_overhead(&mut self) -> io::Result<()> {
        let len_max = self
            .content_len
            .saturating_mul(2)
            .saturating_add(OVERHEAD_MAX);
        if self.received <= len_max {
            return Ok(());
        }
        let refusal = Refusal::Oversized {
            file_size: self.received,
            nar_size: self.content_len,
        };
        Err(self.fail(refusal.into()))
    }

    fn fail(&mut self, failure: VerifyError) -> io::Error {
        self.has_failed = true;
        self.failure = Some(failure);
        // Return another error kind: decompressors interpret some kinds as the end of the input.
        io::Error::other("the upload failed")
    }
}

impl BufRead for Input<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.peek(1)
    }

    fn consume(&mut self, len: usize) {
        self.start = self.start.saturating_add(len).min(self.end);
    }
}

impl Read for Input<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let buffered = self.peek(1)?;
        let len = buffered.len().min(out.len());
        let (piece, _) = buffered.split_at(len);
        out.split_at_mut(len).0.copy_from_slice(piece);
        self.consume(len);
        Ok(len)
    }
}
