//! Opening one connection to Nix's database, whatever this user may do there.
//!
//! # Which way works
//!
//! | situation, for a user who cannot write to `db/` | `mode=ro` | what is done |
//! | --- | --- | --- |
//! | some process has the database open | works, sees new commits | – |
//! | idle, `-wal` and `-shm` persist (Nix 2.22 and later) | works | – |
//! | idle, `-wal` and `-shm` gone (Nix before 2.22) | fails | the caller retries or asks the daemon |
//! | file system mounted read-only, WAL empty | fails | `immutable=1` |
//!
//! `immutable=1` on a live store would ignore the WAL: answers from the past, or torn ones. It is
//! used only where nobody can write, or where the store's URI says `read-only=true`.
//!
//! # Source
//!
//! SQLite documentation, "Read-Only WAL Databases" and "URI Filenames"; Nix 2.36,
//! `src/libstore/sqlite.cc`: with `use-sqlite-wal = false` Nix locks by the `unix-dotfile` VFS.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};
use rustix::fs::{Access, StatVfsMountFlags};

use super::session::Identity;
use crate::error::{Corruption, Operation, StoreError, Unavailable};

/// How long a statement waits for another process's lock. Nix's own writers hold theirs for
/// milliseconds, and a client that gets a 503 comes back.
const BUSY_TIMEOUT: Duration = Duration::from_millis(500);

/// How long it is until the lock is tried again. Without WAL, one writer after another leaves
/// readers a tenth of a millisecond between two commits, however long those take. SQLite's own
/// waiting looks every 100 ms in the end, and never finds it.
const BUSY_PAUSE: Duration = Duration::from_micros(100);

/// Pages of one connection, in KiB: the upper levels of the indexes of a million paths; the rest is
/// the kernel's page cache. More makes no look-up cheaper: see decision 0013, with the figures.
const PAGE_CACHE_KIB: u32 = 512;

const STATEMENT_COUNT_MAX: usize = 16;

/// How to open a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Opening {
    /// Nobody writes to it: skip locks and WAL.
    pub(super) immutable: bool,
    /// Lock by a directory beside the database, as Nix does without WAL mode.
    pub(super) dotfile_locks: bool,
}

/// How often a file that changes all the time is opened before that is a failure.
const UNSURE_COUNT_MAX: u32 = 20;

/// Opens a connection to `file` (device and inode) that has read once, in a transaction that goes
/// on: the lock of a busy database is not easily had again. [`settle`] ends it.
///
/// # Errors
///
/// Also when the path leads to another file, of which nothing was read then: the first reading maps
/// the WAL index, and whose that is has to be known before.
pub(super) fn open(
    path: &Path,
    file: (u64, u64),
    opening: Opening,
) -> Result<Connection, StoreError> {
    let explain = |error: rusqlite::Error| why(path, &error);
    for _ in 0..UNSURE_COUNT_MAX {
        let before = Identity::of(path)?;
        let connection = handle(path, opening).map_err(explain)?;
        let after = Identity::of(path)?;
        if before.file() != file || after.file() != file {
            break;
        }
        // A file that went away and came back was renamed, and has another change time. Without a
        // WAL a commit has the same effect.
        if before == after {
            first_read(&connection).map_err(explain)?;
            return Ok(connection);
        }
    }
    Err(StoreError::Unavailable(Unavailable::BeingReplaced))
}

/// Ends the transaction that a connection was opened in.
pub(super) fn settle(connection: &Connection) -> Result<(), StoreError> {
    connection
        .execute_batch("commit")
        .map_err(|error| store_error(&error))
}

/// The file is open, and nothing of it is read.
fn handle(path: &Path, opening: Opening) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let uri = uri(path, opening.immutable);
    let mut connection = if opening.dotfile_locks && !opening.immutable {
        Connection::open_with_flags_and_vfs(uri, flags, "unix-dotfile")?
    } else {
        Connection::open_with_flags(uri, flags)?
    };
    connection.busy_handler(Some(patience()))?;
    connection.set_prepared_statement_cache_capacity(STATEMENT_COUNT_MAX);
    Ok(connection)
}

/// Takes the shared lock that keeps `-wal` and `-shm` where they are.
fn first_read(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(&format!("pragma cache_size = -{PAGE_CACHE_KIB}"))?;
    connection.execute_batch("begin")?;
    connection.query_row("pragma schema_version", [], |row| row.get::<_, i64>(0))?;
    Ok(())
}

/// Whether the file itself is no database, whatever the WAL beside it says. SQLite does not look at
/// the first page of the file when the WAL has a newer one: it takes anything for the database of
/// that WAL.
///
/// SQLite has to look, and not we: to close a descriptor of our own would drop all locks that this
/// process has on the file.
pub(super) fn is_none_beside_its_wal(path: &Path) -> bool {
    let alone = Opening {
        immutable: true,
        dotfile_locks: false,
    };
    let read = || first_read(&handle(path, alone)?);
    let code = || read().err()?.sqlite_error_code();
    !wal_is_empty(path) && code() == Some(ErrorCode::NotADatabase)
}

/// Waits a little each time it is called for a lock, and says `false` when it has been enough.
fn patience() -> impl FnMut(i32) -> bool + Send + 'static {
    let mut since = Instant::now();
    move |count| {
        if count == 0 {
            since = Instant::now();
        }
        let goes_on = since.elapsed() < BUSY_TIMEOUT;
        if goes_on {
            std::thread::sleep(BUSY_PAUSE);
        }
        goes_on
    }
}

/// Whether the database is in WAL mode.
pub(super) fn is_wal(connection: &Connection) -> Result<bool, StoreError> {
    let mode = connection
        .query_row("pragma journal_mode", [], |row| row.get::<_, String>(0))
        .map_err(|error| store_error(&error))?;
    Ok(mode.eq_ignore_ascii_case("wal"))
}

/// Whether nobody can write to the database: its file system is mounted read-only, and there is no
/// WAL whose frames `immutable=1` would overlook.
pub(super) fn is_frozen(path: &Path) -> bool {
    let read_only =
        rustix::fs::statvfs(path).is_ok_and(|stat| stat.f_flag.contains(StatVfsMountFlags::RDONLY));
    read_only && wal_is_empty(path)
}

/// Whether there is nothing in the WAL.
pub(super) fn wal_is_empty(path: &Path) -> bool {
    std::fs::metadata(beside(path, "-wal")).map_or(true, |metadata| metadata.len() == 0)
}

/// The path with something appended to the file name.
pub(super) fn beside(path: &Path, suffix: &str) -> std::path::PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// What a failing statement means to somebody who asks the store.
pub(crate) fn store_error(error: &rusqlite::Error) -> StoreError {
    let Some(code) = error.sqlite_error_code() else {
        // A column of another type than it should be.
        return StoreError::Corrupt(Corruption::Schema);
    };
    match code {
        ErrorCode::DatabaseBusy
        | ErrorCode::DatabaseLocked
        | ErrorCode::FileLockingProtocolFailed => StoreError::Busy,
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => {
            StoreError::Corrupt(Corruption::Malformed)
        }
        ErrorCode::PermissionDenied => StoreError::Unavailable(Unavailable::PermissionDenied),
        ErrorCode::ReadOnly if extended_code(error) == ffi::SQLITE_READONLY_ROLLBACK => {
            StoreError::Unavailable(Unavailable::HotJournal)
        }
        ErrorCode::ReadOnly | ErrorCode::CannotOpen => {
            StoreError::Unavailable(Unavailable::WalIndexMissing)
        }
        ErrorCode::Unknown => StoreError::Corrupt(Corruption::Schema),
        _ => StoreError::Io {
            operation: Operation::ReadDatabase,
            kind: std::io::ErrorKind::Other,
        },
    }
}

fn extended_code(error: &rusqlite::Error) -> i32 {
    error.sqlite_error().map_or(0, |error| error.extended_code)
}

/// SQLite says "unable to open database file" for many things: look at the files themselves.
fn why(path: &Path, error: &rusqlite::Error) -> StoreError {
    let access = |path: &Path| rustix::fs::access(path, Access::READ_OK);
    if access(path) == Err(rustix::io::Errno::NOENT) {
        return StoreError::Unavailable(Unavailable::DatabaseMissing);
    }
    let is_denied = |path: &Path| access(path) == Err(rustix::io::Errno::ACCESS);
    if is_denied(path)
        || ["-wal", "-shm"]
            .map(|suffix| beside(path, suffix))
            .iter()
            .any(|path| is_denied(path))
    {
        return StoreError::Unavailable(Unavailable::PermissionDenied);
    }
    store_error(error)
}

fn uri(path: &Path, immutable: bool) -> String {
    let mut uri = String::from("file:");
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => {
                uri.push(char::from(byte));
            }
            _ => {
                // Writing to a string cannot fail.
                let _infallible = write!(uri, "%{byte:02x}");
            }
        }
    }
    uri.push_str(if immutable {
        "?immutable=1"
    } else {
        "?mode=ro"
    });
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_are_encoded() {
        let uri = uri(Path::new("/a b/c?d#e%f/db.sqlite"), false);
        assert_eq!(uri, "file:/a%20b/c%3fd%23e%25f/db.sqlite?mode=ro");
    }

    /// To map the WAL index for another file would truncate it under those who read in it.
    #[test]
    fn another_file_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (path, new) = (dir.path().join("db"), dir.path().join("new"));
        let writer = Connection::open(&path).unwrap();
        writer
            .execute_batch("pragma journal_mode = wal; create table one (x)")
            .unwrap();
        let file = Identity::of(&path).unwrap().file();
        let opening = Opening {
            immutable: false,
            dotfile_locks: false,
        };
        let reader = open(&path, file, opening).unwrap();
        let index = std::fs::metadata(beside(&path, "-shm")).unwrap();
        std::fs::write(&new, "no database ".repeat(1024)).unwrap();
        std::fs::rename(&new, &path).unwrap();
        let replaced = StoreError::Unavailable(Unavailable::BeingReplaced);
        assert_eq!(open(&path, file, opening).map(drop), Err(replaced));
        let index_now = std::fs::metadata(beside(&path, "-shm")).unwrap();
        assert_eq!(index_now.len(), index.len());
        assert_eq!(index_now.modified().unwrap(), index.modified().unwrap());
        settle(&reader).unwrap();
    }
}
