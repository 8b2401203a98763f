//! Writes the copy of a NAR for the NAR cache while the NAR is being sent.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use samovar_nix::NarHash;
use samovar_nix::narinfo::Compression;

use super::table::{Allocation, CachedNar, CopiedFiles, Form, NAR_LEN_MIN, NarCache};

/// Average file length in bytes above which opening the files is cheaper than a copy.
const FILE_LEN_MAX: u64 = 32 * 1024;

/// Number of bytes that a copy may have beyond [`FILE_LEN_MAX`] per file, at most a sixteenth of
/// its NAR: one large file among many small ones is no reason to stop.
const UNDECIDED_LEN: u64 = 256 * 1024;

/// Number of files from which a copy saves more at the next download than writing it costs.
const FILE_COUNT_MIN: u64 = 64;

/// An uncompressed NAR whose copy may be worth its disk space: its first bytes decide that.
#[derive(Debug)]
pub(crate) struct Candidate(Allocation);

impl Candidate {
    /// Reserves the copy of a NAR that is about to be sent completely. Returns `None` if the NAR is
    /// not worth caching or cannot be cached now.
    pub(crate) fn reserve(
        cache: &Arc<NarCache>,
        nar_hash: &NarHash,
        nar_size: u64,
    ) -> Option<Self> {
        let key = (*nar_hash, Form::Identity);
        cache.reserve(&key, nar_size).map(Self)
    }

    /// Starts the copy with the first bytes of the NAR, in which `file_count` files start. Returns
    /// `None` if the NAR is not worth caching, or writing failed.
    pub(crate) fn write(self, bytes: &[u8], file_count: u64) -> Option<Recording> {
        let Self(allocation) = self;
        let nar_size = allocation.len;
        let files_len = nar_size.saturating_mul(file_count);
        if files_len / FILE_COUNT_MIN < (bytes.len() as u64).min(nar_size) {
            // A short first piece says little: the next download decides again.
            if bytes.len() as u64 >= NAR_LEN_MIN / 2 {
                allocation.cache.refuse(allocation.key);
            }
            return None;
        }
        Recording::create(allocation, nar_size)?.write(bytes, file_count)
    }
}

/// A copy in progress. Dropping it frees its file and its disk space.
#[derive(Debug)]
pub(crate) struct Recording {
    file: Arc<File>,
    allocation: Allocation,
    written_len: u64,
    nar_size: u64,
}

impl Recording {
    /// Starts to record a NAR that is being compressed to at most `len_max` bytes. Returns `None`
    /// if it cannot be cached now.
    pub(crate) fn start_zstd(
        cache: &Arc<NarCache>,
        nar_hash: &NarHash,
        nar_size: u64,
        len_max: u64,
    ) -> Option<Self> {
        let key = (*nar_hash, Form::Zstd);
        Self::create(cache.reserve(&key, len_max)?, nar_size)
    }

    /// Starts to record the file of an upstream cache with `len` bytes. Returns `None` if it cannot
    /// be cached now.
    pub(crate) fn start_upstream(
        cache: &Arc<NarCache>,
        (nar_hash, compression): (&NarHash, Compression),
        nar_size: u64,
        len: u64,
    ) -> Option<Self> {
        let key = (*nar_hash, Form::Upstream(compression));
        Self::create(cache.reserve(&key, len)?, nar_size)
    }

    fn create(allocation: Allocation, nar_size: u64) -> Option<Self> {
        Some(Self {
            file: Arc::new(allocation.cache.file()?),
            allocation,
            written_len: 0,
            nar_size,
        })
    }

    /// Writes the next bytes of an uncompressed NAR. `file_count` is the number of the NAR's files
    /// that were started so far. Returns `None` if the NAR is not worth caching, or writing failed.
    pub(crate) fn write(self, bytes: &[u8], file_count: u64) -> Option<Self> {
        let len = self.written_len + bytes.len() as u64;
        let undecided_len = UNDECIDED_LEN.min(self.nar_size / 16);
        let worth_len = FILE_LEN_MAX.saturating_mul(file_count) + undecided_len;
        if len > self.allocation.len || len > worth_len {
            self.allocation.cache.refuse(self.allocation.key);
            return None;
        }
        self.append(bytes)
    }

    /// Writes the next bytes. Returns `None` if writing failed, or there is no disk space.
    pub(crate) fn append(mut self, bytes: &[u8]) -> Option<Self> {
        let len = self.written_len + bytes.len() as u64;
        self.allocation.grow(&self.file, len)?;
        if let Err(error) = self.file.write_all_at(bytes, self.written_len) {
            self.allocation.cache.note_failure(&error);
            return None;
        }
        self.written_len = len;
        Some(self)
    }

    /// Pauses writing to the NAR cache, because the copy cannot be read.
    pub(crate) fn fail(&self, error: &io::Error) {
        self.allocation.cache.note_failure(error);
    }

    /// Returns the file of the copy, and the number of bytes written to it so far.
    pub(crate) fn written(&self) -> (&Arc<File>, u64) {
        (&self.file, self.written_len)
    }

    /// Adds the complete copy to the cache. `files`: the files that were copied; `None` if the hash
    /// of the copy was compared with the registered one. Returns `None` if the copy is incomplete
    /// or there is no capacity for it.
    pub(crate) fn finish(mut self, files: Option<CopiedFiles>) -> Option<Arc<CachedNar>> {
        let is_whole = match self.allocation.key.1 {
            Form::Identity => self.written_len == self.allocation.len,
            Form::Zstd | Form::Upstream(_) => {
                let shrunk = self.allocation.shrink(&self.file, self.written_len);
                shrunk
                    .inspect_err(|error| self.allocation.cache.note_failure(error))
                    .is_ok()
            }
        };
        let cache = Arc::clone(&self.allocation.cache);
        let cached = CachedNar {
            file: self.file,
            allocation: self.allocation,
            nar_size: self.nar_size,
            files,
        };
        is_whole.then(|| cache.insert(cached))?
    }
}
