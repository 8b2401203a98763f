//! [`Progress`]: counters for progress bars.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of an operation in progress, which another thread may read.
#[derive(Debug, Default)]
pub struct Progress {
    bytes: AtomicU64,
    files: AtomicU64,
}

impl Progress {
    /// Returns the number of bytes of the NAR that were processed.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Returns the number of files that are complete.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.files.load(Relaxed)
    }

    pub(crate) fn add_bytes(&self, count: usize) {
        self.bytes.fetch_add(count as u64, Relaxed);
    }

    pub(crate) fn add_files(&self, count: usize) {
        self.files.fetch_add(count as u64, Relaxed);
    }
}
