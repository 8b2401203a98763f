//! Refuses to read a WAL that belongs to a replaced database.
//!
//! While any process has the database open, this one included, the WAL stays on the disk when the
//! last writer exits. Its commits exist in no other file. If an operator then stops Nix and
//! restores a backup, a database lies beside the WAL of another one. SQLite cannot detect that, and
//! reads both together: old rows, rows of the backup, or inconsistent pages. So when a database is
//! replaced, this module records which file its WAL belongs to, and refuses to read the WAL with
//! another file. When Nix starts, it reads both, and from then on the WAL is a new one.
//!
//! The checkpoint progress in the WAL index shows whether a file was overwritten or written by a
//! checkpoint.
//!
//! # Source
//!
//! SQLite file format documentation, section 4.1 (header of the WAL); `src/wal.c`: `walCheckpoint`,
//! `struct WalCkptInfo`.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use super::connection::beside;
use super::file_state::{Content, FileState};
use super::session::Session;
use crate::sync::Locked;

/// Length of the WAL's header, in bytes. A file of at most this length has no commits.
const HEADER_LEN: u64 = 32;

/// Offset of the salts: two numbers that change each time the WAL is reset.
const SALTS: u64 = 16;

/// Identity of a WAL between two resets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wal {
    file: (u64, u64),
    salts: [u8; 8],
}

/// A WAL and the database file that it belongs to.
#[derive(Debug, Clone, Copy)]
pub(super) struct StaleWal {
    wal: Wal,
    /// Device and inode; `None` if that database was overwritten.
    database: Option<(u64, u64)>,
}

impl Wal {
    /// Reads the WAL beside a database; returns `None` if it has no commits.
    fn beside(database: &Path) -> Option<Self> {
        let file = File::open(beside(database, "-wal")).ok()?;
        let metadata = file.metadata().ok()?;
        if metadata.len() <= HEADER_LEN {
            return None;
        }
        let mut salts = [0; 8];
        file.read_exact_at(&mut salts, SALTS).ok()?;
        Some(Self {
            file: (metadata.dev(), metadata.ino()),
            salts,
        })
    }
}

impl StaleWal {
    /// Reads the WAL of a session whose file has changed; returns `None` if the WAL has no commits
    /// or is not in use.
    pub(super) fn of(session: &Session, path: &Path) -> Option<Self> {
        if !session.source().is_wal() {
            return None;
        }
        let wal = Wal::beside(path)?;
        let database = (!is_written_over(session, path)).then_some(session.file());
        Some(Self { wal, database })
    }

    /// Returns whether the WAL beside the database is this one but belongs to another database.
    pub(super) fn applies_to(&self, path: &Path, database: (u64, u64)) -> bool {
        self.database != Some(database) && Wal::beside(path) == Some(self.wal)
    }
}

/// Returns whether the file was certainly overwritten by a copy, rather than changed by a
/// checkpoint: a checkpoint records its target in the WAL index before it writes.
fn is_written_over(session: &Session, path: &Path) -> bool {
    let is_same_file = FileState::of(path).is_ok_and(|state| state.file == session.file());
    // Read the contents before checking for a checkpoint.
    let has_other_content = Content::of(path) != session.content;
    let last = *session.checkpoint.locked();
    is_same_file
        && has_other_content
        && last.is_some_and(|last| last.is_complete())
        && session.source().checkpoint() == last
}
