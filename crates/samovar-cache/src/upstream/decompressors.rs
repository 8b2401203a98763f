//! The memory of the decompressors that verify NARs of upstreams.

use std::sync::{Condvar, Mutex};

use samovar_verify::{Memory, MemoryError};

use crate::sync::{Locked, unpoisoned};

/// Maximum memory of all decompressors, in bytes. One of xz may need 64 MiB, one of zstd 128 MiB.
const LEN_MAX: u64 = 512 << 20;

/// The memory that all decompressors use together.
#[derive(Debug, Default)]
pub(super) struct Decompressors {
    used: Mutex<u64>,
    /// Signalled when memory is returned.
    returned: Condvar,
}

/// The memory of one decompressor.
#[derive(Debug)]
pub(super) struct Share<'a> {
    all: &'a Decompressors,
    len: u64,
}

impl Decompressors {
    /// Returns the share of one more decompressor, which is empty at first.
    pub(super) fn share(&self) -> Share<'_> {
        Share { all: self, len: 0 }
    }
}

impl Memory for Share<'_> {
    fn reserve(&mut self, len: u64) -> Result<(), MemoryError> {
        let more = len.saturating_sub(self.len);
        let mut used = self.all.used.locked();
        while self.len == 0 && *used > 0 && *used + more > LEN_MAX {
            used = unpoisoned(self.all.returned.wait(used));
        }
        *used += more;
        self.len += more;
        Ok(())
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        *self.all.used.locked() -= self.len;
        self.all.returned.notify_all();
    }
}
