//! A bounded piece of a body: bytes in memory and ranges of files, in order.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::io::Errno;

use super::Buffer;
use crate::io::sys;
use crate::io::transport::Transport;
use crate::io::wake::Waker;

/// Bytes of a file that pass through memory at once, where the kernel cannot send them by itself.
const PIECE_LEN: usize = 16 * 1024;

/// A piece of a body.
#[derive(Debug)]
pub struct Batch {
    buffer: Buffer,
    /// Invariant: `sent <= filled <= buffer.len()`. `buffer[sent..filled]` is still to be sent.
    filled: usize,
    sent: usize,
    /// Bytes at the end of the buffer that are kept for the engine's framing.
    reserved_len: usize,
    files: VecDeque<FilePart>,
    /// Bytes added since the last [`clear`](Self::clear), files included.
    added_len: u64,
    takes_files: bool,
    waker: Waker,
}

/// A range of a file that follows `buffer[..at]`.
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

    /// A batch for a socket that ranges of files go to best past this process.
    pub(crate) fn of_files(waker: Waker) -> Self {
        Self {
            takes_files: true,
            ..Self::new(waker)
        }
    }

    /// Wakes the connection that this batch is for; see [`Progress::Wait`](super::Progress::Wait).
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// The memory that is not filled yet. Write at its start, then say how much with
    /// [`advance`](Self::advance).
    pub fn room(&mut self) -> &mut [u8] {
        let end = self.buffer.len() - self.reserved_len;
        self.buffer.get_mut(self.filled..end).unwrap_or_default()
    }

    /// Bytes of memory that are not filled yet.
    pub fn room_len(&self) -> usize {
        (self.buffer.len() - self.reserved_len).saturating_sub(self.filled)
    }

    /// Counts the first `len` bytes of [`room`](Self::room) as filled.
    ///
    /// # Panics
    ///
    /// If there is less room than `len`.
    pub fn advance(&mut self, len: usize) {
        assert!(
            len <= self.room_len(),
            "advanced past the end of the buffer"
        );
        self.filled += len;
        self.added_len += len as u64;
    }

    /// Copies as much of `bytes` as there is room for; returns how much that was.
    pub fn put(&mut self, bytes: &[u8]) -> usize {
        let len = bytes.len().min(self.room_len());
        if let (Some(room), Some(bytes)) = (self.room().get_mut(..len), bytes.get(..len)) {
            room.copy_from_slice(bytes);
        }
        self.advance(len);
        len
    }

    /// Whether a [`file`](Self::file) goes to the socket without passing through memory. If not,
    /// it is correct all the same, but a source that can fill [`room`](Self::room) itself does
    /// better to do so.
    pub fn takes_files(&self) -> bool {
        self.takes_files
    }

    /// Adds a range of a file, which takes no room: the kernel sends it from the page cache.
    /// A file that turns out shorter fails the body; see
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

    /// Bytes that were added for this turn, ranges of files included.
    pub fn added_len(&self) -> u64 {
        self.added_len
    }

    pub(crate) fn is_sent(&self) -> bool {
        self.sent == self.filled && self.files.is_empty()
    }

    /// Empties a batch that was sent.
    pub(crate) fn clear(&mut self) {
        (self.filled, self.sent, self.added_len) = (0, 0, 0);
    }

    /// Overwrites bytes filled earlier, for a chunk size known only afterwards.
    pub(crate) fn patch(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.buffer.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    /// Keeps `len` bytes at the end of the buffer out of [`room`](Self::room).
    pub(crate) fn reserve(&mut self, len: usize) {
        self.reserved_len = len;
    }

    /// Leaves at most `len` bytes of [`room`](Self::room) in a batch that is empty.
    #[cfg(feature = "http2")]
    pub(crate) fn limit_room(&mut self, len: usize) {
        self.reserved_len = self.buffer.len().saturating_sub(len);
    }

    /// Gives the memory back, where only ranges of files are left.
    #[cfg(feature = "http2")]
    pub(crate) fn release_buffer(&mut self) {
        if self.sent == self.filled {
            self.buffer = self.waker.host().buffers().none();
            (self.filled, self.sent, self.reserved_len) = (0, 0, 0);
            for part in &mut self.files {
                part.at = 0;
            }
        }
    }

    /// Takes back the last `len` bytes filled.
    pub(crate) fn unfill(&mut self, len: usize) {
        self.filled -= len;
        self.added_len -= len as u64;
    }

    pub(crate) fn filled(&self) -> usize {
        self.filled
    }

    /// Sends until all is sent or the socket takes no more; returns the bytes sent.
    ///
    /// # Errors
    ///
    /// Those of the socket and the files; `WouldBlock` is not one.
    pub(crate) fn send(&mut self, transport: &mut Transport) -> io::Result<u64> {
        let mut sent_len = 0;
        while !self.is_sent() {
            let memory_end = self.files.front().map_or(self.filled, |part| part.at);
            let taken = if self.sent < memory_end {
                let bytes = self.buffer.get(self.sent..memory_end).unwrap_or_default();
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

    /// Takes bytes out, in order; 0 once nothing is left. For bodies that do not go to a socket as
    /// they are.
    ///
    /// # Errors
    ///
    /// Those of the files.
    #[cfg_attr(
        not(any(feature = "compression", feature = "http2")),
        expect(dead_code, reason = "HTTP/1 sends bytes as they are")
    )]
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let memory_end = self.files.front().map_or(self.filled, |part| part.at);
        let memory = self.buffer.get(self.sent..memory_end).unwrap_or_default();
        if !memory.is_empty() {
            let len = memory.len().min(buffer.len());
            if let (Some(from), Some(to)) = (memory.get(..len), buffer.get_mut(..len)) {
                to.copy_from_slice(from);
            }
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
    /// Reads the start of what is left.
    fn read<'a>(&self, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        let room_len = buffer.len().min(left);
        let room = buffer.get_mut(..room_len).unwrap_or_default();
        let len = self.file.read_at(room, self.offset)?;
        if len == 0 && room_len > 0 {
            return Err(became_shorter());
        }
        Ok(room.get(..len).unwrap_or_default())
    }

    /// Counts bytes as sent.
    fn pass(&mut self, len: u64) -> io::Result<()> {
        if len == 0 {
            return Err(became_shorter());
        }
        self.offset += len;
        self.left = self.left.saturating_sub(len);
        Ok(())
    }
}

/// Whether it is a file that failed, where an error may also be the socket's.
pub(super) fn is_about_file(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::UnexpectedEof || Errno::from_io_error(error) == Some(Errno::IO)
}

fn became_shorter() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "file became shorter")
}
