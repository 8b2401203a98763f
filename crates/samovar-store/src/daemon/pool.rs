//! [`Daemon`]: a pool of connections to one daemon.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use samovar_nix::{HashPart, PathInfo, StoreDir, StorePath};

use super::connection::{Connection, TempRoots};
use crate::error::{Irregularity, StoreError, Unavailable};
use crate::realisation::RealisationId;
use crate::sync::Locked;

/// Maximum number of idle connections. Each occupies a process of the daemon.
const IDLE_COUNT_MAX: usize = 4;

/// Timeout of each read and write. The daemon may itself wait for a lock of the database.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// Lifetime of a cached failure to query realisations. Each attempt costs a process of the daemon,
/// or the full timeout.
const FAILURE_LIFE: Duration = Duration::from_secs(60);

/// A daemon and its connections, one per concurrent query. Clones share the connections.
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
    /// The cached failure of realisation queries, returned to all queries until it expires; `None`
    /// before the first failure.
    realisations: Mutex<Option<CachedFailure>>,
}

/// A cached failure of a realisation query.
#[derive(Debug, Clone, Copy)]
struct CachedFailure {
    /// The error that queries return until it expires. `None` if the daemon does not support
    /// realisations: queries then return no realisation.
    error: Option<StoreError>,
    at: Instant,
}

enum RealisationAnswer {
    Answer(Option<String>),
    /// The daemon closed two connections in a row.
    Closed,
}

impl Daemon {
    /// Creates a client of the daemon at `socket`, with a timeout of 15 seconds. Does not connect.
    #[must_use]
    pub fn new(socket: PathBuf, store_dir: StoreDir) -> Self {
        Self::with_silence_max(socket, store_dir, SILENCE_MAX)
    }

    /// Creates a client whose reads and writes time out after `silence_max`.
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

    /// Returns the path of the daemon's socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.shared.socket
    }

    /// Checks that the daemon responds; connects unless a connection is open.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`] that prevents a response.
    pub fn probe(&self) -> Result<(), StoreError> {
        let connection = self.connection()?;
        self.put_back(connection);
        Ok(())
    }

    /// Looks up the path with this hash part; returns `None` if it is absent. A path of unknown NAR
    /// size counts as absent, as in [`Store::lookup`](crate::Store::lookup).
    /// [`Store::lookup`](crate::Store::lookup).
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    pub fn lookup(&self, hash_part: HashPart) -> Result<Option<PathInfo>, StoreError> {
        let dir = self.store_dir();
        let info =
            self.query(
                |connection| match connection.path_from_hash_part(dir, hash_part)? {
                    Some(path) => connection.path_info(dir, path),
                    None => Ok(None),
                },
            )?;
        Ok(info.filter(|info| info.nar_size > 0))
    }

    /// Returns whether the path is valid.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    pub fn is_valid(&self, path: &StorePath) -> Result<bool, StoreError> {
        self.query(|connection| connection.is_valid(self.store_dir(), path))
    }

    /// Looks up a realisation; returns its JSON document, or `None` if it is absent or the daemon
    /// does not support realisations.
    ///
    /// A daemon of Nix 2.8 without the experimental feature does not return an error: its process
    /// fails an assertion and closes the connection. If that happens on two connections in a row,
    /// the daemon counts as one without realisations for a minute. A single closed connection may
    /// mean a restart. A timeout is an error, which is also cached for a minute.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    pub fn realisation(&self, id: &RealisationId) -> Result<Option<String>, StoreError> {
        let failure = *self.shared.realisations.locked();
        if let Some(failure) = failure.filter(|failure| failure.at.elapsed() < FAILURE_LIFE) {
            return failure.error.map_or(Ok(None), Err);
        }
        let result = self.query_realisation(id);
        let error = match result {
            Ok(RealisationAnswer::Answer(document)) => return Ok(document),
            Ok(RealisationAnswer::Closed) => None,
            Err(error @ StoreError::Unavailable(Unavailable::DaemonTimeout)) => Some(error),
            Err(error) => return Err(error),
        };
        *self.shared.realisations.locked() = Some(CachedFailure {
            error,
            at: Instant::now(),
        });
        error.map_or(Ok(None), Err)
    }

    fn query_realisation(&self, id: &RealisationId) -> Result<RealisationAnswer, StoreError> {
        for _ in 0..2 {
            // Use a new connection: the daemon may have closed an idle one for other reasons.
            let mut connection = self.connect()?;
            match connection.realisation(self.store_dir(), id) {
                Ok(document) => {
                    self.put_back(connection);
                    return Ok(RealisationAnswer::Answer(document));
                }
                // Newer daemons without the experimental feature send an error.
                Err(StoreError::Refused) => return Ok(RealisationAnswer::Answer(None)),
                Err(StoreError::Protocol(Irregularity::EndedEarly)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(RealisationAnswer::Closed)
    }

    /// Opens a separate connection, and so a process of the daemon, for temporary GC roots.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    pub fn temp_roots(&self) -> Result<TempRoots, StoreError> {
        Ok(TempRoots {
            connection: self.connect()?,
            store_dir: self.store_dir().clone(),
        })
    }

    /// Returns a connection to the pool, if it is reusable.
    fn put_back(&self, connection: Connection) {
        let mut idle = self.shared.idle.locked();
        if connection.is_in_step() && idle.len() < IDLE_COUNT_MAX {
            idle.push(connection);
        }
    }

    fn store_dir(&self) -> &StoreDir {
        &self.shared.store_dir
    }

    fn query<T>(
        &self,
        run: impl Fn(&mut Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let idle = self.shared.idle.locked().pop();
        if let Some(mut connection) = idle {
            let result = run(&mut connection);
            if matches!(result, Ok(_) | Err(StoreError::Refused)) {
                self.put_back(connection);
                return result;
            }
            // The daemon may have been restarted since this idle connection was opened. Every
            // request can be repeated safely, so drop all idle connections and repeat this request
            // on a new one.
            self.shared.idle.locked().clear();
        }
        let mut connection = self.connect()?;
        let result = run(&mut connection);
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
