//! Opens a read-only connection to Nix's database, with or without write permission.
//!
//! # Cases
//!
//! | situation, without write permission for `db/` | `mode=ro` | action |
//! | --- | --- | --- |
//! | some process has the database open | works, sees new commits | – |
//! | idle, `-wal` and `-shm` persist (Nix 2.22 and later) | works | – |
//! | idle, `-wal` and `-shm` gone (Nix before 2.22), or `-wal` empty | fails | `immutable=1` |
//! | `-wal` has commits, `-shm` is gone | fails | the caller retries or asks the daemon |
//!
//! `immutable=1` on a live store would ignore the WAL and return stale or torn data. So it is used
//! only while the WAL is missing or empty and the file unchanged ([`TokenSource::unused_wal`]), or
//! if the store's URI has `read-only=true`.
//!
//! [`TokenSource::unused_wal`]: super::token::TokenSource::unused_wal
//!
//! # Source
//!
//! SQLite documentation, "Read-Only WAL Databases" and "URI Filenames"; Nix 2.36,
//! `src/libstore/sqlite.cc`: with `use-sqlite-wal = false` Nix locks by the `unix-dotfile` VFS.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};
use rustix::fs::Access;

use super::file_state::FileState;
use crate::error::{Corruption, StoreError, Unavailable};

/// Maximum time that a statement waits for a lock of another process. Nix holds its write locks for
/// milliseconds, and clients retry after a 503.
const BUSY_TIMEOUT: Duration = Duration::from_millis(500);

/// Interval between attempts to lock. Without WAL, consecutive writers leave readers 0.1 ms between
/// two commits. SQLite's own busy handler backs off to 100 ms and never hits that gap.
const BUSY_PAUSE: Duration = Duration::from_micros(100);

/// Page cache per connection, in KiB: it holds the upper index levels of a million paths. The
/// kernel caches the rest; a larger cache makes no look-up cheaper (measured in decision 0013).
const PAGE_CACHE_KIB: u32 = 512;

/// Characters of a path that are escaped in a URI.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'.')
    .remove(b'_');

const STATEMENT_COUNT_MAX: usize = 16;

/// Options for opening a database file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OpenMode {
    /// Whether to skip locks and the WAL, because nothing is written to the database.
    pub(super) immutable: bool,
    /// Whether to lock by a dot file beside the database, as Nix does without WAL mode.
    pub(super) dotfile_locks: bool,
}

/// Maximum number of attempts to open a file that changes while it is being opened.
const UNSURE_COUNT_MAX: u32 = 20;

/// Opens a connection to the file with id `file`, reads once, and leaves the transaction open,
/// because the lock of a busy database is hard to get again. [`settle`] commits.
///
/// # Errors
///
/// [`Unavailable::BeingReplaced`] if the path leads to another file. Nothing of that file has been
/// read then: the first read maps the WAL index, which must belong to the same file.
pub(super) fn open(
    path: &Path,
    file: (u64, u64),
    mode: OpenMode,
) -> Result<Connection, StoreError> {
    let explain = |error: rusqlite::Error| explain(path, error);
    for _ in 0..UNSURE_COUNT_MAX {
        let before = FileState::of(path)?;
        let connection = handle(path, mode).map_err(explain)?;
        let after = FileState::of(path)?;
        if before.file != file || after.file != file {
            break;
        }
        // The states include the ctime, which also reveals a file that was moved away and back.
        // Without WAL, every commit updates the ctime, too: try again then.
        if before == after {
            first_read(&connection).map_err(explain)?;
            return Ok(connection);
        }
    }
    Err(StoreError::Unavailable(Unavailable::BeingReplaced))
}

/// Commits the transaction that [`open`] left open.
pub(super) fn settle(connection: &Connection) -> Result<(), StoreError> {
    Ok(connection.execute_batch("commit")?)
}

/// Opens the file without reading it.
fn handle(path: &Path, mode: OpenMode) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let uri = uri(path, mode.immutable);
    let mut connection = if mode.dotfile_locks && !mode.immutable {
        Connection::open_with_flags_and_vfs(uri, flags, "unix-dotfile")?
    } else {
        Connection::open_with_flags(uri, flags)?
    };
    connection.busy_handler(Some(busy_handler()))?;
    connection.set_prepared_statement_cache_capacity(STATEMENT_COUNT_MAX);
    // Without this, SQLite compiles a statement with a range of paths again for each new path,
    // which takes longer than to run it.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(connection)
}

/// Takes the shared lock, which prevents other processes from deleting `-wal` and `-shm`.
fn first_read(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(&format!("pragma cache_size = -{PAGE_CACHE_KIB}"))?;
    connection.execute_batch("begin")?;
    connection.query_row("pragma schema_version", [], |row| row.get::<_, i64>(0))?;
    Ok(())
}

/// Returns whether the main file is not a database, whatever its WAL contains. If the WAL has a
/// newer version of the first page, SQLite does not read that page from the file, and accepts any
/// file.
///
/// The check goes through SQLite: closing a descriptor of our own would drop all locks that this
/// process holds on the file.
pub(super) fn is_not_a_database(path: &Path) -> bool {
    let alone = OpenMode {
        immutable: true,
        dotfile_locks: false,
    };
    let read = || first_read(&handle(path, alone)?);
    let code = || read().err()?.sqlite_error_code();
    !wal_is_empty(path) && code() == Some(ErrorCode::NotADatabase)
}

/// Returns a busy handler that sleeps between attempts and gives up after [`BUSY_TIMEOUT`].
fn busy_handler() -> impl FnMut(i32) -> bool + Send + 'static {
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

/// Returns whether the database is in WAL mode.
pub(super) fn is_wal(connection: &Connection) -> Result<bool, StoreError> {
    let mode = connection.query_row("pragma journal_mode", [], |row| row.get::<_, String>(0))?;
    Ok(mode.eq_ignore_ascii_case("wal"))
}

/// Returns whether the WAL is empty or missing, so that the database has no commits in it.
pub(super) fn wal_is_empty(path: &Path) -> bool {
    is_empty_or_missing(&beside(path, "-wal"))
}

/// Returns whether the file is empty or missing; `false` if that cannot be determined.
pub(super) fn is_empty_or_missing(path: &Path) -> bool {
    match std::fs::metadata(path) {
        Ok(metadata) => metadata.len() == 0,
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Appends a suffix to the file name.
pub(super) fn beside(path: &Path, suffix: &str) -> std::path::PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        let Some(code) = error.sqlite_error_code() else {
            // A column has an unexpected type.
            return Self::Corrupt(Corruption::Schema);
        };
        match code {
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::FileLockingProtocolFailed => Self::Busy,
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => {
                Self::Corrupt(Corruption::Malformed)
            }
            ErrorCode::PermissionDenied => Self::Unavailable(Unavailable::PermissionDenied),
            ErrorCode::ReadOnly if extended_code(&error) == ffi::SQLITE_READONLY_ROLLBACK => {
                Self::Unavailable(Unavailable::HotJournal)
            }
            ErrorCode::ReadOnly | ErrorCode::CannotOpen => {
                Self::Unavailable(Unavailable::WalIndexMissing)
            }
            ErrorCode::Unknown => Self::Corrupt(Corruption::Schema),
            _ => Self::Io {
                operation: "reading the database",
                kind: std::io::ErrorKind::Other,
            },
        }
    }
}

fn extended_code(error: &rusqlite::Error) -> i32 {
    error.sqlite_error().map_or(0, |error| error.extended_code)
}

/// Finds the cause of a failure to open: SQLite reports "unable to open database file" for many.
fn explain(path: &Path, error: rusqlite::Error) -> StoreError {
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
    error.into()
}

fn uri(path: &Path, immutable: bool) -> String {
    let path = percent_encode(path.as_os_str().as_bytes(), ESCAPED);
    let mode = if immutable { "immutable=1" } else { "mode=ro" };
    format!("file:{path}?{mode}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_are_encoded() {
        let uri = uri(Path::new("/a b/c?d#e%f/db.sqlite"), false);
        assert_eq!(uri, "file:/a%20b/c%3Fd%23e%25f/db.sqlite?mode=ro");
    }

    /// A connection is never opened to another file: mapping the WAL index for it would truncate
    /// the index under its readers.
    #[test]
    fn another_file_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (path, new) = (dir.path().join("db"), dir.path().join("new"));
        let writer = Connection::open(&path).unwrap();
        writer
            .execute_batch("pragma journal_mode = wal; create table one (x)")
            .unwrap();
        let file = FileState::of(&path).unwrap().file;
        let mode = OpenMode {
            immutable: false,
            dotfile_locks: false,
        };
        let reader = open(&path, file, mode).unwrap();
        let index = std::fs::metadata(beside(&path, "-shm")).unwrap();
        std::fs::write(&new, "no database ".repeat(1024)).unwrap();
        std::fs::rename(&new, &path).unwrap();
        let replaced = StoreError::Unavailable(Unavailable::BeingReplaced);
        assert_eq!(open(&path, file, mode).map(drop), Err(replaced));
        let index_now = std::fs::metadata(beside(&path, "-shm")).unwrap();
        assert_eq!(index_now.len(), index.len());
        assert_eq!(index_now.modified().unwrap(), index.modified().unwrap());
        settle(&reader).unwrap();
    }
}
