//! A store on this machine: database, files, logs.

use std::sync::Arc;

use rustix::fs::Access;
use samovar_nix::{HashPart, PathInfo, StoreDir, StorePath};

use crate::catalog::Catalog;
use crate::closure::Closure;
use crate::daemon::Daemon;
use crate::database::{Database, SchemaRemark};
use crate::error::{StoreError, Unavailable};
use crate::location::Location;
use crate::log::{self, Log};
use crate::realisation::{Realisation, RealisationId};
use crate::store::{Looked, Store};
use crate::tree::Tree;

/// A store read without the help of a daemon, though it may have one.
#[derive(Debug)]
pub struct LocalStore {
    location: Location,
    database: Arc<Database>,
    catalog: Catalog,
    daemon: Daemon,
}

impl LocalStore {
    /// The store at a location. Nothing is opened: a database that cannot be read yet is an error
    /// of each question, until it can.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`] when no thread can be started.
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

    /// Where the store's parts are.
    #[must_use]
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Whether a daemon may know what this process does not get to see.
    ///
    /// Not when a database is gone that was there before: Nix makes a new one where there is none,
    /// and the daemon would say of each path, in good faith, that it does not exist. Nor when
    /// somebody is putting another one there, which the daemon would read half finished.
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

    /// Whether the store directory is there and readable.
    pub(crate) fn has_files(&self) -> bool {
        let needed = Access::READ_OK | Access::EXEC_OK;
        rustix::fs::access(&self.location.real_dir, needed).is_ok()
    }

    /// The log of a path, whose deriver is looked up only when the path has no log of its own.
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
        self.database.path_info(&self.location.store_dir, hash_part)
    }

    fn lookup_many(&self, hash_parts: &[HashPart]) -> Result<Vec<Looked>, StoreError> {
        self.database
            .path_infos(&self.location.store_dir, hash_parts)
    }

    fn closure(
        &self,
        hash_part: HashPart,
        count_max: usize,
    ) -> Result<Option<Closure>, StoreError> {
        self.database
            .closure(&self.location.store_dir, hash_part, count_max)
    }

    fn newest(&self, before: Option<i64>, count_max: usize) -> Result<Vec<PathInfo>, StoreError> {
        self.database
            .newest(&self.location.store_dir, before, count_max)
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
        self.database.outputs(&self.location.store_dir, derivation)
    }

    fn realisation(&self, id: &RealisationId) -> Result<Option<Realisation>, StoreError> {
        let document = self.database.realisation(&self.location.store_dir, id)?;
        document.map(Realisation::new).transpose()
    }

    fn catalog(&self) -> Option<&Catalog> {
        Some(&self.catalog)
    }

    fn down(&self) -> Option<StoreError> {
        self.database.down()
    }

    fn take_remark(&self) -> Option<SchemaRemark> {
        self.database.take_remark()
    }

    fn daemon(&self) -> Option<&Daemon> {
        Some(&self.daemon)
    }

    fn probe(&self) -> Result<(), StoreError> {
        self.database.session().map(drop)
    }
}
