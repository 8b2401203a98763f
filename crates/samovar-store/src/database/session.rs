//! One opening of the database: its connections and its freshness token.

use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rusqlite::Connection;

use super::connection::{self, Opening};
use super::held_file::HeldFile;
use super::lineage::Look;
use super::token::{Progress, TokenSource};
use super::wal_mark::Content;
use crate::error::{Corruption, Operation, StoreError, Unavailable};

/// Connections that wait for the next question, with half a MiB of pages each. More are opened when
/// more threads ask at once, and closed when they come back.
const IDLE_COUNT_MAX: usize = 16;

/// The length of the header that every database begins with. SQLite takes an empty file for a new
/// database and removes the WAL beside it, even when told to read only. Such a file is one that
/// somebody is writing at this moment, or was about to.
const HEADER_LEN: u64 = 100;

/// Which file a path led to, and what it looked like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    file: (u64, u64),
    size: u64,
    /// Not the modification time, which whoever copies a file may set back.
    changed: (i64, i64),
}

impl Identity {
    pub(super) fn of(path: &Path) -> Result<Self, StoreError> {
        let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => StoreError::Unavailable(Unavailable::DatabaseMissing),
            std::io::ErrorKind::PermissionDenied => {
                StoreError::Unavailable(Unavailable::PermissionDenied)
            }
            _ => StoreError::io(Operation::ReadDatabase, &error),
        })?;
        Ok(Self {
            file: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    /// Device and inode.
    pub(super) fn file(&self) -> (u64, u64) {
        self.file
    }

    pub(super) fn is_same_file(&self, other: &Self) -> bool {
        self.file == other.file
    }
}

/// Connections to one file, all opened the same way.
#[derive(Debug)]
pub(crate) struct Session {
    path: PathBuf,
    opening: Opening,
    identity: Identity,
    /// As of the opening, like what follows.
    opened: Look,
    pub(super) content: Option<Content>,
    /// As of the last look that found the file to be what it was.
    checkpoint: Mutex<Option<Progress>>,
    /// What `db/schema` was when this was opened.
    pub(super) schema_file: Option<Identity>,
    /// Never empty while the session is in use: the last connection's lock is what keeps `-wal` and
    /// `-shm` in place. Declared before `source`, whose descriptor must be closed last.
    idle: Mutex<Vec<Connection>>,
    source: Arc<TokenSource>,
    /// Declared last: when it is gone all connections are closed, which cannot be said of the
    /// session while it is being dropped.
    presence: Arc<()>,
}

/// A session that is used for no new questions.
#[derive(Debug)]
pub(super) struct Retired {
    /// Device and inode.
    pub(super) file: (u64, u64),
    presence: Weak<()>,
}

impl Retired {
    pub(super) fn is_gone(&self) -> bool {
        self.presence.strong_count() == 0
    }
}

impl Session {
    /// Opens the database at `path`, which is to be `identity`.
    pub(super) fn open(
        path: &Path,
        identity: Identity,
        read_only: bool,
        dotfile_locks: bool,
    ) -> Result<Self, StoreError> {
        if identity.size < HEADER_LEN {
            return Err(StoreError::Corrupt(Corruption::Malformed));
        }
        if connection::is_none_beside_its_wal(path) {
            return Err(StoreError::Corrupt(Corruption::Malformed));
        }
        let file = identity.file;
        // Whoever closed the last descriptor of it in between would drop the connection's locks.
        let _index = HeldFile::open(&connection::beside(path, "-shm"));
        let mut opening = Opening {
            immutable: read_only && connection::wal_is_empty(path),
            dotfile_locks,
        };
        let connection = match connection::open(path, file, opening) {
            Err(StoreError::Unavailable(Unavailable::WalIndexMissing))
                if connection::is_frozen(path) =>
            {
                opening.immutable = true;
                connection::open(path, file, opening)?
            }
            other => other?,
        };
        let source = if opening.immutable {
            Ok(TokenSource::constant())
        } else if connection::is_wal(&connection)? {
            TokenSource::wal_index(&connection::beside(path, "-shm"))
        } else {
            TokenSource::change_counter(path)
        };
        let source = source.map_err(|error| StoreError::io(Operation::ReadToken, &error))?;
        // In this order: a checkpoint that starts in between is told from a copy.
        let checkpoint = source.checkpoint();
        let content = Content::of(path);
        // The connection has its lock: without a WAL nobody commits now, and it may have waited for
        // a commit since the file was looked at.
        let identity = match source.commit_count() {
            Some(_) => Identity::of(path)?,
            None => identity,
        };
        let opened = Look {
            identity,
            commit_count: source.commit_count(),
        };
        // What was found beside it is another file's.
        if Identity::of(path)?.file != file || identity.file != file {
            return Err(StoreError::Unavailable(Unavailable::BeingReplaced));
        }
        Ok(Self {
            path: path.to_owned(),
            opening,
            identity,
            opened,
            content,
            checkpoint: Mutex::new(checkpoint),
            schema_file: None,
            idle: Mutex::new(vec![connection]),
            source: Arc::new(source),
            presence: Arc::default(),
        })
    }

    /// Device and inode.
    pub(super) fn file(&self) -> (u64, u64) {
        self.identity.file
    }

    /// Ends its use for new questions.
    pub(super) fn retire(&self) -> Retired {
        self.source.retire();
        Retired {
            file: self.file(),
            presence: Arc::downgrade(&self.presence),
        }
    }

    /// Where freshness tokens come from.
    pub(crate) fn source(&self) -> &Arc<TokenSource> {
        &self.source
    }

    /// Whether the path still leads to this file, and nothing but commits to the WAL has happened
    /// to it.
    ///
    /// A checkpoint, which copies pages into the file, looks the same as a backup copied over it,
    /// after which every cached page is wrong; and so does every commit in rollback mode, where
    /// SQLite's own count of them is no proof, because a copy sets it back. Both are rare enough to
    /// open everything again.
    pub(crate) fn is_current(&self) -> bool {
        !self.source.is_retired()
            && Identity::of(&self.path).is_ok_and(|identity| identity == self.identity)
    }

    /// Whether nothing but commits has happened to the file since this was opened: what was read of
    /// it is then of one piece.
    pub(crate) fn is_whole(&self) -> bool {
        self.look().is_ok_and(|look| look.continues(&self.opened))
    }

    /// [`is_current`](Self::is_current), of which is kept how far checkpoints had come by then.
    pub(super) fn is_current_and_noted(&self) -> bool {
        // First: what comes after it is another look's.
        let progress = self.source.checkpoint();
        let is_current = self.is_current();
        if is_current {
            *self.checkpoint() = progress;
        }
        is_current
    }

    /// How far checkpoints had come when the file was last found to be what it was.
    pub(super) fn checkpoint(&self) -> MutexGuard<'_, Option<Progress>> {
        self.checkpoint
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// What the file looks like now.
    pub(super) fn look(&self) -> Result<Look, StoreError> {
        Ok(Look {
            identity: Identity::of(&self.path)?,
            commit_count: self.source.commit_count(),
        })
    }

    /// Whether the file beside the database that holds the WAL index is still the one in use.
    pub(super) fn has_its_wal_index(&self) -> bool {
        if !self.source.is_wal() {
            return true;
        }
        let now = Identity::of(&connection::beside(&self.path, "-shm"));
        now.is_ok_and(|identity| Some(identity.file) == self.source.file_key())
    }

    /// A connection for one question.
    ///
    /// # Errors
    ///
    /// Also when the session is not to be used any more: somebody may wait for its end.
    pub(crate) fn lease(self: &Arc<Self>) -> Result<Lease, StoreError> {
        if self.source.is_retired() {
            return Err(StoreError::Unavailable(Unavailable::BeingReplaced));
        }
        let idle = self.idle().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => {
                let connection = connection::open(&self.path, self.file(), self.opening)
                    .inspect_err(|error| {
                        if *error == StoreError::Unavailable(Unavailable::BeingReplaced) {
                            self.source.retire();
                        }
                    })?;
                connection::settle(&connection)?;
                connection
            }
        };
        Ok(Lease {
            connection: Some(connection),
            session: Arc::clone(self),
        })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that returns to its session when dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    /// Present until the moment of dropping. Declared before `session`: see [`Session::idle`].
    connection: Option<Connection>,
    session: Arc<Session>,
}

impl Deref for Lease {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection
            .as_ref()
            .expect("a lease has its connection until it is dropped")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        let mut idle = self.session.idle();
        if idle.len() < IDLE_COUNT_MAX && !self.session.source.is_retired() {
            idle.push(connection);
        }
    }
}
