//! The bytes of a NAR, in order, into the caller's buffer.
//!
//! # Theory of operation
//!
//! While contents are in the page cache, files are opened when their turn comes. Reads that say
//! "this would wait for the disk" (`RWF_NOWAIT`), two of them close together, turn looking ahead
//! on: from then on the next files, across directories, are opened and the kernel is asked to fetch
//! them, so that the disk works on many at once. It stays on until [`COLD_FILE_COUNT`] files in a
//! row came without waiting. On a cold tree that is several times as fast as one file after
//! another; on a warm one it costs nothing, because it does not happen.

use std::io::{self, IoSliceMut};

use rustix::fd::OwnedFd;
use rustix::io::{Errno, ReadWriteFlags};

use super::TreeError;
use super::ahead::Reservation;
use super::plan::{Plan, Segment};
use super::walk::Walk;
use crate::daemon::{RemoteNar, RemoteNarReader};

/// Files opened ahead while contents come from the disk.
const AHEAD_FILE_COUNT: usize = 64;

/// Bytes asked of the disk ahead.
const AHEAD_LEN_MAX: u64 = 16 << 20;

/// Files in a row that must come without waiting before looking ahead ends. Many, because the ones
/// that were fetched ahead come without waiting, too.
const COLD_FILE_COUNT: u32 = 256;

/// How close two reads that would wait must be. A single one says little: the kernel has other
/// reasons to say so, and in a warm tree that happens every few hundred files.
const SUSPECT_FILE_COUNT: u32 = 8;

/// A buffer is full when less than this of it is free and the next contents do not fit: two reads
/// of one small file cost more than a slightly shorter buffer.
const REST_LEN_MAX: usize = 16 * 1024;

/// Reads a NAR.
#[derive(Debug)]
pub struct NarReader {
    source: Source,
    position: u64,
    failed: bool,
}

#[derive(Debug)]
enum Source {
    Files(Box<FileSource>),
    Daemon(Box<RemoteNarReader>),
}

#[derive(Debug)]
struct FileSource {
    plan: Plan,
    temperature: Temperature,
    /// Present while the reader looks ahead.
    reservation: Option<Reservation>,
}

/// Whether contents come from memory, as far as reads have told.
#[derive(Debug)]
struct Temperature {
    /// Files that must come without waiting before looking ahead ends; 0: it is off.
    cold_count: u32,
    /// Files in which another read that would wait turns looking ahead on.
    suspect_count: u32,
    /// Whether the file system can say that a read would wait.
    can_ask: bool,
}

impl NarReader {
    pub(super) fn of_walk(walk: Walk) -> Result<Self, TreeError> {
        let temperature = Temperature {
            cold_count: 0,
            suspect_count: 0,
            can_ask: true,
        };
        let files = FileSource {
            plan: Plan::new(walk)?,
            temperature,
            reservation: None,
        };
        Ok(Self {
            source: Source::Files(Box::new(files)),
            position: 0,
            failed: false,
        })
    }

    pub(super) fn of_daemon(nar: &RemoteNar) -> Result<Self, TreeError> {
        let reader = nar.open().map_err(TreeError::Daemon)?;
        Ok(Self {
            source: Source::Daemon(Box::new(reader)),
            position: 0,
            failed: false,
        })
    }

    /// How many bytes were read or skipped.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Fills the buffer with the next bytes and says how many there are: 0 at the end of the NAR.
    /// Fewer than the buffer has room for does not mean the end.
    ///
    /// Blocks while the disk is read. Give it large buffers (256 KiB): contents are read straight
    /// into them.
    ///
    /// # Errors
    ///
    /// Any [`TreeError`]; bytes of this call are lost, and every later call fails, too.
    pub fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, TreeError> {
        if self.failed {
            return Err(TreeError::Changed);
        }
        let result = match &mut self.source {
            Source::Files(files) => files.fill(buffer),
            Source::Daemon(daemon) => daemon.fill(buffer).map_err(TreeError::Daemon),
        };
        match &result {
            Ok(len) => self.position += *len as u64,
            Err(_) => self.failed = true,
        }
        result
    }

    /// Goes on at `offset`, without reading what lies before it, where the files are on this
    /// machine.
    ///
    /// # Errors
    ///
    /// [`TreeError::NoSuchOffset`] when that lies behind, or beyond the end; any other
    /// [`TreeError`].
    pub fn skip_to(&mut self, offset: u64) -> Result<(), TreeError> {
        let Some(len) = offset.checked_sub(self.position) else {
            return Err(TreeError::NoSuchOffset);
        };
        if self.failed {
            return Err(TreeError::Changed);
        }
        let result = match &mut self.source {
            Source::Files(files) => files.skip(self.position, offset),
            Source::Daemon(daemon) => daemon.skip(len).map_err(TreeError::Daemon),
        };
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
    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, TreeError> {
        let mut filled = 0;
        while filled < buffer.len() {
            self.look_ahead()?;
            let free = &mut buffer[filled..];
            let free_len = free.len() as u64;
            let len = match self.plan.front() {
                None if self.plan.has_ended() => break,
                None => {
                    self.plan.extend(0, self.temperature.is_cold())?;
                    continue;
                }
                Some(Segment::Framing(len)) => {
                    let framing_len = free.len().min(*len);
                    let framing = self.plan.framing(framing_len);
                    free[..framing.len()].copy_from_slice(framing);
                    framing.len()
                }
                Some(Segment::Contents { start, size, .. })
                    if filled > 0 && free.len() < REST_LEN_MAX && free_len < *size - *start =>
                {
                    break;
                }
                Some(Segment::Contents { file, start, size }) => {
                    let wanted =
                        usize::try_from((*size - *start).min(free_len)).unwrap_or(free.len());
                    let free = &mut free[..wanted];
                    let len = read(file, free, *start, &mut self.temperature)?;
                    if len == 0 {
                        return Err(TreeError::Short {
                            announced: *size,
                            found: *start,
                        });
                    }
                    len
                }
                // Skipping ends at its goal, and only what lies before the goal is not opened.
                Some(Segment::Skipped(_)) => return Err(TreeError::Changed),
            };
            self.plan.pass(len as u64);
            filled += len;
        }
        Ok(filled)
    }

    fn look_ahead(&mut self) -> Result<(), TreeError> {
        if !self.temperature.is_cold() {
            self.reservation = None;
            return Ok(());
        }
        if self.reservation.is_none() {
            self.reservation = Reservation::try_new(AHEAD_FILE_COUNT);
        }
        while self.reservation.is_some()
            && !self.plan.has_ended()
            && self.plan.file_count() < AHEAD_FILE_COUNT
            && self.plan.contents_len() < AHEAD_LEN_MAX
        {
            self.plan.extend(0, true)?;
        }
        Ok(())
    }

    fn skip(&mut self, mut position: u64, offset: u64) -> Result<(), TreeError> {
        while position < offset {
            let wanted = offset - position;
            let len = match self.plan.front() {
                None if self.plan.has_ended() => return Err(TreeError::NoSuchOffset),
                None => {
                    self.plan.extend(offset, false)?;
                    continue;
                }
                Some(Segment::Framing(len)) => wanted.min(*len as u64),
                Some(Segment::Contents { start, size, .. }) => wanted.min(*size - *start),
                Some(Segment::Skipped(len)) => wanted.min(*len),
            };
            self.plan.pass(len);
            position += len;
        }
        Ok(())
    }
}

impl Temperature {
    fn is_cold(&self) -> bool {
        self.cold_count > 0
    }

    /// A file came without waiting.
    fn note_warm(&mut self) {
        self.cold_count = self.cold_count.saturating_sub(1);
        self.suspect_count = self.suspect_count.saturating_sub(1);
    }

    /// A read would have waited.
    fn note_wait(&mut self) {
        if self.suspect_count > 0 || self.is_cold() {
            self.cold_count = COLD_FILE_COUNT;
        }
        self.suspect_count = SUSPECT_FILE_COUNT;
    }
}

fn read(
    file: &OwnedFd,
    buffer: &mut [u8],
    offset: u64,
    temperature: &mut Temperature,
) -> Result<usize, TreeError> {
    if temperature.can_ask {
        let mut slices = [IoSliceMut::new(buffer)];
        match rustix::io::preadv2(file, &mut slices, offset, ReadWriteFlags::NOWAIT) {
            Ok(len) if len > 0 => {
                if offset == 0 {
                    temperature.note_warm();
                }
                return Ok(len);
            }
            // Nothing at the end of a file that became shorter: the read below tells.
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => temperature.note_wait(),
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => temperature.can_ask = false,
            Err(error) => return Err(error.into()),
        }
    }
    loop {
        match rustix::io::pread(file, &mut *buffer, offset) {
            Err(Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}
