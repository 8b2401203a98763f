//! Writes the copy of a NAR for the NAR cache while the NAR is being sent.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use samovar_nix::NarHash;

use super::table::{Allocation, CachedNar, NarCache};

/// Average file length in bytes above which opening the files is cheaper than a copy.
const FILE_LEN_MAX: u64 = 32 * 1024;

/// NAR bytes in addition to the average: one large file among many small ones is no reason to stop.
const UNDECIDED_LEN: u64 = 256 * 1024;

/// A copy in progress. Dropping it frees its file and its disk space.
#[derive(Debug)]
pub(crate) struct Recording {
    file: File,
    allocation: Allocation,
    written_len: u64,
}

impl Recording {
    /// Starts to record a NAR that is about to be sent completely. `None`: the NAR is not worth
    /// caching.
    pub(crate) fn start(cache: &Arc<NarCache>, nar_hash: &NarHash, nar_size: u64) -> Option<Self> {
        let allocation = cache.reserve(nar_hash, nar_size)?;
        Some(Self {
            file: cache.file()?,
            allocation,
            written_len: 0,
        })
    }

    /// Writes the next bytes. `file_count`: number of files in the NAR that were started so far.
    /// `None`: the NAR is not worth caching, or writing failed.
    pub(crate) fn write(mut self, bytes: &[u8], file_count: u64) -> Option<Self> {
        let len = self.written_len + bytes.len() as u64;
        let worth_len = FILE_LEN_MAX.saturating_mul(file_count) + UNDECIDED_LEN;
        if len > self.allocation.len || len > worth_len {
            self.allocation.cache.refuse(self.allocation.nar_hash);
            return None;
        }
        self.allocation.grow(&self.file, len)?;
        if let Err(error) = self.file.write_all_at(bytes, self.written_len) {
            self.allocation.cache.note_failure(&error);
            return None;
        }
        self.written_len = len;
        Some(self)
    }

    /// Adds the complete copy to the cache. Its hash must be the registered one.
    pub(crate) fn finish(self) {
        if self.written_len == self.allocation.len {
            let cache = Arc::clone(&self.allocation.cache);
            cache.insert(CachedNar {
                file: Arc::new(self.file),
                allocation: self.allocation,
            });
        }
    }
}
