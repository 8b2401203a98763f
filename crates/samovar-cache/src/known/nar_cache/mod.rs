//! NARs of trees of small files, kept as one file each.
//!
//! # Theory of operation
//!
//! Such a NAR costs what opening its files costs. The first one who gets it whole leaves a copy in
//! a file without a name: nothing has to be cleaned up, whatever ends the process, and nothing on
//! the disk is trusted after a start. The bytes are hashed as they are written. Only what has the
//! registered hash is kept, so it is right for ever, whatever becomes of the files: the next ones
//! who ask, for a range too, get it from the page cache by sendfile.
//!
//! Keeping is never worth an error: what cannot be written is not kept.
//!
//! # Limits
//!
//! | what | value | why |
//! | --- | --- | --- |
//! | bytes, in sum | 1 GiB, or an eighth of what is free there if that is less | or as asked for |
//! | a NAR | half of that; 256 KiB at least | not one for all; one buffer costs little |
//! | its files | 32 KiB on average, but for 256 KiB | above, writing and hashing costs more than opening |
//! | copies, and as many under way | a 32nd of the descriptors, 4096 at most | one each |
//! | taken at once | 4 MiB | who breaks off displaces no more than he has read, and that |
//! | after an error in writing | a minute | a full disk need not be tried with each request |

mod recording;
mod table;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, openat};
use rustix::io::Errno;
use samovar_http::{Batch, Progress, Source};
use samovar_nix::NarHash;

pub(crate) use recording::Recording;
use samovar_metrics::CacheStatus;
use samovar_metrics::Observer;
use table::{Kept, Table};

/// Bytes added to a batch at once.
const RANGE_LEN_MAX: u64 = 512 * 1024;

/// Where copies are, and how much they may take.
#[derive(Debug)]
pub struct KeptSpace {
    directory: OwnedFd,
    len_max: Option<u64>,
}

impl KeptSpace {
    /// Copies in `directory`, `len_max` bytes of them at most; `None`: as many as are no burden.
    ///
    /// # Errors
    ///
    /// If no file without a name can be made there.
    pub fn open(directory: &Path, len_max: Option<u64>) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(directory, flags, Mode::empty())?;
        let space = Self { directory, len_max };
        allocate(&space.file()?, 0, 1)?;
        Ok(space)
    }

    /// Whether what is written there takes memory.
    ///
    /// # Errors
    ///
    /// If the file system does not say.
    pub fn is_memory(&self) -> io::Result<bool> {
        /// `TMPFS_MAGIC` and `RAMFS_MAGIC` of Linux.
        const OF_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];
        let kind = u64::try_from(rustix::fs::fstatfs(&self.directory)?.f_type);
        Ok(kind.is_ok_and(|kind| OF_MEMORY.contains(&kind)))
    }

    /// Whether more was asked for than the whole file system has, which can only be a mistake.
    ///
    /// # Errors
    ///
    /// If the file system does not say.
    pub fn is_larger_than_its_disk(&self) -> io::Result<bool> {
        let space = rustix::fs::fstatvfs(&self.directory)?;
        let disk_len = space.f_blocks.saturating_mul(space.f_frsize);
        Ok(self.len_max.is_some_and(|len_max| len_max > disk_len))
    }

    /// A new file that nobody else can find.
    fn file(&self) -> io::Result<File> {
        // With EXCL it can never be given a name.
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(openat(&self.directory, ".", flags, mode)?.into())
    }

    /// Bytes that all copies may take, where `used_len` are taken.
    fn len_max(&self, used_len: u64) -> u64 {
        const LEN_MAX: u64 = 1 << 30;
        if let Some(len_max) = self.len_max {
            return len_max;
        }
        rustix::fs::fstatvfs(&self.directory).map_or(0, |space| {
            let free = space.f_bavail.saturating_mul(space.f_frsize);
            LEN_MAX.min(free.saturating_add(used_len) / 8)
        })
    }
}

/// Makes room for bytes of a copy. A full disk says so now, and writing costs less.
fn allocate(file: &File, start: u64, len: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), start, len) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The copies.
#[derive(Debug)]
pub(crate) struct KeptNars {
    table: Arc<Table>,
}

impl KeptNars {
    pub(crate) fn new(space: KeptSpace, observer: Arc<dyn Observer>) -> Self {
        Self {
            table: Arc::new(Table::new(space, observer)),
        }
    }

    /// The NAR from `start` to `end`, if it is kept. One of another size than `nar_size` is not
    /// that of the row, whatever the row's hash says.
    pub(crate) fn body(
        &self,
        nar_hash: &NarHash,
        nar_size: u64,
        (start, end): (u64, u64),
    ) -> Option<KeptBody> {
        let kept = self.table.find(nar_hash)?;
        (kept.place.len == nar_size).then(|| KeptBody {
            kept,
            table: Arc::clone(&self.table),
            at: start,
            end,
        })
    }

    pub(crate) fn figures(&self) -> CacheStatus {
        self.table.figures()
    }

    /// A place for the copy of a NAR that is about to be sent whole, unless it is not wanted.
    pub(crate) fn record(&self, nar_hash: &NarHash, nar_size: u64) -> Option<Recording> {
        Recording::start(&self.table, nar_hash, nar_size)
    }
}

/// A kept NAR, or a range of it, on its way.
#[derive(Debug)]
pub(crate) struct KeptBody {
    kept: Arc<Kept>,
    table: Arc<Table>,
    at: u64,
    end: u64,
}

impl KeptBody {
    fn fill(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        let left = self.end.saturating_sub(self.at);
        if batch.takes_files() {
            let len = left.min(RANGE_LEN_MAX);
            batch.file(Arc::clone(&self.kept.file), self.at, len);
            self.at += len;
        } else {
            let room = batch.room();
            let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(room.len());
            let len = self.kept.file.read_at(&mut room[..wanted], self.at)?;
            if len == 0 && wanted > 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            batch.advance(len);
            self.at += len as u64;
        }
        Ok(match self.at < self.end {
            true => Progress::More,
            false => Progress::End,
        })
    }
}

impl Source for KeptBody {
    fn len(&self) -> Option<u64> {
        Some(self.end.saturating_sub(self.at))
    }

    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        self.fill(batch)
            .inspect_err(|error| self.table.fail(&self.kept, error))
    }

    fn file_failed(&mut self, error: &io::Error) {
        self.table.fail(&self.kept, error);
    }
}
