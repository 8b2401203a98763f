//! [`NarReader`]: the bytes of a NAR, in order.
//!
//! # Theory of operation
//!
//! While contents are in the page cache, a file is opened only when its contents are the next to be
//! read. If a read would wait for the disk (`RWF_NOWAIT` tells) and another does within a few
//! files, read-ahead starts: the next files, across directories, are opened and the kernel is asked
//! to fetch them, so that the disk works on many at once. Read-ahead ends after [`COLD_FILE_COUNT`]
//! consecutive files that did not wait. On a cold tree it is several times as fast as reading file
//! by file; on a warm tree it stays off and costs nothing.

use std::fs::File;
use std::io;
use std::sync::Arc;

use rustix::fd::AsFd;
use rustix::io::Errno;
use samovar_nix::nar::Encoder;

use super::TreeError;
use super::readahead;
use super::reservation::Reservation;
use super::segments::{Segment, Segments};
use super::steps::Steps;
use crate::sys;

/// Maximum number of files opened for read-ahead.
const READAHEAD_FILE_COUNT: usize = 64;

/// Maximum length of the contents read ahead, in bytes.
const READAHEAD_LEN_MAX: u64 = 16 << 20;

/// Number of consecutive files that must not wait before read-ahead ends. Large, because files that
/// read-ahead has fetched do not wait either.
const COLD_FILE_COUNT: u32 = 256;

/// Maximum distance, in files, between the two waits that start read-ahead. A single wait is no
/// evidence of a cold tree: the kernel reports one every few hundred files in a warm tree too.
const SUSPECT_FILE_COUNT: u32 = 8;

/// A buffer whose free space is below this length, in bytes, counts as full if the next contents do
/// not fit: two reads of a small file cost more than a slightly shorter buffer.
const REST_LEN_MAX: usize = 16 * 1024;

/// The destination of a NAR: memory, or ranges of files for sinks that can send them without
/// reading.
pub trait NarSink {
    /// Returns the memory for the next bytes. An empty slice stops the reader.
    fn room(&mut self) -> &mut [u8];

    /// Declares the first `len` bytes of [`room`](Self::room) filled.
    fn advance(&mut self, len: usize);

    /// Returns how many of the next `left_len` bytes of a file the sink takes as a range. Returns 0
    /// to have them read into memory.
    fn range_len(&self, left_len: u64) -> u64;

    /// Takes a range whose length is what [`range_len`](Self::range_len) returned. The file can be
    /// truncated afterwards: a sink that then cannot read the whole range must fail the NAR.
    fn range(&mut self, file: Arc<File>, offset: u64, len: u64);
}

/// A sink for a slice of memory, which takes no file ranges.
struct Slice<'a> {
    buffer: &'a mut [u8],
    filled: usize,
}

impl NarSink for Slice<'_> {
    fn room(&mut self) -> &mut [u8] {
        self.buffer.get_mut(self.filled..).unwrap_or_default()
    }

    fn advance(&mut self, len: usize) {
        self.filled += len;
    }

    fn range_len(&self, _: u64) -> u64 {
        0
    }

    fn range(&mut self, _: Arc<File>, _: u64, _: u64) {}
}

/// Reads the NAR of a tree.
#[derive(Debug)]
pub struct NarReader {
    files: Box<FileSource>,
    position: u64,
    failed: bool,
}

#[derive(Debug)]
struct FileSource {
    segments: Segments,
    temperature: Temperature,
    /// The reserved descriptors while read-ahead is on; `None` while it is off.
    reservation: Option<Reservation>,
    /// Number of files whose contents were started.
    file_count: u64,
}

/// Estimates whether contents are in the page cache.
#[derive(Debug, Default)]
struct Temperature {
    /// Number of further files without a wait after which read-ahead ends; 0 while read-ahead is
    /// off.
    cold_count: u32,
    /// Number of further files within which a second wait starts read-ahead; 0 if no wait is
    /// recent.
    suspect_count: u32,
    /// Whether a read has shown that the file system does not support `RWF_NOWAIT`.
    cannot_ask: bool,
}

impl NarReader {
    /// Creates a reader for `steps`, from the start or from the state of a resumed encoder.
    pub(super) fn of_steps(steps: Steps, bookmark: Option<Encoder>) -> Result<Self, TreeError> {
        let position = bookmark.as_ref().map_or(0, Encoder::offset);
        let files = FileSource {
            segments: Segments::new(steps, bookmark)?,
            temperature: Temperature::default(),
            reservation: None,
            file_count: 0,
        };
        Ok(Self {
            files: Box::new(files),
            position,
            failed: false,
        })
    }

    /// Returns the number of bytes read or skipped.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the number of files whose contents were started.
    #[must_use]
    pub fn file_count(&self) -> u64 {
        self.files.file_count
    }

    /// Watches the change times of the files that are opened from now on. A reader of a directory
    /// has opened none when it is made.
    pub fn watch_changes(&mut self) {
        self.files.segments.watch_changes();
    }

    /// Returns the latest change time (`ctime`) of the files opened so far, in seconds and
    /// nanoseconds since 1970; `None` if [`watch_changes`](Self::watch_changes) was not called.
    #[must_use]
    pub fn newest_change(&self) -> Option<(i64, u32)> {
        self.files.segments.newest_change()
    }

    /// Fills the buffer with the next bytes and returns their number: 0 at the end of the NAR. A
    /// partly filled buffer does not mean the end.
    ///
    /// Blocks on the disk. Pass large buffers (256 KiB): contents are read directly into them.
    ///
    /// # Errors
    ///
    /// Any [`TreeError`]; bytes of this call are lost, and later calls fail too.
    pub fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, TreeError> {
        let mut slice = Slice { buffer, filled: 0 };
        self.pull(&mut slice, u64::MAX)?;
        Ok(slice.filled)
    }

    /// Passes at most `len_max` bytes to a sink, until its memory is full. Returns their number: 0
    /// at the end of the NAR. Stopping early does not mean the end.
    ///
    /// Blocks as [`fill`](Self::fill) does.
    ///
    /// # Errors
    ///
    /// Any [`TreeError`]; the sink may have got a part of the bytes of this call, and later calls
    /// fail too.
    pub fn pull(&mut self, sink: &mut impl NarSink, len_max: u64) -> Result<u64, TreeError> {
        if self.failed {
            return Err(TreeError::Changed);
        }
        let result = self.files.pull(sink, len_max);
        match &result {
            Ok(len) => self.position += len,
            Err(_) => self.failed = true,
        }
        result
    }

    /// Continues at `offset`. Does not read the files before it.
    ///
    /// # Errors
    ///
    /// [`TreeError::NoSuchOffset`] if the offset was passed already or is beyond the end; any
    /// other [`TreeError`].
    pub fn skip_to(&mut self, offset: u64) -> Result<(), TreeError> {
        if offset < self.position {
            return Err(TreeError::NoSuchOffset);
        }
        if self.failed {
            return Err(TreeError::Changed);
        }
        let result = self.files.skip(self.position, offset);
        match &result {
            Ok(()) => self.position = offset,
            Err(_) => self.failed = true,
        }
        result
    }
}

impl io::Read for NarReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.fill(buffer)?)
    }
}

impl FileSource {
    fn pull(&mut self, sink: &mut impl NarSink, len_max: u64) -> Result<u64, TreeError> {
        let mut pulled = 0;
        while pulled < len_max {
            self.read_ahead()?;
            let room = up_to(sink.room(), len_max - pulled);
            let room_len = room.len();
            if room_len == 0 {
                break;
            }
            let len = match self.segments.front() {
                None if self.segments.has_ended() => break,
                None => {
                    self.segments.extend(0, self.temperature.is_cold())?;
                    continue;
                }
                Some(Segment::Framing(len)) => {
                    let framing = self.segments.framing(room_len.min(*len));
                    room[..framing.len()].copy_from_slice(framing);
                    let len = framing.len();
                    sink.advance(len);
                    len as u64
                }
                Some(Segment::Contents { file, start, size }) => {
                    let left = *size - *start;
                    self.file_count += u64::from(*start == 0);
                    let range_len = sink.range_len(left).min(left).min(len_max - pulled);
                    if range_len > 0 {
                        if *start == 0 {
                            self.temperature.probe(file)?;
                        }
                        let shared = self.segments.shared_front();
                        let (file, offset) = shared.ok_or(TreeError::Changed)?;
                        sink.range(file, offset, range_len);
                        range_len
                    } else if pulled > 0 && room_len < REST_LEN_MAX && (room_len as u64) < left {
                        break;
                    } else {
                        let len = read(
                            file,
                            up_to(sink.room(), left.min(len_max - pulled)),
                            *start,
                            &mut self.temperature,
                        )?;
                        if len == 0 {
                            return Err(TreeError::Short {
                                announced: *size,
                                found: *start,
                            });
                        }
                        sink.advance(len);
                        len as u64
                    }
                }
                // Segments are skipped only before the target of a skip, so no skipped segment can
                // be at the front here.
                Some(Segment::Skipped(_)) => return Err(TreeError::Changed),
            };
            self.segments.pass(len);
            pulled += len;
        }
        Ok(pulled)
    }

    fn read_ahead(&mut self) -> Result<(), TreeError> {
        if !self.temperature.is_cold() {
            self.reservation = None;
            return Ok(());
        }
        if self.reservation.is_none() {
            self.reservation = readahead::reserve(READAHEAD_FILE_COUNT);
        }
        while self.reservation.is_some()
            && !self.segments.has_ended()
            && self.segments.file_count() < READAHEAD_FILE_COUNT
            && self.segments.contents_len() < READAHEAD_LEN_MAX
        {
            self.segments.extend(0, true)?;
        }
        Ok(())
    }

    fn skip(&mut self, mut position: u64, offset: u64) -> Result<(), TreeError> {
        while position < offset {
            let wanted = offset - position;
            let len = match self.segments.front() {
                None if self.segments.has_ended() => return Err(TreeError::NoSuchOffset),
                None => {
                    self.segments.extend(offset, false)?;
                    continue;
                }
                Some(Segment::Framing(len)) => wanted.min(*len as u64),
                Some(Segment::Contents { start, size, .. }) => wanted.min(*size - *start),
                Some(Segment::Skipped(len)) => wanted.min(*len),
            };
            self.segments.pass(len);
            position += len;
        }
        Ok(())
    }
}

impl Temperature {
    fn is_cold(&self) -> bool {
        self.cold_count > 0
    }

    /// Records a read that did not wait.
    fn note_warm(&mut self) {
        self.cold_count = self.cold_count.saturating_sub(1);
        self.suspect_count = self.suspect_count.saturating_sub(1);
    }

    /// Checks whether a file that a sink reads would wait for the disk.
    fn probe(&mut self, file: impl AsFd) -> Result<(), TreeError> {
        if self.read_now(file, &mut [0], 0)?.is_some() {
            self.note_warm();
        }
        Ok(())
    }

    /// Reads without waiting. Returns `None` if the read would wait, was interrupted, or is not
    /// supported.
    fn read_now(
        &mut self,
        file: impl AsFd,
        buffer: &mut [u8],
        offset: u64,
    ) -> Result<Option<usize>, TreeError> {
        if self.cannot_ask {
            return Ok(None);
        }
        match sys::read_now(file, buffer, offset) {
            Ok(len) => return Ok(Some(len)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => self.note_wait(),
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => self.cannot_ask = true,
            Err(error) => return Err(error.into()),
        }
        Ok(None)
    }

    /// Records a read that would have waited.
    fn note_wait(&mut self) {
        if self.suspect_count > 0 || self.is_cold() {
            self.cold_count = COLD_FILE_COUNT;
        }
        self.suspect_count = SUSPECT_FILE_COUNT;
    }
}

/// Returns the first `len_max` bytes of `room`.
fn up_to(room: &mut [u8], len_max: u64) -> &mut [u8] {
    let len = usize::try_from(len_max)
        .unwrap_or(usize::MAX)
        .min(room.len());
    &mut room[..len]
}

fn read(
    file: impl AsFd,
    buffer: &mut [u8],
    offset: u64,
    temperature: &mut Temperature,
) -> Result<usize, TreeError> {
    match temperature.read_now(&file, buffer, offset)? {
        // `None`: the read would wait, so the blocking read below waits. `Some(0)`: the file was
        // truncated, so the read below returns 0 again.
        Some(0) | None => {}
        Some(len) => {
            if offset == 0 {
                temperature.note_warm();
            }
            return Ok(len);
        }
    }
    loop {
        match rustix::io::pread(&file, &mut *buffer, offset) {
            Err(Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}
