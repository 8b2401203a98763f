//! A session: the connections to one database file, and its freshness token.

use std::io::ErrorKind;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use rusqlite::Connection;

use super::connection::{self, OpenMode};
use super::file_state::{self, Content, FileState};
use super::history::Observation;
use super::shared_file::SharedFile;
use super::token::{Progress, TokenSource};
use crate::error::{Corruption, StoreError, Unavailable};
use crate::sync::Locked;

/// Maximum number of idle connections, each with 512 KiB of cached pages. Concurrent queries open
/// more, which are closed afterwards.
const IDLE_COUNT_MAX: usize = 16;

/// Length of a database header, in bytes. SQLite takes an empty file for a new database and removes
/// the WAL beside it, even in read-only mode. A shorter file than this is still being written.
const HEADER_LEN: u64 = 100;

/// A pool of connections to one database file, all opened in the same way.
#[derive(Debug)]
pub(crate) struct Session {
    path: PathBuf,
    mode: OpenMode,
    identity: FileState,
    /// State of the file when the session was opened.
    opened: Observation,
    pub(super) content: Option<Content>,
    /// Checkpoint progress when the file was last found unchanged; `None` outside WAL mode, or if
    /// it could not be read.
    pub(super) checkpoint: Mutex<Option<Progress>>,
    /// State of `db/schema` when the session was opened; `None` if the file could not be read.
    pub(super) schema_file: Option<FileState>,
    /// Never empty while the session is in use: the last connection's lock keeps `-wal` and `-shm`
    /// in place. Declared before `source`, whose descriptor must be closed last.
    idle: Mutex<Vec<Connection>>,
    source: Arc<TokenSource>,
    /// Keeps the locks of the connections: see [`SharedFile`].
    _database: SharedFile,
    /// A token that tells a [`RetiredSession`] that this session still exists. Declared last, so
    /// that it is dropped after all connections are closed.
    presence: Arc<()>,
}

/// A session that accepts no new queries.
#[derive(Debug)]
pub(super) struct RetiredSession {
    /// Device and inode of the database file.
    file: (u64, u64),
    /// Device and inode of the WAL index; `None` outside WAL mode.
    index: Option<(u64, u64)>,
    presence: Weak<()>,
}

impl RetiredSession {
    pub(super) fn is_closed(&self) -> bool {
        self.presence.strong_count() == 0
    }

    pub(super) fn has_file(&self, file: (u64, u64)) -> bool {
        self.file == file
    }

    /// Returns whether the session uses no WAL index other than `index`.
    pub(super) fn agrees_with(&self, index: Option<(u64, u64)>) -> bool {
        self.index.is_none() || self.index == index
    }
}

/// Opens the source of the freshness token for a connection to the database at `path`.
/// `read_only`: whether the database never changes.
fn token_source(
    path: &Path,
    connection: &Connection,
    mode: OpenMode,
    read_only: bool,
) -> Result<TokenSource, StoreError> {
    let source = if mode.immutable && read_only {
        Ok(TokenSource::constant())
    } else if mode.immutable {
        TokenSource::unused_wal(path)
    } else if connection::is_wal(connection)? {
        TokenSource::wal_index(&connection::beside(path, "-shm"))
    } else {
        TokenSource::change_counter(path)
    };
    source.map_err(|error| match error.kind() {
        // The WAL index was deleted since the connection was opened.
        ErrorKind::NotFound => StoreError::Unavailable(Unavailable::BeingReplaced),
        _ => StoreError::io("reading the freshness token", &error),
    })
}

impl Session {
    /// Opens the database at `path`, which must have the state `identity`.
    pub(super) fn open(
        path: &Path,
        identity: FileState,
        read_only: bool,
        dotfile_locks: bool,
    ) -> Result<Self, StoreError> {
        if identity.size < HEADER_LEN {
            return Err(StoreError::Corrupt(Corruption::Malformed));
        }
        if connection::is_not_a_database(path) {
            return Err(StoreError::Corrupt(Corruption::Malformed));
        }
        let file = identity.file;
        // Keep a descriptor of both files open: if the last one were closed while the session is in
        // use, the connections would lose their locks. An earlier session may have one of them.
        let database = SharedFile::open(path).map_err(|error| file_state::explain(&error))?;
        let index = SharedFile::open(&connection::beside(path, "-shm"));
        let mut mode = OpenMode {
            immutable: read_only && connection::wal_is_empty(path),
            dotfile_locks,
        };
        let connection = match connection::open(path, file, mode) {
            Err(StoreError::Unavailable(Unavailable::WalIndexMissing))
                if connection::wal_is_empty(path) =>
            {
                mode.immutable = true;
                connection::open(path, file, mode)?
            }
            other => other?,
        };
        let source = token_source(path, &connection, mode, read_only)?;
        if let Ok(index) = &index
            && source.is_wal()
            && source.file_key() != Some(index.key())
        {
            return Err(StoreError::Unavailable(Unavailable::BeingReplaced));
        }
        // Read the progress of the checkpoint before the file. Otherwise a checkpoint that starts
        // between the two reads would look like a backup that was copied over the database.
        let checkpoint = source.checkpoint();
        let content = Content::of(path);
        // The connection holds its lock, so without WAL no commit can happen now. But the
        // connection may have waited for a commit since `identity` was read.
        let identity = match source.commit_count() {
            Some(_) => FileState::of(path)?,
            None => identity,
        };
        let opened = Observation {
            identity,
            commit_count: source.commit_count(),
        };
        // Refuse to open: the WAL and its index at this path belong to another database.
        if FileState::of(path)?.file != file || identity.file != file {
            return Err(StoreError::Unavailable(Unavailable::BeingReplaced));
        }
        Ok(Self {
            path: path.to_owned(),
            mode,
            identity,
            opened,
            content,
            checkpoint: Mutex::new(checkpoint),
            schema_file: None,
            idle: Mutex::new(vec![connection]),
            source: Arc::new(source),
            _database: database,
            presence: Arc::default(),
        })
    }

    /// Returns the device and inode of the database file.
    pub(super) fn file(&self) -> (u64, u64) {
        self.identity.file
    }

    /// Retires the session, so that it accepts no new queries.
    pub(super) fn retire(&self) -> RetiredSession {
        self.source.retire();
        let source = &self.source;
        RetiredSession {
            file: self.file(),
            index: source.file_key().filter(|_| source.is_wal()),
            presence: Arc::downgrade(&self.presence),
        }
    }

    /// Returns the source of freshness tokens.
    pub(crate) fn source(&self) -> &Arc<TokenSource> {
        &self.source
    }

    /// Returns whether the session is not retired, the path still leads to the same file with the
    /// same size and change time, and a WAL that was unused still is.
    ///
    /// Commits to the WAL do not change the file. A checkpoint does, and so does a commit in
    /// rollback mode. Both make this return `false`, so that the caller opens the database again,
    /// because the file may instead have been overwritten by a backup, after which cached pages are
    /// invalid. Both are rare.
    pub(crate) fn is_current(&self) -> bool {
        !self.source.is_retired()
            && self.source.is_usable()
            && FileState::of(&self.path).is_ok_and(|identity| identity == self.identity)
    }

    /// Returns whether only commits have changed the file since the session was opened, so that
    /// data read from it is consistent.
    pub(crate) fn is_intact(&self) -> bool {
        self.observe().is_ok_and(|now| now.continues(&self.opened))
    }

    /// Returns [`is_current`](Self::is_current); if true, also records the checkpoint progress.
    pub(super) fn check_current(&self) -> bool {
        // Read the progress before the check: later progress belongs to the next check.
        let progress = self.source.checkpoint();
        let is_current = self.is_current();
        if is_current {
            *self.checkpoint.locked() = progress;
        }
        is_current
    }

    /// Observes the current state of the file.
    pub(super) fn observe(&self) -> Result<Observation, StoreError> {
        Ok(Observation {
            identity: FileState::of(&self.path)?,
            commit_count: self.source.commit_count(),
        })
    }

    /// Returns whether the WAL index file beside the database is still the one in use.
    pub(super) fn has_its_wal_index(&self) -> bool {
        if !self.source.is_wal() {
            return true;
        }
        let now = FileState::of(&connection::beside(&self.path, "-shm"));
        now.is_ok_and(|identity| Some(identity.file) == self.source.file_key())
    }

    /// Takes a connection from the pool, or opens one.
    ///
    /// # Errors
    ///
    /// [`Unavailable::BeingReplaced`] if the session is retired: another thread may wait until all
    /// its connections are closed.
    pub(crate) fn connection(self: &Arc<Self>) -> Result<PooledConnection, StoreError> {
        if self.source.is_retired() {
            return Err(StoreError::Unavailable(Unavailable::BeingReplaced));
        }
        let idle = self.idle.locked().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => {
                let connection =
                    connection::open(&self.path, self.file(), self.mode).inspect_err(|error| {
                        if *error == StoreError::Unavailable(Unavailable::BeingReplaced) {
                            self.source.retire();
                        }
                    })?;
                connection::settle(&connection)?;
                connection
            }
        };
        Ok(PooledConnection {
            connection: Some(connection),
            session: Arc::clone(self),
        })
    }
}

/// A connection that returns to its pool when dropped.
#[derive(Debug)]
pub(crate) struct PooledConnection {
    /// The connection; `None` only during drop. Declared before `session`: see [`Session::idle`].
    connection: Option<Connection>,
    session: Arc<Session>,
}

impl Deref for PooledConnection {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection
            .as_ref()
            .expect("a lease has its connection until it is dropped")
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        let mut idle = self.session.idle.locked();
        if idle.len() < IDLE_COUNT_MAX && !self.session.source.is_retired() {
            idle.push(connection);
        }
    }
}
