//! The recording of a NAR into the NAR cache.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use samovar_nix::NarHash;

use super::table::{Allocation, CachedNar, NarCache};

/// The average file length, in bytes, above which reading the files costs less than a copy.
const FILE_LEN_MAX: u64 = 32 * 1024;

/// Bytes before the average counts: there may be a large file among many small ones.
const UNDECIDED_LEN: u64 = 256 * 1024;

/// The copy of a NAR while it is sent. A dropped recording leaves nothing behind.
#[derive(Debug)]
pub(crate) struct Recording {
    file: File,
    allocation: Allocation,
    written_len: u64,
    cache: Arc<NarCache>,
}

impl Recording {
    /// Begins the recording of a NAR that is about to be sent whole. `None`: it is not worth an
    /// entry.
    pub(crate) fn start(cache: &Arc<NarCache>, nar_hash: &NarHash, nar_size: u64) -> Option<Self> {
        let (file, allocation) = cache.start(nar_hash, nar_size)?;
        Some(Self {
            file,
            allocation,
            written_len: 0,
            cache: Arc::clone(cache),
        })
    }

    /// Writes the next bytes. The NAR has begun `file_count` files so far. `None`: it is not worth
    /// an entry, or cannot be written.
    pub(crate) fn write(mut self, bytes: &[u8], file_count: u64) -> Option<Self> {
        let len = self.written_len + bytes.len() as u64;
        let worth_len = FILE_LEN_MAX.saturating_mul(file_count) + UNDECIDED_LEN;
        if len > self.allocation.len || len > worth_len {
            self.cache.refuse(self.allocation.nar_hash);
            return None;
        }
        self.allocation.grow(&self.file, len)?;
        if let Err(error) = self.file.write_all_at(bytes, self.written_len) {
            self.cache.note_failure(&error);
            return None;
        }
        self.written_len = len;
        Some(self)
    }

    /// Adds the entry: the bytes were all, and have the registered hash.
    pub(crate) fn finish(self) {
        if self.written_len == self.allocation.len {
            let file = Arc::new(self.file);
            let allocation = self.allocation;
            self.cache.insert(CachedNar { file, allocation });
        }
    }
}
