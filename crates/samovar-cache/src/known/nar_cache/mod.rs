//! The NAR cache: copies on disk of NARs that consist of many small files, of compressed NARs,
//! and of NARs of upstream caches.
//!
//! # Theory of operation
//!
//! Sending such a NAR from the store means opening each of its files. Its first complete download
//! writes a copy to an unnamed file (`O_TMPFILE`). The kernel frees that file however the process
//! ends: no cleanup is needed, and no data on the disk is trusted after a restart. The bytes are
//! hashed as they are written, and the copy is kept if the hash matches the registered one. So the
//! copy stays valid even if the store files change. Later downloads and ranges are sent from the
//! page cache with `sendfile`.
//!
//! If the files were verified before, for example before a restart, they are copied without being
//! hashed again. Such a copy is used only while the path has the same root, and it is dropped if
//! the path is marked as damaged.
//!
//! A NAR that is sent in zstd is cached whatever its files are: compressing it again costs more
//! than the disk space. Its compressed length is known only at the end.
//!
//! The file of an upstream cache is cached as it has arrived, after its NAR was verified.
//!
//! If writing fails, the copy is dropped and the response continues.
//!
//! # Limits
//!
//! | what | value | why |
//! | --- | --- | --- |
//! | size of all entries | 1 GiB, or an eighth of the free space if less | can be configured |
//! | size of a NAR | at most half the cache's size; uncompressed, at least 256 KiB | a smaller NAR is sent in one buffer |
//! | average size of its files | 32 KiB, plus 256 KiB or a sixteenth of the NAR in sum | above, opening them is cheaper |
//! | number of its files, estimated from the first piece | at least 64 | below, opening them is cheaper |
//! | entries, and copies in progress | each 1/32 of the descriptors, at most 4096 | one per file |
//! | disk space allocated at once | 4 MiB | limits how much an aborted download can evict |
//! | pause in writing after an error | one minute | not each request should try a full disk |

mod recording;
mod table;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate};
use rustix::io::Errno;
use samovar_http::{Batch, Body, Progress, Source};
use samovar_nix::NarHash;
use samovar_nix::narinfo::Compression;
use samovar_store::Identity;

use crate::known::row::Row;
use crate::sys;
pub(crate) use recording::{Candidate, Recording};
pub(crate) use table::{CachedNar, CopiedFiles, Form, Key, NarCache};

/// Maximum number of bytes of a copy that are added to a batch at once.
const RANGE_LEN_MAX: u64 = 512 * 1024;

/// The open directory in which the NAR cache stores its copies, and the configured size of the
/// cache.
#[derive(Debug)]
pub struct NarCacheDirectory {
    directory: OwnedFd,
    len_max: Option<u64>,
}

impl NarCacheDirectory {
    /// Opens the directory. `len_max` is the size of the cache in bytes; `None`: 1 GiB, or an
    /// eighth of the free space if that is less.
    ///
    /// # Errors
    ///
    /// If no unnamed file can be created there.
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
        sys::is_in_memory(&self.directory)
    }

    /// Whether the configured size exceeds the size of the file system, which is a configuration
    /// mistake.
    ///
    /// # Errors
    ///
    /// Errors of `statfs`.
    pub fn is_larger_than_its_disk(&self) -> io::Result<bool> {
        let space = rustix::fs::fstatvfs(&self.directory)?;
        let disk_len = space.f_blocks.saturating_mul(space.f_frsize);
        Ok(self.len_max.is_some_and(|len_max| len_max > disk_len))
    }

    /// Creates an unnamed file.
    fn file(&self) -> io::Result<File> {
        sys::unnamed_file(&self.directory)
    }

    /// Returns the maximum size of the cache in bytes, of which `used_len` bytes are in use at
    /// present.
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

/// Allocates disk space for a copy. A full disk is thus detected before writing, and writing is
/// cheaper.
fn allocate(file: &File, start: u64, len: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), start, len) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl NarCache {
    /// Returns the copy with this key. Returns `None` if there is no such copy, or if its NAR does
    /// not have the length `nar_size`, even though it has the hash in the row.
    pub(crate) fn get(&self, key: &Key, nar_size: u64) -> Option<Arc<CachedNar>> {
        let cached = self.find(key)?;
        (cached.nar_size == nar_size).then_some(cached)
    }

    /// Returns the copy of an upstream's file with this NAR, in this compression.
    pub(crate) fn get_upstream(
        &self,
        (nar_hash, compression): (NarHash, Compression),
    ) -> Option<Arc<CachedNar>> {
        self.find(&(nar_hash, Form::Upstream(compression)))
    }

    /// Returns the copy of an uncompressed NAR as [`get`](Self::get) does. `root` identifies the
    /// files from which the NAR would be sent otherwise: a copy that was not hashed is dropped if
    /// it was made of other files.
    pub(crate) fn get_of(
        &self,
        row: &Row,
        root: impl FnOnce() -> Option<Identity>,
    ) -> Option<Arc<CachedNar>> {
        let cached = self.get(&(row.nar_hash, Form::Identity), row.nar_size)?;
        let Some(files) = cached.files else {
            return Some(cached);
        };
        if files.hash_part != row.path.hash_part() {
            return None;
        }
        let root = root()?;
        if root == files.root {
            return Some(cached);
        }
        self.drop_copy(&cached);
        None
    }
}

impl CachedNar {
    /// Returns the length of the copy, in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.allocation.len
    }

    /// Returns the file of the copy, and its length in bytes.
    pub(crate) fn written(&self) -> (&Arc<File>, u64) {
        (&self.file, self.allocation.len)
    }

    /// Drops the copy, because it cannot be read.
    pub(crate) fn fail(&self, error: &io::Error) {
        self.allocation.cache.fail(self, error);
    }

    /// Returns the bytes of the copy from `start` to `end`.
    pub(crate) fn body(self: Arc<Self>, (start, end): (u64, u64)) -> Body {
        Body::Source(Box::new(CachedNarBody {
            cached: self,
            at: start,
            end,
        }))
    }
}

/// The body of a response that is sent from a copy in the NAR cache: a whole NAR or a range of it.
#[derive(Debug)]
struct CachedNarBody {
    cached: Arc<CachedNar>,
    at: u64,
    end: u64,
}

/// Adds bytes of a copy's file to a batch, from offset `at` to at most offset `end`. Returns the
/// offset of the first byte that was not added.
pub(crate) fn add_file(batch: &mut Batch, file: &Arc<File>, at: u64, end: u64) -> io::Result<u64> {
    let left = end.saturating_sub(at);
    if batch.takes_files() {
        let len = left.min(RANGE_LEN_MAX);
        batch.file(Arc::clone(file), at, len);
        return Ok(at + len);
    }
    let room = batch.room();
    let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(room.len());
    let len = file.read_at(&mut room[..wanted], at)?;
    if len == 0 && wanted > 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    batch.advance(len);
    Ok(at + len as u64)
}

impl CachedNarBody {
    fn fill(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        self.at = add_file(batch, &self.cached.file, self.at, self.end)?;
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
            .inspect_err(|error| self.cached.fail(error))
    }

    fn file_failed(&mut self, error: &io::Error) {
        self.cached.fail(error);
    }
}
