//! [`DaemonStore`]: a local store with a daemon as fallback.

use std::sync::atomic::{AtomicBool, Ordering};

use samovar_nix::{HashPart, PathInfo, StoreDir, StorePath};

use super::nar::RemoteNar;
use super::pool::Daemon;
use crate::catalog::Catalog;
use crate::closure::{Closure, by_lookups};
use crate::database::SchemaWarning;
use crate::error::{LookupResult, Operation, StoreError, Unavailable};
use crate::local::LocalStore;
use crate::log::Log;
use crate::realisation::{Realisation, RealisationId};
use crate::store::{Store, lookup_each};
use crate::tree::Tree;

/// A store that reads the database and the files directly where possible, and uses the daemon
/// otherwise.
///
/// Queries go to the database while it is readable, at a hundredth of the daemon's cost. NARs are
/// made from the files if the store directory is readable; otherwise the daemon sends them.
#[derive(Debug)]
pub struct DaemonStore {
    local: LocalStore,
    daemon: Daemon,
    /// Whether the daemon answered the last [`probe`](Store::probe).
    is_left_to_daemon: AtomicBool,
}

impl DaemonStore {
    /// Creates a store from a local one and its daemon.
    #[must_use]
    pub fn new(local: LocalStore, daemon: Daemon) -> Self {
        Self {
            local,
            daemon,
            is_left_to_daemon: AtomicBool::new(false),
        }
    }

    /// Returns the result of the database, or of the daemon if the database cannot be opened.
    fn either<T>(
        &self,
        database: impl FnOnce() -> Result<T, StoreError>,
        daemon: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match database() {
            Err(error) if self.local.leaves_to_daemon(error) => match daemon() {
                // Report the database's error: the operator can fix that one.
                Err(StoreError::Unavailable(Unavailable::DaemonUnreachable)) => Err(error),
                other => other,
            },
            other => other,
        }
    }
}

impl Store for DaemonStore {
    fn store_dir(&self) -> &StoreDir {
        self.local.store_dir()
    }

    fn lookup(&self, hash_part: HashPart) -> Result<Option<PathInfo>, StoreError> {
        self.either(
            || self.local.lookup(hash_part),
            || self.daemon.lookup(hash_part),
        )
    }

    fn lookup_many(&self, hash_parts: &[HashPart]) -> Result<Vec<LookupResult>, StoreError> {
        self.either(
            || self.local.lookup_many(hash_parts),
            || lookup_each(hash_parts, |hash_part| self.daemon.lookup(hash_part)),
        )
    }

    fn closure(
        &self,
        hash_part: HashPart,
        count_max: usize,
    ) -> Result<Option<Closure>, StoreError> {
        self.either(
            || self.local.closure(hash_part, count_max),
            || {
                by_lookups(hash_part, count_max, |hash_part| {
                    self.daemon.lookup(hash_part)
                })
            },
        )
    }

    fn newest(&self, before: Option<i64>, count_max: usize) -> Result<Vec<PathInfo>, StoreError> {
        // The daemon has no registration numbers.
        self.local.newest(before, count_max)
    }

    fn tree(&self, path: &StorePath) -> Result<Tree, StoreError> {
        if self.local.has_files() {
            return self.local.tree(path);
        }
        match self.daemon.path_info(path)? {
            Some(info) => Ok(Tree::of_daemon(RemoteNar::new(self.daemon.clone(), info))),
            None => Err(StoreError::Io {
                operation: Operation::OpenPath,
                kind: std::io::ErrorKind::NotFound,
            }),
        }
    }

    fn log(&self, path: &StorePath) -> Result<Option<Log>, StoreError> {
        self.local.log_of(path, || {
            let info = self.either(
                || self.local.lookup(path.hash_part()),
                || self.daemon.lookup(path.hash_part()),
            )?;
            Ok(info
                .filter(|info| info.path == *path)
                .and_then(|info| info.deriver))
        })
    }

    fn outputs(&self, derivation: &StorePath) -> Result<Vec<StorePath>, StoreError> {
        // The daemon is not queried for outputs.
        self.local.outputs(derivation)
    }

    fn realisation(&self, id: &RealisationId) -> Result<Option<Realisation>, StoreError> {
        self.either(
            || self.local.realisation(id),
            || {
                self.daemon
                    .realisation(id)?
                    .map(Realisation::new)
                    .transpose()
            },
        )
    }

    fn catalog(&self) -> Option<&Catalog> {
        self.local.catalog()
    }

    fn down(&self) -> Option<StoreError> {
        let error = self.local.down();
        error.filter(|error| !self.local.leaves_to_daemon(*error))
    }

    fn take_schema_warning(&self) -> Option<SchemaWarning> {
        self.local.take_schema_warning()
    }

    fn daemon(&self) -> Option<&Daemon> {
        Some(&self.daemon)
    }

    fn probe(&self) -> Result<(), StoreError> {
        let is_left = AtomicBool::new(false);
        let answer = self.either(
            || self.local.probe(),
            || {
                is_left.store(true, Ordering::Relaxed);
                self.daemon.probe()
            },
        );
        self.is_left_to_daemon
            .store(is_left.into_inner(), Ordering::Relaxed);
        answer
    }

    fn is_left_to_daemon(&self) -> bool {
        self.is_left_to_daemon.load(Ordering::Relaxed)
    }
}
