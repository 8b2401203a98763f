//! Which registration of a path an answer is about, and whether it is still the present one.

use std::fmt;
use std::io;
use std::sync::Arc;

use samovar_nix::{HashPart, PathInfo};
use samovar_store::{Snapshot, Store, StoreError};

use crate::cache::Cache;
use crate::observer::Observer;

/// A path as it was registered when its answer began.
///
/// Files are read after the row, so a path that is collected and registered anew meanwhile could
/// give an answer that is half of one and half of the other. Asking again at the end tells.
#[derive(Clone)]
pub(crate) struct Registration {
    pub(crate) info: PathInfo,
    /// The state of the store before the row was read: while it lasts, nobody need be asked.
    pub(crate) snapshot: Option<Arc<Snapshot>>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) observer: Arc<dyn Observer>,
}

impl Registration {
    /// Whether the path is registered as it was, without a break in between.
    ///
    /// # Errors
    ///
    /// If the store cannot say.
    pub(crate) fn holds(&self) -> Result<bool, StoreError> {
        if let (Some(catalog), Some(snapshot)) = (self.store.catalog(), &self.snapshot) {
            let mut current = Arc::clone(snapshot);
            if catalog.check(&mut current) && current.epoch == snapshot.epoch {
                return Ok(true);
            }
        }
        let now = self.store.lookup(self.info.path.hash_part())?;
        Ok(now.is_some_and(|now| {
            now.registration == self.info.registration && now.nar_hash == self.info.nar_hash
        }))
    }

    /// Reports why the files could not be read, unless they were collected: that is no damage.
    pub(crate) fn report(&self, error: &io::Error) {
        if is_damage(error.kind()) {
            match self.holds() {
                Ok(true) => self.observer.path_damaged(&self.info.path, error),
                Ok(false) => self.observer.path_collected(&self.info.path),
                // The store is in trouble, and says so by itself.
                Err(_) => {}
            }
        } else {
            self.observer.path_failed(&self.info.path, error);
        }
    }
}

/// Whether an error says that the files are not what was registered, rather than that they could
/// not be read: no descriptors, no memory, no permission, a failing disk.
fn is_damage(kind: io::ErrorKind) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        kind,
        Kind::NotFound | Kind::UnexpectedEof | Kind::InvalidData | Kind::Unsupported
    )
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("path", &self.info.path)
            .finish_non_exhaustive()
    }
}

impl Cache {
    /// What is known of a path, in a form that can tell later whether it still holds.
    pub(crate) fn registration(
        &self,
        hash_part: HashPart,
    ) -> Result<Option<Registration>, StoreError> {
        // While it is loaded or busy, the store may still answer, and that can be checked later.
        let snapshot = self.store.catalog().map(|catalog| {
            let refreshed = catalog.refresh().ok().flatten();
            refreshed.unwrap_or_else(|| catalog.current())
        });
        let info = self.lookup(hash_part)?;
        Ok(info.map(|info| Registration {
            info,
            snapshot,
            store: Arc::clone(&self.store),
            observer: Arc::clone(&self.observer),
        }))
    }
}
