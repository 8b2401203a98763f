//! The NAR cache: NARs of trees of small files, one file each.
//!
//! # Theory of operation
//!
//! Reading such a NAR means opening each of its files. The first complete download writes a copy to
//! an unnamed file (`O_TMPFILE`): it needs no cleanup, however the process ends, and no data on the
//! disk is trusted after a restart. The bytes are hashed as they are written, and the copy is kept
//! if the hash matches the registered one. So the copy stays valid even if the files change, and
//! later downloads and ranges are sent from the page cache with `sendfile`.
//!
//! A copy that cannot be written is dropped; the response continues.
//!
//! # Limits
//!
//! | what | value | why |
//! | --- | --- | --- |
//! | bytes of all entries | 1 GiB, or an eighth of the free space if less | or as configured |
//! | a NAR | half of that; 256 KiB at least | not one for all; one buffer costs little |
//! | its files | 32 KiB on average, plus 256 KiB | above, writing and hashing cost more than opening |
//! | entries, and as many in progress | a 32nd of the descriptors, 4096 at most | one each |
//! | bytes allocated at once | 4 MiB | an aborted download evicts no more than it has read, plus that |
//! | after a write error | a minute without writes | not each request need try a full disk |

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
use table::CachedNar;
pub(crate) use table::NarCache;

/// Bytes added to a batch at once.
const RANGE_LEN_MAX: u64 = 512 * 1024;

/// The directory of the NAR cache, and its size.
#[derive(Debug)]
pub struct NarCacheDirectory {
    directory: OwnedFd,
    len_max: Option<u64>,
}

impl NarCacheDirectory {
    /// `len_max`: the size in bytes; `None`: 1 GiB or an eighth of the free space, the lesser.
    ///
    /// # Errors
    ///
    /// If no file without a name can be created there.
    pub fn open(directory: &Path, len_max: Option<u64>) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(directory, flags, Mode::empty())?;
        let space = Self { directory, len_max };
        allocate(&space.file()?, 0, 1)?;
        Ok(space)
    }

    /// Whether the directory is on a file system in memory, tmpfs or ramfs.
    ///
    /// # Errors
    ///
    /// Errors of `statfs`.
    pub fn is_memory(&self) -> io::Result<bool> {
        /// `TMPFS_MAGIC` and `RAMFS_MAGIC` of Linux.
        const OF_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];
        let kind = u64::try_from(rustix::fs::fstatfs(&self.directory)?.f_type);
        Ok(kind.is_ok_and(|kind| OF_MEMORY.contains(&kind)))
    }

    /// Whether the configured size exceeds that of the file system, which must be a mistake.
    ///
    /// # Errors
    ///
    /// Errors of `statfs`.
    pub fn is_larger_than_its_disk(&self) -> io::Result<bool> {
        let space = rustix::fs::fstatvfs(&self.directory)?;
        let disk_len = space.f_blocks.saturating_mul(space.f_frsize);
        Ok(self.len_max.is_some_and(|len_max| len_max > disk_len))
    }

    /// A new file without a name.
    fn file(&self) -> io::Result<File> {
        // With EXCL it can never get a name.
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(openat(&self.directory, ".", flags, mode)?.into())
    }

    /// The size in bytes, of which `used_len` are in use.
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

/// Allocates disk space for a copy: a full disk is an error here, and writing costs less.
fn allocate(file: &File, start: u64, len: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), start, len) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl NarCache {
    /// The NAR from `start` to `end`, if it is cached. An entry of another size than `nar_size` is
    /// not the NAR of the row, even if the row has its hash.
    pub(crate) fn body(
        self: &Arc<Self>,
        nar_hash: &NarHash,
        nar_size: u64,
        (start, end): (u64, u64),
    ) -> Option<CachedNarBody> {
        let cached = self.find(nar_hash)?;
        (cached.allocation.len == nar_size).then(|| CachedNarBody {
            cached,
            cache: Arc::clone(self),
            at: start,
            end,
        })
    }
}

/// The body of a response from the cache: a NAR or a range of it.
#[derive(Debug)]
pub(crate) struct CachedNarBody {
    cached: Arc<CachedNar>,
    cache: Arc<NarCache>,
    at: u64,
    end: u64,
}

impl CachedNarBody {
    fn fill(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        let left = self.end.saturating_sub(self.at);
        if batch.takes_files() {
            let len = left.min(RANGE_LEN_MAX);
            batch.file(Arc::clone(&self.cached.file), self.at, len);
            self.at += len;
        } else {
            let room = batch.room();
            let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(room.len());
            let len = self.cached.file.read_at(&mut room[..wanted], self.at)?;
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

impl Source for CachedNarBody {
    fn len(&self) -> Option<u64> {
        Some(self.end.saturating_sub(self.at))
    }

    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        self.fill(batch)
            .inspect_err(|error| self.cache.fail(&self.cached, error))
    }

    fn file_failed(&mut self, error: &io::Error) {
        self.cache.fail(&self.cached, error);
    }
}
