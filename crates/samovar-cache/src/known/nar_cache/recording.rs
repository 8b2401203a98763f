//! Writes the copy of a NAR for the NAR cache while the NAR is being sent.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use samovar_nix::NarHash;
use samovar_nix::narinfo::NarCoding;

use super::table::{Allocation, CachedNar, NarCache};

/// Average file length in bytes above which opening the files is cheaper than a copy.
const FILE_LEN_MAX: u64 = 32 * 1024;

/// Number of bytes that a copy may have beyond [`FILE_LEN_MAX`] per file: one large file among many
/// small ones is no reason to stop.
const UNDECIDED_LEN: u64 = 256 * 1024;

/// A copy in progress. Dropping it frees its file and its disk space.
#[derive(Debug)]
pub(crate) struct Recording {
    file: Arc<File>,
    allocation: Allocation,
    written_len: u64,
    nar_size: u64,
}

impl Recording {
    /// Starts to record a NAR that is about to be sent completely. Returns `None` if the NAR is not
    /// worth caching or cannot be cached now.
    pub(crate) fn start(cache: &Arc<NarCache>, nar_hash: &NarHash, nar_size: u64) -> Option<Self> {
        let key = (*nar_hash, NarCoding::Identity);
        Self::reserve(cache, key, nar_size, nar_size)
    }

    /// Starts to record a NAR that is being compressed to at most `len_max` bytes. Returns `None`
    /// if it cannot be cached now.
    pub(crate) fn start_zstd(
        cache: &Arc<NarCache>,
        nar_hash: &NarHash,
        nar_size: u64,
        len_max: u64,
    ) -> Option<Self> {
        Self::reserve(cache, (*nar_hash, NarCoding::Zstd), nar_size, len_max)
    }

    fn reserve(
        cache: &Arc<NarCache>,
        key: (NarHash, NarCoding),
        nar_size: u64,
        len_max: u64,
    ) -> Option<Self> {
        let allocation = cache.reserve(&key, len_max)?;
        Some(Self {
            file: Arc::new(cache.file()?),
            allocation,
            written_len: 0,
            nar_size,
        })
    }

    /// Writes the next bytes of an uncompressed NAR. `file_count` is the number of the NAR's files
    /// that were started so far. Returns `None` if the NAR is not worth caching, or writing failed.
    pub(crate) fn write(self, bytes: &[u8], file_count: u64) -> Option<Self> {
        let len = self.written_len + bytes.len() as u64;
        let worth_len = FILE_LEN_MAX.saturating_mul(file_count) + UNDECIDED_LEN;
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

    /// Returns the file of the copy, and the number of bytes written to it so far.
    pub(crate) fn written(&self) -> (&Arc<File>, u64) {
        (&self.file, self.written_len)
    }

    /// Adds the complete copy to the cache. The caller has checked that the hash of the NAR is the
    /// registered one. Returns `None` if the copy is incomplete or there is no capacity for it.
    pub(crate) fn finish(mut self) -> Option<Arc<CachedNar>> {
        let is_whole = match self.allocation.key.1 {
            NarCoding::Identity => self.written_len == self.allocation.len,
            NarCoding::Zstd => {
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
        };
        is_whole.then(|| cache.insert(cached))?
    }
}
