//! The freshness token: whether anybody committed, without SQL.
//!
//! # Theory of operation
//!
//! **WAL mode.** The first 96 bytes of `db.sqlite-shm` are two copies of the WAL-index header. A
//! writer changes them in the moment its commit becomes visible, and SQLite itself decides whether
//! a connection's cached pages still hold by comparing exactly these bytes. While a connection of
//! ours is open the file cannot be replaced, so one `pread` on a descriptor kept open answers the
//! question. Two copies that differ mean a commit in progress or one that broke off: then there is
//! no token, and the caller asks SQL.
//!
//! **Rollback mode.** Bytes 24 to 28 of the database are the file change counter, which every
//! commit increments. A commit that broke off can take the counter back, so a reader takes
//! the token before and after its read and believes it only when both agree. A backup copied over
//! the file takes it back too, and after as many commits it is the same again: so the file's change
//! time is part of the token.
//!
//! **A file system without writers.** Nothing changes; the token is a constant.
//!
//! **Waiting.** The WAL index is mapped into memory by every process that has the database open, so
//! its first page is in the page cache, and reading it waits for no disk. A database in rollback
//! mode is only there most of the time, and over a network both are as near as the other end.
//! [`TokenSource::read_at_once`] asks the kernel not to wait (`RWF_NOWAIT`). Where it knows no such
//! thing, the file system is in memory or an overlay; or it is a network's or another process's,
//! and nothing of it is read at once.
//!
//! # Quirks
//!
//! A header whose salts are zero was made by an opener that found an empty WAL, and does not tell
//! one such state from another. That matters only to a reader that could not lock the file against
//! re-initialisation, one without write permission: it adds the file's change time to the token,
//! which re-initialisation renews.
//!
//! Before Linux 6.13 change times move in steps of some milliseconds. A copy within the step of the
//! last commit that was read, and as many commits, leave the token what it was.
//!
//! # Source
//!
//! SQLite 3.50, `src/wal.c`: `struct WalIndexHdr`, `walIndexTryHdr`, `walIndexWriteHdr`; file
//! format documentation, section 1.3.7 ("File change counter").

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, ReadWriteFlags};

use super::held_file::HeldFile;

const HEADER_LEN: usize = 48;
const TOKEN_LEN: usize = 2 * HEADER_LEN;
const IS_INIT: usize = 12;
const SALTS: std::ops::Range<usize> = 32..40;
const CHANGE_COUNTER: u64 = 24;
const BACKFILLED: u64 = 96;
const BACKFILL_ATTEMPTED: u64 = 128;

/// What the database looked like at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token {
    bytes: [u8; TOKEN_LEN],
    /// Change time of the file in nanoseconds, where the bytes alone do not tell enough.
    changed_ns: i128,
}

/// How far checkpoints have come: frames of the WAL that are in the database, and that were to be,
/// since the WAL began with these salts. Compared, never counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Progress {
    salts: [u8; 8],
    done: [u8; 4],
    wanted: [u8; 4],
}

impl Progress {
    /// Whether none can be under way.
    pub(super) fn is_complete(&self) -> bool {
        self.done == self.wanted
    }
}

/// Where tokens of one opening of the database come from.
#[derive(Debug)]
pub(crate) struct TokenSource {
    kind: Kind,
    nearness: Nearness,
    retired: AtomicBool,
}

#[derive(Debug)]
enum Kind {
    WalIndex { file: HeldFile, lockable: bool },
    ChangeCounter { file: HeldFile },
    Constant,
}

/// What reading the file may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nearness {
    /// The kernel tells beforehand.
    Told,
    /// Next to nothing.
    Near,
    /// Another machine or process.
    Far,
}

/// File systems whose files may be anywhere: FUSE (and virtiofs), NFS, SMB, CIFS, Ceph, 9p.
const FAR: [u32; 7] = [
    0x6573_5546,
    0x6969,
    0x517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x00c3_6400,
    0x0102_1997,
];

impl TokenSource {
    /// Tokens of a database in WAL mode; a connection must be open and have read already.
    pub(crate) fn wal_index(path: &Path) -> io::Result<Self> {
        let file = HeldFile::open(path)?;
        let lockable = rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
        Ok(Self::new(Kind::WalIndex { file, lockable }))
    }

    /// Tokens of a database in one of the rollback modes.
    pub(crate) fn change_counter(path: &Path) -> io::Result<Self> {
        Ok(Self::new(Kind::ChangeCounter {
            file: HeldFile::open(path)?,
        }))
    }

    /// The one token of a database that nobody writes to.
    pub(crate) fn constant() -> Self {
        Self::new(Kind::Constant)
    }

    fn new(kind: Kind) -> Self {
        Self {
            nearness: match &kind {
                Kind::WalIndex { file, .. } | Kind::ChangeCounter { file } => {
                    file.get().map_or(Nearness::Far, nearness)
                }
                Kind::Constant => Nearness::Near,
            },
            kind,
            retired: AtomicBool::new(false),
        }
    }

    /// The token of this moment. `None` when only SQL can tell what the state is. May wait for a
    /// disk.
    pub(crate) fn read(&self) -> Option<Token> {
        self.read_with(|file, bytes, offset| file.read_exact_at(bytes, offset).ok())
    }

    /// The same without waiting. `None` also when that cannot be.
    pub(crate) fn read_at_once(&self) -> Option<Token> {
        match self.nearness {
            Nearness::Told => self.read_with(|file, bytes, offset| {
                let wanted = bytes.len();
                let read = read_now(file, bytes, offset).ok()?;
                (read == wanted).then_some(())
            }),
            Nearness::Near => self.read(),
            Nearness::Far => None,
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
                if !is_settled(&token.bytes) {
                    return None;
                }
                if !lockable && token.bytes[SALTS].iter().all(|byte| *byte == 0) {
                    token.changed_ns = changed_ns(file)?;
                }
            }
            Kind::ChangeCounter { file } => {
                read(file.get()?, &mut token.bytes[..4], CHANGE_COUNTER)?;
                token.changed_ns = changed_ns(file)?;
            }
            Kind::Constant => {}
        }
        Some(token)
    }

    /// How many commits the file counts, in rollback mode.
    pub(super) fn commit_count(&self) -> Option<u32> {
        let Kind::ChangeCounter { file } = &self.kind else {
            return None;
        };
        let mut count = [0; 4];
        file.get()?.read_exact_at(&mut count, CHANGE_COUNTER).ok()?;
        Some(u32::from_be_bytes(count))
    }

    /// How far checkpoints have come, in WAL mode.
    pub(super) fn checkpoint(&self) -> Option<Progress> {
        let Kind::WalIndex { file, .. } = &self.kind else {
            return None;
        };
        let mut progress = Progress::default();
        let file = file.get()?;
        let read = |bytes: &mut [u8], offset| file.read_exact_at(bytes, offset).ok();
        read(&mut progress.done, BACKFILLED)?;
        read(&mut progress.wanted, BACKFILL_ATTEMPTED)?;
        // Last: they change when the numbers begin anew.
        read(&mut progress.salts, u64::try_from(SALTS.start).ok()?)?;
        Some(progress)
    }

    /// Whether a token read before SQL must be confirmed by one read after it.
    pub(crate) fn needs_confirmation(&self) -> bool {
        matches!(self.kind, Kind::ChangeCounter { .. })
    }

    /// Whether the database is in WAL mode.
    pub(crate) fn is_wal(&self) -> bool {
        matches!(self.kind, Kind::WalIndex { .. })
    }

    /// Device and inode of the file the tokens come from.
    pub(crate) fn file_key(&self) -> Option<(u64, u64)> {
        match &self.kind {
            Kind::WalIndex { file, .. } | Kind::ChangeCounter { file } => Some(file.key()),
            Kind::Constant => None,
        }
    }

    /// No token of this source holds any more: the database was replaced or is in doubt.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    /// Whether the source was retired.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }
}

fn nearness(file: &File) -> Nearness {
    match read_now(file, &mut [0], 0) {
        Ok(_) | Err(Errno::AGAIN) => return Nearness::Told,
        Err(_) => {}
    }
    let is_far = rustix::fs::fstatfs(file).map_or(true, |stat| {
        FAR.iter().any(|kind| i64::from(*kind) == stat.f_type)
    });
    match is_far {
        true => Nearness::Far,
        false => Nearness::Near,
    }
}

/// Reads what is in the page cache.
fn read_now(file: &File, bytes: &mut [u8], offset: u64) -> rustix::io::Result<usize> {
    let mut slices = [io::IoSliceMut::new(bytes)];
    rustix::io::preadv2(file, &mut slices, offset, ReadWriteFlags::NOWAIT)
}

fn is_settled(bytes: &[u8; TOKEN_LEN]) -> bool {
    let (first, second) = bytes.split_at(HEADER_LEN);
    first == second && bytes[IS_INIT] != 0
}

fn changed_ns(file: &HeldFile) -> Option<i128> {
    let metadata = file.get()?.metadata().ok()?;
    Some(i128::from(metadata.ctime()) * 1_000_000_000 + i128::from(metadata.ctime_nsec()))
}
