//! Freshness tokens: detect commits without SQL.
//!
//! # Theory of operation
//!
//! **WAL mode.** The first 96 bytes of `db.sqlite-shm` are two copies of the WAL-index header. A
//! commit becomes visible when a writer changes them, and SQLite itself compares these bytes to
//! decide whether a connection's cached pages are valid. While this process has a connection open
//! the file cannot be replaced, so one `pread` of an open descriptor detects commits. Two copies
//! that differ mean a commit in progress or an interrupted one: then there is no token, and the
//! caller runs SQL.
//!
//! **Rollback mode.** Bytes 24 to 28 of the database are the file change counter, which every
//! commit increments. Rolling back an interrupted commit can set the counter back, so a reader
//! takes the token before and after its read and trusts it only if both are equal. A backup copied
//! over the file sets it back too, and as many commits restore its value: so the file's change time
//! is part of the token.
//!
//! **WAL mode without a WAL.** A reader that may not create the WAL index reads the file alone,
//! while the WAL is missing or empty. The next commit fills the WAL, and there is no token from
//! then on. A checkpoint may empty the WAL again, but it also changes the file, and then the token
//! differs. The token has the same fields as in rollback mode.
//!
//! **Immutable database.** The token is a constant.
//!
//! **Blocking.** Every process that has the database open maps the WAL index into memory, so its
//! first page is in the page cache and reading it does not wait for a disk. A database in rollback
//! mode is usually cached, and a network file system may always block.
//! [`TokenSource::read_at_once`] uses `RWF_NOWAIT`. File systems without support for it are either
//! in memory or overlays, which are read directly, or network and FUSE file systems, which are not
//! read without permission to block.
//!
//! # Quirks
//!
//! A header whose salts are zero was written by a process that found an empty WAL, and two such
//! states are indistinguishable. That matters only to a reader without write permission, which
//! cannot lock the file against re-initialisation: it adds the file's change time to the token.
//!
//! Before Linux 6.13 change times have a granularity of milliseconds. If a backup is copied over
//! the file within the same tick as the last commit read, and as many commits follow, the token
//! does not change.
//!
//! # Source
//!
//! SQLite 3.50, `src/wal.c`: `struct WalIndexHdr`, `walIndexTryHdr`, `walIndexWriteHdr`; file
//! format documentation, section 1.3.7 ("File change counter").

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use super::connection::{beside, is_empty_or_missing};
use super::shared_file::SharedFile;
use crate::sys;

const HEADER_LEN: usize = 48;
const TOKEN_LEN: usize = 2 * HEADER_LEN;
const IS_INIT: usize = 12;
const SALTS: std::ops::Range<usize> = 32..40;
const CHANGE_COUNTER: u64 = 24;
const BACKFILLED: u64 = 96;
const BACKFILL_ATTEMPTED: u64 = 128;

/// A version of the database's contents: equal tokens mean no commit in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token {
    bytes: [u8; TOKEN_LEN],
    /// Change time of the file in nanoseconds, where the bytes are not sufficient.
    changed_ns: i128,
}

/// Checkpoint progress: WAL frames copied to the database, and attempted, for a WAL with these
/// salts. Compared only, never interpreted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Progress {
    salts: [u8; 8],
    done: [u8; 4],
    wanted: [u8; 4],
}

impl Progress {
    /// Returns whether no checkpoint can be in progress.
    pub(super) fn is_complete(&self) -> bool {
        self.done == self.wanted
    }
}

/// The source of tokens of one session.
#[derive(Debug)]
pub(crate) struct TokenSource {
    kind: Kind,
    nonblocking: Nonblocking,
    retired: AtomicBool,
}

#[derive(Debug)]
enum Kind {
    WalIndex { file: SharedFile, lockable: bool },
    ChangeCounter { file: SharedFile },
    UnusedWal { file: SharedFile, wal: PathBuf },
    Constant,
}

/// Method by which [`TokenSource::read_at_once`] reads without blocking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nonblocking {
    /// Reads with `RWF_NOWAIT`.
    Nowait,
    /// Reads directly, because the file is in memory.
    Direct,
    /// Does not read at all, because reading may wait for another machine or process.
    Unsupported,
}

impl TokenSource {
    /// Creates the token source of a database in WAL mode; a connection must be open and have read.
    pub(crate) fn wal_index(path: &Path) -> io::Result<Self> {
        let file = SharedFile::open(path)?;
        let lockable = rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
        Ok(Self::new(Kind::WalIndex { file, lockable }))
    }

    /// Creates the token source of a database in a rollback mode.
    pub(crate) fn change_counter(path: &Path) -> io::Result<Self> {
        Ok(Self::new(Kind::ChangeCounter {
            file: SharedFile::open(path)?,
        }))
    }

    /// Creates the token source of a database in WAL mode that is read without its WAL, which is
    /// missing or empty.
    pub(crate) fn unused_wal(path: &Path) -> io::Result<Self> {
        Ok(Self::new(Kind::UnusedWal {
            file: SharedFile::open(path)?,
            wal: beside(path, "-wal"),
        }))
    }

    /// Creates the source of an immutable database.
    pub(crate) fn constant() -> Self {
        Self::new(Kind::Constant)
    }

    fn new(kind: Kind) -> Self {
        Self {
            nonblocking: match &kind {
                Kind::WalIndex { file, .. }
                | Kind::ChangeCounter { file }
                | Kind::UnusedWal { file, .. } => {
                    file.get().map_or(Nonblocking::Unsupported, nonblocking)
                }
                Kind::Constant => Nonblocking::Direct,
            },
            kind,
            retired: AtomicBool::new(false),
        }
    }

    /// Returns the current token, `None` during a commit. May wait for a disk.
    pub(crate) fn read(&self) -> Option<Token> {
        self.read_with(|file, bytes, offset| file.read_exact_at(bytes, offset).ok())
    }

    /// Returns the current token, without blocking; `None` also if reading would block.
    pub(crate) fn read_at_once(&self) -> Option<Token> {
        match self.nonblocking {
            Nonblocking::Nowait => self.read_with(|file, bytes, offset| {
                let wanted = bytes.len();
                let read = sys::read_now(file, bytes, offset).ok()?;
                (read == wanted).then_some(())
            }),
            Nonblocking::Direct => self.read(),
            Nonblocking::Unsupported => None,
        }
    }

    #[inline]
    fn read_with(&self, read: impl FnOnce(&File, &mut [u8], u64) -> Option<()>) -> Option<Token> {
        if self.is_retired() {
            return None;
        }
        let mut token = Token {
            bytes: [0; TOKEN_LEN],
            changed_ns: 0,
        };
        match &self.kind {
            Kind::WalIndex { file, lockable } => {
                read(file.get()?, &mut token.bytes, 0)?;
                if !is_consistent(&token.bytes) {
                    return None;
                }
                if !lockable && token.bytes[SALTS].iter().all(|byte| *byte == 0) {
                    token.changed_ns = changed_ns(file)?;
                }
            }
            Kind::ChangeCounter { file } | Kind::UnusedWal { file, .. } => {
                // Check the WAL first: a checkpoint that empties it changes the file before.
                if !self.is_usable() {
                    return None;
                }
                read(file.get()?, &mut token.bytes[..4], CHANGE_COUNTER)?;
                token.changed_ns = changed_ns(file)?;
            }
            Kind::Constant => {}
        }
        Some(token)
    }

    /// Returns the file's change counter in rollback mode; otherwise, or if the read fails, `None`.
    pub(super) fn commit_count(&self) -> Option<u32> {
        let Kind::ChangeCounter { file } = &self.kind else {
            return None;
        };
        let mut count = [0; 4];
        file.get()?.read_exact_at(&mut count, CHANGE_COUNTER).ok()?;
        Some(u32::from_be_bytes(count))
    }

    /// Returns the checkpoint progress in WAL mode; otherwise, or if the read fails, `None`.
    pub(super) fn checkpoint(&self) -> Option<Progress> {
        let Kind::WalIndex { file, .. } = &self.kind else {
            return None;
        };
        let mut progress = Progress::default();
        let file = file.get()?;
        let read = |bytes: &mut [u8], offset| file.read_exact_at(bytes, offset).ok();
        read(&mut progress.done, BACKFILLED)?;
        read(&mut progress.wanted, BACKFILL_ATTEMPTED)?;
        // Read the salts last: they change when the two numbers start again from zero.
        read(&mut progress.salts, u64::try_from(SALTS.start).ok()?)?;
        Some(progress)
    }

    /// Returns whether a token read before SQL must be confirmed by one read after it.
    pub(crate) fn needs_confirmation(&self) -> bool {
        matches!(
            self.kind,
            Kind::ChangeCounter { .. } | Kind::UnusedWal { .. }
        )
    }

    /// Returns whether the database may be read in the way of this source. Returns `false` from the
    /// first commit to a WAL that was unused.
    pub(super) fn is_usable(&self) -> bool {
        match &self.kind {
            Kind::UnusedWal { wal, .. } => is_empty_or_missing(wal),
            _ => true,
        }
    }

    /// Returns whether the database is in WAL mode.
    pub(crate) fn is_wal(&self) -> bool {
        matches!(self.kind, Kind::WalIndex { .. })
    }

    /// Returns the device and inode of the file from which tokens are read; `None` for an immutable
    /// database, whose token is a constant.
    pub(crate) fn file_key(&self) -> Option<(u64, u64)> {
        match &self.kind {
            Kind::WalIndex { file, .. }
            | Kind::ChangeCounter { file }
            | Kind::UnusedWal { file, .. } => Some(file.key()),
            Kind::Constant => None,
        }
    }

    /// Invalidates all tokens of this source: the database was replaced or may have been.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    /// Returns whether the source was retired.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }
}

fn nonblocking(file: &File) -> Nonblocking {
    match sys::read_now(file, &mut [0], 0) {
        Ok(_) | Err(Errno::AGAIN) => return Nonblocking::Nowait,
        Err(_) => {}
    }
    if sys::is_remote(file).unwrap_or(true) {
        Nonblocking::Unsupported
    } else {
        Nonblocking::Direct
    }
}

fn is_consistent(bytes: &[u8; TOKEN_LEN]) -> bool {
    let (first, second) = bytes.split_at(HEADER_LEN);
    first == second && bytes[IS_INIT] != 0
}

fn changed_ns(file: &SharedFile) -> Option<i128> {
    let metadata = file.get()?.metadata().ok()?;
    Some(i128::from(metadata.ctime()) * 1_000_000_000 + i128::from(metadata.ctime_nsec()))
}
