//! [`EmptyStore`]: a machine without a Nix store.

use samovar_nix::{HashPart, StoreDir, StorePath};

use crate::catalog::Catalog;
use crate::error::{LookupResult, StoreError};
use crate::log::Log;
use crate::realisation::{Realisation, RealisationId};
use crate::store::Store;
use crate::tree::Tree;

/// A store without paths. A server with it serves uploaded paths only.
#[derive(Debug)]
pub struct EmptyStore {
    dir: StoreDir,
}

impl EmptyStore {
    /// Creates the store. `dir`: the prefix of the paths that it does not have.
    #[must_use]
    pub fn new(dir: StoreDir) -> Self {
        Self { dir }
    }
}

impl Store for EmptyStore {
    fn store_dir(&self) -> &StoreDir {
        &self.dir
    }

    fn lookup(&self, _: HashPart) -> LookupResult {
        Ok(None)
    }

    fn tree(&self, path: &StorePath) -> Result<Tree, StoreError> {
        // Reading its files fails as it does for a path that was deleted.
        Ok(Tree::of_files(path.full(&self.dir).into()))
    }

    fn log(&self, _: &StorePath) -> Result<Option<Log>, StoreError> {
        Ok(None)
    }

    fn realisation(&self, _: &RealisationId) -> Result<Option<Realisation>, StoreError> {
        Ok(None)
    }

    fn catalog(&self) -> Option<&Catalog> {
        None
    }

    fn probe(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn is_none(&self) -> bool {
        true
    }
}
