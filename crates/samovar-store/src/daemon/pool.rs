//! Connections to one daemon, opened as needed and kept.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use samovar_nix::{HashPart, PathInfo, StoreDir, StorePath};

use super::connection::Connection;
use crate::error::StoreError;
use crate::realisation::RealisationId;

/// Idle connections that are kept: each is a process on the daemon's side.
const IDLE_COUNT_MAX: usize = 4;

/// A daemon, asked over as many connections as there are questions at once. Clones share them.
#[derive(Debug, Clone)]
pub struct Daemon {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    socket: PathBuf,
    store_dir: StoreDir,
    idle: Mutex<Vec<Connection>>,
}

/// Keeps a path from being collected as long as it lives.
#[derive(Debug)]
pub struct TempRoot {
    /// The root ends with the connection.
    _connection: Connection,
}

impl Daemon {
    /// A daemon that listens at `socket`. Nothing is connected yet.
    #[must_use]
    pub fn new(socket: PathBuf, store_dir: StoreDir) -> Self {
        Self {
            shared: Arc::new(Shared {
                socket,
                store_dir,
                idle: Mutex::default(),
            }),
        }
    }

    /// Whether the daemon answers: connects if no connection is there.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`] that keeps it from answering.
    pub fn probe(&self) -> Result<(), StoreError> {
        let connection = self.connection()?;
        self.put_back(connection);
        Ok(())
    }

    /// What the daemon knows of the path with this hash part. A path of unknown NAR size counts as
    /// absent, as in [`Store::lookup`](crate::Store::lookup).
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    pub fn lookup(&self, hash_part: HashPart) -> Result<Option<PathInfo>, StoreError> {
        let dir = self.store_dir();
        let info =
            self.ask(
                |connection| match connection.path_from_hash_part(dir, hash_part)? {
                    Some(path) => connection.path_info(dir, path),
                    None => Ok(None),
                },
            )?;
        Ok(info.filter(|info| info.nar_size > 0))
    }

    /// What the daemon knows of a path.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    pub fn path_info(&self, path: &StorePath) -> Result<Option<PathInfo>, StoreError> {
        self.ask(|connection| connection.path_info(self.store_dir(), path.clone()))
    }

    /// Whether the path is valid.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    pub fn is_valid(&self, path: &StorePath) -> Result<bool, StoreError> {
        self.ask(|connection| connection.is_valid(self.store_dir(), path))
    }

    /// The document of a realisation.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    pub fn realisation(&self, id: &RealisationId) -> Result<Option<String>, StoreError> {
        match self.ask(|connection| connection.realisation(self.store_dir(), id)) {
            // So says a daemon without the experimental feature: it has none.
            Err(StoreError::Refused) => Ok(None),
            other => other,
        }
    }

    /// Keeps a path from being collected. It may be invalid already: ask after this.
    ///
    /// Each root takes a connection of its own, and so a process of the daemon.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    pub fn temp_root(&self, path: &StorePath) -> Result<TempRoot, StoreError> {
        let mut connection = Connection::open(&self.shared.socket)?;
        connection.add_temp_root(self.store_dir(), path)?;
        Ok(TempRoot {
            _connection: connection,
        })
    }

    /// A connection on which the bytes of the path's NAR follow.
    pub(super) fn begin_nar(&self, path: &StorePath) -> Result<Connection, StoreError> {
        let mut connection = self.connection()?;
        match connection.begin_nar(self.store_dir(), path) {
            Ok(()) => Ok(connection),
            Err(StoreError::Refused) => {
                self.put_back(connection);
                Err(StoreError::Refused)
            }
            // The connection may have been dead since its last use.
            Err(_) => {
                let mut connection = Connection::open(&self.shared.socket)?;
                connection.begin_nar(self.store_dir(), path)?;
                Ok(connection)
            }
        }
    }

    /// Keeps the connection for the next question, if it can be used for one.
    pub(super) fn put_back(&self, connection: Connection) {
        let mut idle = self.idle();
        if connection.is_in_step() && idle.len() < IDLE_COUNT_MAX {
            idle.push(connection);
        }
    }

    pub(super) fn store_dir(&self) -> &StoreDir {
        &self.shared.store_dir
    }

    fn ask<T>(
        &self,
        ask: impl Fn(&mut Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let idle = self.idle().pop();
        if let Some(mut connection) = idle {
            let result = ask(&mut connection);
            if matches!(result, Ok(_) | Err(StoreError::Refused)) {
                self.put_back(connection);
                return result;
            }
            // The daemon may have been restarted since. All questions can be asked twice.
            self.idle().clear();
        }
        let mut connection = Connection::open(&self.shared.socket)?;
        let result = ask(&mut connection);
        self.put_back(connection);
        result
    }

    fn connection(&self) -> Result<Connection, StoreError> {
        let idle = self.idle().pop();
        idle.map_or_else(|| Connection::open(&self.shared.socket), Ok)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.shared
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
