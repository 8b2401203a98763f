//! [`LocalStore`]: database, files and logs on this machine.

use std::sync::Arc;

use rustix::fs::Access;
use samovar_nix::{HashPart, PathInfo, StoreDir, StorePath};

use crate::catalog::Catalog;
use crate::closure::Closure;
use crate::daemon::Daemon;
use crate::database::{Database, SchemaWarning};
use crate::error::{LookupResult, StoreError, Unavailable};
use crate::location::Location;
use crate::log::{self, Log};
use crate::realisation::{Realisation, RealisationId};
use crate::store::Store;
use crate::tree::Tree;

/// A store read directly, without a daemon.
#[derive(Debug)]
pub struct LocalStore {
    location: Location,
    database: Arc<Database>,
    catalog: Catalog,
    daemon: Daemon,
}

impl LocalStore {
    /// Creates the store of a location without opening anything. While the database cannot be read,
    /// every look-up returns that error.
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
        })
    }

    /// Returns the directories of the store.
    #[must_use]
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Returns whether to use the daemon when this process gets `error` from the database.
    ///
    /// Not after a database has disappeared: Nix creates an empty one in its place, so the daemon
    /// would report every path as absent. Nor while the database is being replaced: the daemon
    /// would read a half-written file.
    pub(crate) fn leaves_to_daemon(&self, error: StoreError) -> bool {
        let StoreError::Unavailable(reason) = error else {
            return false;
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

    /// Opens the log of a path, or else of its deriver. Calls `deriver` only if the path has no log
    /// of its own.
    pub(crate) fn log_of(
        &self,
        path: &StorePath,
        deriver: impl FnOnce() -> Result<Option<StorePath>, StoreError>,
    ) -> Result<Option<Log>, StoreError> {
        if let Some(log) = log::open(&self.location.log_dir, path)? {
            return Ok(Some(log));
        }
        if path.is_derivation() {
            return Ok(None);
        }
        match deriver()? {
            Some(deriver) => log::open(&self.location.log_dir, &deriver),
            None => Ok(None),
        }
    }
}

impl Store for LocalStore {
    fn store_dir(&self) -> &StoreDir {
        &self.location.store_dir
    }

    fn lookup(&self, hash_part: HashPart) -> Result<Option<PathInfo>, StoreError> {
        self.database.path_info(hash_part)
    }

    fn lookup_many(&self, hash_parts: &[HashPart]) -> Result<Vec<LookupResult>, StoreError> {
        self.database.path_infos(hash_parts)
    }

    fn closure(
        &self,
        hash_part: HashPart,
        count_max: usize,
    ) -> Result<Option<Closure>, StoreError> {
        self.database.closure(hash_part, count_max)
    }

    fn newest(&self, before: Option<i64>, count_max: usize) -> Result<Vec<PathInfo>, StoreError> {
        self.database.newest(before, count_max)
    }

    fn tree(&self, path: &StorePath) -> Result<Tree, StoreError> {
        Ok(Tree::of_files(
            self.location.real_dir.join(path.base_name()),
        ))
    }

    fn log(&self, path: &StorePath) -> Result<Option<Log>, StoreError> {
        self.log_of(path, || {
            let info = self.lookup(path.hash_part())?;
            Ok(info
                .filter(|info| info.path == *path)
                .and_then(|info| info.deriver))
        })
    }

    fn outputs(&self, derivation: &StorePath) -> Result<Vec<StorePath>, StoreError> {
        self.database.outputs(derivation)
    }

    fn realisation(&self, id: &RealisationId) -> Result<Option<Realisation>, StoreError> {
        let document = self.database.realisation(id)?;
        document.map(Realisation::new).transpose()
    }

    fn catalog(&self) -> Option<&Catalog> {
        Some(&self.catalog)
    }

    fn down(&self) -> Option<StoreError> {
        self.database.down()
    }

    fn take_schema_warning(&self) -> Option<SchemaWarning> {
        self.database.take_schema_warning()
    }

    fn daemon(&self) -> Option<&Daemon> {
        Some(&self.daemon)
    }

    fn probe(&self) -> Result<(), StoreError> {
        self.database.session().map(drop)
    }
}
