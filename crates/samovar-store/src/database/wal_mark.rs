//! Whose WAL lies beside the database.
//!
//! As long as anybody has the database open, and be it us alone, the WAL stays when the last
//! writer leaves, with commits that are in no other file. Who restores a backup then, with Nix
//! stopped and all due care, puts a database beside a WAL that goes on from another one. SQLite
//! cannot tell, and reads both together: rows of before, rows of the backup, or pages that fit
//! nowhere. So what the WAL belongs to is remembered when the database is found to be another one,
//! and the two are not read together. Nix, when it is started, does; after that the WAL is a new
//! one.
//!
//! A database that was written over is told from one that a checkpoint has written to by the notes
//! that a checkpoint leaves in the WAL index.
//!
//! # Source
//!
//! SQLite file format documentation, section 4.1 (header of the WAL); `src/wal.c`: `walCheckpoint`,
//! `struct WalCkptInfo`.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use super::connection::beside;
use super::session::Session;

/// The WAL's header. A shorter one, or no longer one, has no commits.
const HEADER_LEN: u64 = 32;

/// Two numbers that are new each time the WAL begins anew.
const SALTS: u64 = 16;

/// A WAL from one beginning to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wal {
    file: (u64, u64),
    salts: [u8; 8],
}

/// A WAL, and the database that it goes on from.
#[derive(Debug, Clone, Copy)]
pub(super) struct WalMark {
    wal: Wal,
    /// `None`: one that is no more, because it was written over.
    database: Option<(u64, u64)>,
}

/// What a checkpoint changes, and a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Content {
    len: u64,
    modified: (i64, i64),
}

impl Content {
    pub(super) fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self {
            len: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }
}

impl Wal {
    /// The WAL beside a database, if it has commits.
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

impl WalMark {
    /// What the WAL of a session belongs to, when its file is not what it was.
    pub(super) fn of(session: &Session, path: &Path) -> Option<Self> {
        if !session.source().is_wal() {
            return None;
        }
        let wal = Wal::beside(path)?;
        let database = (!is_written_over(session, path)).then_some(session.file());
        Some(Self { wal, database })
    }

    /// Whether the WAL beside the database is this one, and the database is not the WAL's.
    pub(super) fn forbids(&self, path: &Path, database: (u64, u64)) -> bool {
        self.database != Some(database) && Wal::beside(path) == Some(self.wal)
    }
}

/// Only where that is certain: a checkpoint says how far it wants to get before it writes anything.
fn is_written_over(session: &Session, path: &Path) -> bool {
    let is_same_file = std::fs::metadata(path)
        .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == session.file());
    // Before it is seen whether there was a checkpoint.
    let has_other_content = Content::of(path) != session.content;
    let last = *session.checkpoint();
    is_same_file
        && has_other_content
        && last.is_some_and(|last| last.is_complete())
        && session.source().checkpoint() == last
}
