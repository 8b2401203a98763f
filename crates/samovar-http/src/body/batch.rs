//! Batches: bounded pieces of a response body, made of bytes in memory and file ranges.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::io::Errno;

use crate::memory::Buffer;
use crate::net::transport::Transport;
use crate::net::wake::Waker;
use crate::sys;

/// Number of file bytes copied at once if the kernel cannot send the file directly.
const PIECE_LEN: usize = 16 * 1024;

/// A piece of a response body, as a source yields it: bytes in memory and file ranges.
#[derive(Debug)]
pub struct Batch {
    buffer: Buffer,
    /// Invariant: `sent <= filled <= buffer.len()`. The bytes `buffer[sent..filled]` are not sent
    /// yet.
    filled: usize,
    sent: usize,
    /// Number of bytes at the end of the buffer that [`room`](Self::room) does not offer; see
    /// [`reserve`](Self::reserve).
    reserved_len: usize,
    files: VecDeque<FilePart>,
    /// Number of bytes added since the last [`clear`](Self::clear), including file ranges.
    added_len: u64,
    takes_files: bool,
    waker: Waker,
}

/// A file range, which is sent after `buffer[..at]`.
#[derive(Debug)]
struct FilePart {
    at: usize,
    file: Arc<File>,
    offset: u64,
    left: u64,
}

impl Batch {
    pub(crate) fn new(waker: Waker) -> Self {
        Self {
            buffer: waker.host().buffers().take(),
            waker,
            filled: 0,
            sent: 0,
            reserved_len: 0,
            files: VecDeque::new(),
            added_len: 0,
            takes_files: false,
        }
    }

    /// Creates a batch for a socket to which the kernel can send file ranges directly.
    pub(crate) fn of_files(waker: Waker) -> Self {
        Self {
            takes_files: true,
            ..Self::new(waker)
        }
    }

    /// Returns the waker of the connection that sends this batch; see
    /// [`Progress::Wait`](super::Progress::Wait).
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Returns the free part of the buffer. Write from its start, then call
    /// [`advance`](Self::advance) with the number of bytes written.
    pub fn room(&mut self) -> &mut [u8] {
        let end = self.buffer.bytes.len() - self.reserved_len;
        &mut self.buffer.bytes[self.filled..end]
    }

    /// Returns the length of the free part of the buffer, in bytes.
    pub fn room_len(&self) -> usize {
        self.buffer.bytes.len() - self.reserved_len - self.filled
    }

    /// Adds the first `len` bytes of [`room`](Self::room) to the batch.
    ///
    /// # Panics
    ///
    /// If `len` is more than [`room_len`](Self::room_len).
    pub fn advance(&mut self, len: usize) {
        assert!(
            len <= self.room_len(),
            "advanced past the end of the buffer"
        );
        self.filled += len;
        self.added_len += len as u64;
    }

    /// Copies as many of `bytes` as fit; returns their number.
    pub fn put(&mut self, bytes: &[u8]) -> usize {
        let len = bytes.len().min(self.room_len());
        self.room()[..len].copy_from_slice(&bytes[..len]);
        self.advance(len);
        len
    }

    /// Returns whether the kernel can send a [`file`](Self::file) without copying it through this
    /// process. Otherwise `file` still works, but filling [`room`](Self::room) is faster.
    pub fn takes_files(&self) -> bool {
        self.takes_files
    }

    /// Adds a file range, which the kernel sends from the page cache, so it takes no memory in this
    /// process. If the file is shorter than the range, the body fails; see
    /// [`Source::file_failed`](super::Source::file_failed).
    pub fn file(&mut self, file: Arc<File>, offset: u64, len: u64) {
        if len > 0 {
            self.files.push_back(FilePart {
                at: self.filled,
                file,
                offset,
                left: len,
            });
            self.added_len += len;
        }
    }

    /// Returns the number of bytes added since the batch was last emptied, including file ranges.
    pub fn added_len(&self) -> u64 {
        self.added_len
    }

    pub(crate) fn is_sent(&self) -> bool {
        self.sent == self.filled && self.files.is_empty()
    }

    /// Empties a batch after all its bytes were sent.
    pub(crate) fn clear(&mut self) {
        (self.filled, self.sent, self.added_len) = (0, 0, 0);
    }

    /// Overwrites filled bytes from index `at`. Used for the size of a chunk, which is known only
    /// after its data.
    pub(crate) fn patch(&mut self, at: usize, bytes: &[u8]) {
        self.buffer.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Reserves `len` bytes at the end of the buffer, excluded from [`room`](Self::room).
    pub(crate) fn reserve(&mut self, len: usize) {
        self.reserved_len = len;
    }

    /// Frees the buffer if only file ranges remain to be sent.
    pub(crate) fn release_buffer(&mut self) {
        if self.sent == self.filled {
            self.buffer = self.waker.host().buffers().none();
            (self.filled, self.sent, self.reserved_len) = (0, 0, 0);
            for part in &mut self.files {
                part.at = 0;
            }
        }
    }

    /// Removes the last `len` filled bytes.
    pub(crate) fn unfill(&mut self, len: usize) {
        self.filled -= len;
        self.added_len -= len as u64;
    }

    pub(crate) fn filled(&self) -> usize {
        self.filled
    }

    /// Sends until the batch is empty or the socket buffer is full; returns the number of bytes
    /// sent.
    pub(crate) fn send(&mut self, transport: &mut Transport) -> io::Result<u64> {
        let mut sent_len = 0;
        while !self.is_sent() {
            let memory_end = self.files.front().map_or(self.filled, |part| part.at);
            let taken = if self.sent < memory_end {
                let bytes = &self.buffer.bytes[self.sent..memory_end];
                let taken = transport.send(bytes, !self.files.is_empty())?;
                self.sent += taken.unwrap_or(0);
                taken.map(|len| len as u64)
            } else {
                self.send_file(transport)?
            };
            match taken {
                Some(len) => sent_len += len,
                None => break,
            }
        }
        Ok(sent_len)
    }

    fn send_file(&mut self, transport: &mut Transport) -> io::Result<Option<u64>> {
        let Some(part) = self.files.front_mut() else {
            return Ok(Some(0));
        };
        let sent = match transport.plain() {
            Some(socket) => sys::send_file(socket, &*part.file, part.offset, part.left)?,
            None => {
                let mut piece = [0; PIECE_LEN];
                let bytes = part.read(&mut piece)?;
                transport.send(bytes, false)?.map(|len| len as u64)
            }
        };
        let Some(len) = sent else {
            return Ok(None);
        };
        part.pass(len)?;
        if part.left == 0 {
            self.files.pop_front();
        }
        Ok(Some(len))
    }

    /// Copies the next bytes into a buffer; returns 0 when the batch is empty. For bodies that are
    /// transformed before they are sent.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let memory_end = self.files.front().map_or(self.filled, |part| part.at);
        let memory = &self.buffer.bytes[self.sent..memory_end];
        if !memory.is_empty() {
            let len = memory.len().min(buffer.len());
            buffer[..len].copy_from_slice(&memory[..len]);
            self.sent += len;
            return Ok(len);
        }
        let Some(part) = self.files.front_mut() else {
            return Ok(0);
        };
        let len = part.read(buffer)?.len();
        part.pass(len as u64)?;
        if part.left == 0 {
            self.files.pop_front();
        }
        Ok(len)
    }
}

impl FilePart {
    /// Reads the next unsent bytes of the range.
    fn read<'a>(&self, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        let room_len = buffer.len().min(left);
        let room = &mut buffer[..room_len];
        let len = self.file.read_at(room, self.offset)?;
        if len == 0 && room_len > 0 {
            return Err(became_shorter());
        }
        Ok(&room[..len])
    }

    /// Removes the first `len` bytes of the range after they were sent.
    fn pass(&mut self, len: u64) -> io::Result<()> {
        if len == 0 {
            return Err(became_shorter());
        }
        self.offset += len;
        self.left = self.left.saturating_sub(len);
        Ok(())
    }
}

/// Returns whether a send error was caused by the file rather than the socket.
pub(super) fn is_about_file(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::UnexpectedEof || Errno::from_io_error(error) == Some(Errno::IO)
}

fn became_shorter() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "file became shorter")
}
