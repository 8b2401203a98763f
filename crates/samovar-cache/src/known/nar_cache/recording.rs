//! A copy that is being made.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use samovar_nix::NarHash;

use super::table::{Kept, Place, Table};

/// Above this average the files of a tree cost less than its copy.
const FILE_LEN_MAX: u64 = 32 * 1024;

/// So many bytes may be a large file among many small ones.
const UNDECIDED_LEN: u64 = 256 * 1024;

/// The copy of a NAR while it is sent. Dropped, it leaves nothing behind.
#[derive(Debug)]
pub(crate) struct Recording {
    file: File,
    place: Place,
    written_len: u64,
    table: Arc<Table>,
}

impl Recording {
    pub(super) fn start(table: &Arc<Table>, nar_hash: &NarHash, nar_size: u64) -> Option<Self> {
        let (file, place) = table.place(nar_hash, nar_size)?;
        Some(Self {
            file,
            place,
            written_len: 0,
            table: Arc::clone(table),
        })
    }

    /// Takes the next bytes, of a NAR that has begun `file_count` files so far. `None`: it is not
    /// worth keeping, or cannot be.
    pub(crate) fn write(mut self, bytes: &[u8], file_count: u64) -> Option<Self> {
        let len = self.written_len + bytes.len() as u64;
        let worth_len = FILE_LEN_MAX.saturating_mul(file_count) + UNDECIDED_LEN;
        if len > self.place.len || len > worth_len {
            self.table.refuse(self.place.nar_hash);
            return None;
        }
        self.place.grow(&self.file, len)?;
        if let Err(error) = self.file.write_all_at(bytes, self.written_len) {
            self.table.note_failure(&error);
            return None;
        }
        self.written_len = len;
        Some(self)
    }

    /// The bytes taken were all, and have the hash that the place is for.
    pub(crate) fn keep(self) {
        if self.written_len == self.place.len {
            let file = Arc::new(self.file);
            let place = self.place;
            self.table.keep(Kept { file, place });
        }
    }
}
