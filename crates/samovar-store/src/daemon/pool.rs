//! Connections to one daemon, opened as needed and kept.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use samovar_nix::{HashPart, PathInfo, StoreDir, StorePath};

use super::connection::Connection;
use super::roots::TempRoots;
use crate::error::{Irregularity, StoreError, Unavailable};
use crate::realisation::RealisationId;
use crate::sync::Locked;

/// Idle connections that are kept: each is a process on the daemon's side.
const IDLE_COUNT_MAX: usize = 4;

/// How long the daemon may be silent. It may wait for a lock of the database itself.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// How long a daemon is not asked for realisations after that came to nothing. Asking costs it a
/// process, and us the time of its silence.
const VERDICT_LIFE: Duration = Duration::from_secs(60);

/// A daemon, asked over as many connections as there are questions at once. Clones share them.
#[derive(Debug, Clone)]
pub struct Daemon {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    socket: PathBuf,
    store_dir: StoreDir,
    silence_max: Duration,
    idle: Mutex<Vec<Connection>>,
    /// Set when questions for realisations have come to nothing: the answer to all of them for some
    /// time.
    realisations: Mutex<Option<Verdict>>,
}

/// What became of the last question for a realisation.
#[derive(Debug, Clone, Copy)]
struct Verdict {
    /// `None`: the daemon has no realisations.
    error: Option<StoreError>,
    at: Instant,
}

enum Asked {
    Answer(Option<String>),
    /// Twice in a row.
    Broke,
}

impl Daemon {
    /// A daemon that listens at `socket`, and may be silent for 15 seconds. Nothing is connected
    /// yet.
    #[must_use]
    pub fn new(socket: PathBuf, store_dir: StoreDir) -> Self {
        Self::with_silence_max(socket, store_dir, SILENCE_MAX)
    }

    /// A daemon that may be silent for `silence_max` in the middle of an answer.
    #[must_use]
    pub fn with_silence_max(socket: PathBuf, store_dir: StoreDir, silence_max: Duration) -> Self {
        Self {
            shared: Arc::new(Shared {
                socket,
                store_dir,
                silence_max,
                idle: Mutex::default(),
                realisations: Mutex::default(),
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
    /// A daemon of Nix 2.8 whose administrator did not enable the experiment does not say so: its
    /// process for the connection ends in a failed assertion. When that happens on two connections
    /// in a row, the daemon counts as one without realisations for a minute. A single break is that
    /// of a daemon being restarted, and silence tells nothing: it is an error, for a minute, too.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    pub fn realisation(&self, id: &RealisationId) -> Result<Option<String>, StoreError> {
        let verdict = *self.shared.realisations.locked();
        if let Some(verdict) = verdict.filter(|verdict| verdict.at.elapsed() < VERDICT_LIFE) {
            return verdict.error.map_or(Ok(None), Err);
        }
        let result = self.ask_for_realisation(id);
        let error = match result {
            Ok(Asked::Answer(document)) => return Ok(document),
            Ok(Asked::Broke) => None,
            Err(error @ StoreError::Unavailable(Unavailable::DaemonTimeout)) => Some(error),
            Err(error) => return Err(error),
        };
        *self.shared.realisations.locked() = Some(Verdict {
            error,
            at: Instant::now(),
        });
        error.map_or(Ok(None), Err)
    }

    fn ask_for_realisation(&self, id: &RealisationId) -> Result<Asked, StoreError> {
        for _ in 0..2 {
            // On a connection of its own, so that a break is not taken for that of an idle one.
            let mut connection = self.connect()?;
            match connection.realisation(self.store_dir(), id) {
                Ok(document) => {
                    self.put_back(connection);
                    return Ok(Asked::Answer(document));
                }
                // Newer daemons without the experiment say so.
                Err(StoreError::Refused) => return Ok(Asked::Answer(None)),
                Err(StoreError::Protocol(Irregularity::EndedEarly)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Asked::Broke)
    }

    /// A connection of its own, and so a process of the daemon, on which paths are kept from being
    /// collected.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    pub fn temp_roots(&self) -> Result<TempRoots, StoreError> {
        Ok(TempRoots::new(self.connect()?, self.store_dir().clone()))
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
                let mut connection = self.connect()?;
                connection.begin_nar(self.store_dir(), path)?;
                Ok(connection)
            }
        }
    }

    /// Keeps the connection for the next question, if it can be used for one.
    pub(super) fn put_back(&self, connection: Connection) {
        let mut idle = self.shared.idle.locked();
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
        let idle = self.shared.idle.locked().pop();
        if let Some(mut connection) = idle {
            let result = ask(&mut connection);
            if matches!(result, Ok(_) | Err(StoreError::Refused)) {
                self.put_back(connection);
                return result;
            }
            // The daemon may have been restarted since. All questions can be asked twice.
            self.shared.idle.locked().clear();
        }
        let mut connection = self.connect()?;
        let result = ask(&mut connection);
        self.put_back(connection);
        result
    }

    fn connect(&self) -> Result<Connection, StoreError> {
        Connection::open(&self.shared.socket, self.shared.silence_max)
    }

    fn connection(&self) -> Result<Connection, StoreError> {
        let idle = self.shared.idle.locked().pop();
        idle.map_or_else(|| self.connect(), Ok)
    }
}
