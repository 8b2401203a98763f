//! [`LocalStore`]: the store on this machine, read directly or through its daemon.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::Connection;
use rustix::fs::Access;
use samovar_nix::{HashPart, PathInfo, StoreDir, StorePath};

use crate::catalog::Catalog;
use crate::closure::{Closure, by_lookups, lookup_each};
use crate::daemon::Daemon;
use crate::database::{self, Database, Scanned, SchemaWarning};
use crate::error::{Corruption, LookupResult, StoreError, Unavailable};
use crate::location::Location;
use crate::log::{self, Log};
use crate::realisation::{Realisation, RealisationId};
use crate::store::Store;
use crate::tree::Tree;

/// A store that reads the files directly, and the database directly where possible. If the database
/// cannot be read, it asks the daemon, at a hundred times the cost.
#[derive(Debug)]
pub struct LocalStore {
    location: Location,
    database: Arc<Database>,
    catalog: Catalog,
    daemon: Daemon,
    /// Whether the last [`probe`](Store::probe) found the database unreadable and used the daemon
    /// in its place.
    is_left_to_daemon: AtomicBool,
}

impl LocalStore {
    /// Creates the store of a location without opening anything. While neither the database nor the
    /// daemon can be used, every look-up returns the error of the database.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`] if a thread cannot be started.
    pub fn new(location: Location) -> Result<Self, StoreError> {
        let database = Arc::new(Database::new(&location));
        let catalog = Catalog::new(Arc::clone(&database), &location.store_dir)?;
        let daemon = Daemon::new(location.socket.clone(), location.store_dir.clone());
        Ok(Self {
            location,
            database,
            catalog,
            daemon,
            is_left_to_daemon: AtomicBool::new(false),
        })
    }

    /// Checks that the database is readable.
    pub(crate) fn probe_database(&self) -> Result<(), StoreError> {
        self.database.session().map(drop)
    }

    /// Returns whether the daemon responds.
    pub(crate) fn has_daemon(&self) -> bool {
        self.daemon.probe().is_ok()
    }

    /// Returns whether to use the daemon when this process gets `error` from the database.
    ///
    /// The daemon is not used after a database has disappeared: Nix creates an empty one in its
    /// place, so the daemon would report every path as absent. Nor is it used while the database is
    /// being replaced: the daemon would read a half-written file.
    pub(crate) fn leaves_to_daemon(&self, error: StoreError) -> bool {
        let reason = match error {
            StoreError::Unavailable(reason) => reason,
            other => return other == StoreError::Corrupt(Corruption::RealisationTable),
        };
        match reason {
            Unavailable::DatabaseMissing => !self.database.was_read(),
            Unavailable::ForeignWal | Unavailable::BeingReplaced | Unavailable::Stalled => false,
            _ => true,
        }
    }

    /// Returns whether the store directory exists and is readable.
    pub(crate) fn has_files(&self) -> bool {
        let needed = Access::READ_OK | Access::EXEC_OK;
        rustix::fs::access(&self.location.real_dir, needed).is_ok()
    }

    /// Queries the database, or the daemon if the database cannot be opened.
    fn query<T>(
        &self,
        database: impl Fn(&Connection, &StoreDir) -> Result<T, StoreError>,
        daemon: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.or_daemon(self.database.query(database), daemon)
    }

    /// Replaces an error of the database by the daemon's result, if the daemon may be used.
    fn or_daemon<T>(
        &self,
        result: Result<T, StoreError>,
        daemon: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match result {
            Err(error) if self.leaves_to_daemon(error) => match daemon() {
                // Report the error of the database, not the daemon's: the operator can fix
                // the database.
                Err(StoreError::Unavailable(Unavailable::DaemonUnreachable)) => Err(error),
                other => other,
            },
            other => other,
        }
    }
}

impl Store for LocalStore {
    fn store_dir(&self) -> &StoreDir {
        &self.location.store_dir
    }

    fn lookup(&self, hash_part: HashPart) -> Result<Option<PathInfo>, StoreError> {
        self.query(
            |connection, dir| database::path_info(connection, dir, hash_part),
            || self.daemon.lookup(hash_part),
        )
    }

    fn lookup_many(&self, hash_parts: &[HashPart]) -> Result<Vec<LookupResult>, StoreError> {
        self.query(
            |connection, dir| database::path_infos(connection, dir, hash_parts),
            || lookup_each(hash_parts, |hash_part| self.daemon.lookup(hash_part)),
        )
    }

    fn closure(
        &self,
        hash_part: HashPart,
        count_max: usize,
    ) -> Result<Option<Closure>, StoreError> {
        let by_daemon = |hash_part| self.daemon.lookup(hash_part);
        self.query(
            |connection, dir| database::closure(connection, dir, hash_part, count_max),
            || by_lookups(hash_part, count_max, by_daemon),
        )
    }

    fn newest(&self, before: Option<i64>, count_max: usize) -> Result<Vec<PathInfo>, StoreError> {
        // The daemon cannot list the newest paths, because its protocol has no registration
        // numbers.
        self.database
            .query(|connection, dir| database::newest(connection, dir, before, count_max))
    }

    fn scan(&self, after: &str, accepts: &dyn Fn(&str) -> bool) -> Result<Scanned, StoreError> {
        self.database
            .query(|connection, dir| database::scan(connection, dir, after, accepts))
    }

    fn referrers(&self, info: &PathInfo, count_max: usize) -> Result<Vec<StorePath>, StoreError> {
        let Some(id) = info.registration else {
            return Ok(Vec::new());
        };
        self.database
            .query(|connection, dir| database::referrers(connection, dir, id, count_max))
    }

    fn tree(&self, path: &StorePath) -> Result<Tree, StoreError> {
        Ok(Tree::of_files(
            self.location.real_dir.join(path.base_name()),
        ))
    }

    fn log(&self, path: &StorePath) -> Result<Option<Log>, StoreError> {
        if let Some(log) = log::open(&self.location.log_dir, path)? {
            return Ok(Some(log));
        }
        if path.is_derivation() {
            return Ok(None);
        }
        let info = self.lookup(path.hash_part())?;
        let deriver = info.filter(|info| info.path == *path);
        match deriver.and_then(|info| info.deriver) {
            Some(deriver) => log::open(&self.location.log_dir, &deriver),
            None => Ok(None),
        }
    }

    fn outputs(&self, derivation: &StorePath) -> Result<Vec<StorePath>, StoreError> {
        // The daemon is not queried for outputs.
        self.database
            .query(|connection, dir| database::outputs(connection, dir, derivation))
    }

    fn realisation(&self, id: &RealisationId) -> Result<Option<Realisation>, StoreError> {
        let document = self.query(
            |connection, dir| database::realisation(connection, dir, id),
            || self.daemon.realisation(id),
        )?;
        document.map(Realisation::new).transpose()
    }

    fn catalog(&self) -> Option<&Catalog> {
        Some(&self.catalog)
    }

    fn down(&self) -> Option<StoreError> {
        let error = self.database.down();
        error.filter(|error| !self.leaves_to_daemon(*error))
    }

    fn take_schema_warning(&self) -> Option<SchemaWarning> {
        self.database.take_schema_warning()
    }

    fn uses_wal(&self) -> Result<Option<bool>, StoreError> {
        let mode: String = self.database.query(|connection, _dir| {
            Ok(connection.query_row("pragma journal_mode", [], |row| row.get(0))?)
        })?;
        // A connection that takes the file for immutable does not report the mode of the file.
        Ok(Some(mode == "wal" || self.database.is_wal_file()))
    }

    fn daemon(&self) -> Option<&Daemon> {
        Some(&self.daemon)
    }

    fn probe(&self) -> Result<(), StoreError> {
        let is_left = Cell::new(false);
        let answer = self.or_daemon(self.probe_database(), || {
            is_left.set(true);
            self.daemon.probe()
        });
        self.is_left_to_daemon
            .store(is_left.get(), Ordering::Relaxed);
        answer
    }

    fn is_left_to_daemon(&self) -> bool {
        self.is_left_to_daemon.load(Ordering::Relaxed)
    }
}
