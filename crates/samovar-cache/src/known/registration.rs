//! The registration of a path, and whether it is still current.

#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;

use samovar_metrics::{Event, Observer};
use samovar_store::{Snapshot, Store, StoreError, TreeError};

use crate::known::health::Health;
use crate::known::row::Row;
use crate::refusal::Refusal;

/// The registration of a path at the start of a response.
///
/// Files are read after the row. If the path is garbage-collected and registered again in between,
/// the response could mix two registrations. Another look-up at the end of the response detects
/// this.
#[derive(Clone)]
pub(crate) struct Registration {
    pub(crate) row: Row,
    /// The catalog's snapshot from before the row was read; `None` if the store has no catalog.
    /// While the snapshot is current, the check at the end of the response needs no look-up.
    pub(crate) snapshot: Option<Arc<Snapshot>>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) health: Arc<Health>,
}

/// Error: while the response was being sent, the path was garbage-collected, or registered anew.
#[derive(Debug, thiserror::Error)]
#[error("path was collected or registered again while it was read")]
pub(crate) struct Collected;

impl From<Collected> for io::Error {
    fn from(collected: Collected) -> Self {
        Self::new(io::ErrorKind::NotFound, collected)
    }
}

impl Registration {
    /// Whether this registration has been valid ever since the row was read.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    pub(crate) fn is_current(&self) -> Result<bool, StoreError> {
        if let (Some(catalog), Some(snapshot)) = (self.store.catalog(), &self.snapshot) {
            let mut current = Arc::clone(snapshot);
            if catalog.check_patiently(&mut current) && current.epoch == snapshot.epoch {
                return Ok(true);
            }
        }
        let now = self.store.lookup(self.row.path.hash_part())?;
        Ok(now.is_some_and(|now| {
            now.registration == self.row.registration && now.nar_hash == self.row.nar_hash
        }))
    }

    /// Returns an error if the path is quarantined or suspect.
    pub(crate) fn admit(&self) -> Result<(), Refusal> {
        let epoch = self.snapshot.as_ref().map(|snapshot| snapshot.epoch);
        self.health.admit(&self.row, epoch)
    }

    /// Reports an error that occurred while reading the files. Decides whether it means damage, a
    /// garbage-collected path, or a temporary failure.
    pub(crate) fn report(&self, error: &io::Error) {
        let finding = finding(error);
        if finding == Finding::Failure {
            return self.observer.event(&Event::PathFailed {
                path: &self.row.path,
                error,
            });
        }
        match self.is_current() {
            Ok(false) => self.observer.event(&Event::PathCollected(&self.row.path)),
            Ok(true) if finding == Finding::Damage && self.is_mounted(error) => {
                self.health.note_damaged(&self.row, error);
            }
            Ok(true) if finding == Finding::Damage => {
                self.observer.event(&Event::PathFailed {
                    path: &self.row.path,
                    error,
                });
            }
            // The outage of the store is reported separately.
            Ok(true) | Err(_) => self.health.suspect(&self.row),
        }
    }

    /// Whether the store is mounted. If it is not, a missing file is no sign of damage.
    fn is_mounted(&self, error: &io::Error) -> bool {
        error.kind() != io::ErrorKind::NotFound
            || self
                .store
                .tree(&self.row.path)
                .is_ok_and(|tree| tree.has_neighbours())
    }
}

/// The cause of an error that occurred while reading files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finding {
    /// The files do not match their registration.
    Damage,
    /// The files changed while they were read, or since their plan was made.
    Change,
    /// The files cannot be read now: no descriptors, no memory, no permission, a failing disk.
    Failure,
}

fn finding(error: &io::Error) -> Finding {
    use io::ErrorKind as Kind;
    let inner = error.get_ref();
    let is_change = inner.is_some_and(|inner| {
        inner.is::<Collected>() || matches!(inner.downcast_ref(), Some(TreeError::Changed))
    });
    match error.kind() {
        _ if is_change => Finding::Change,
        Kind::NotFound | Kind::UnexpectedEof | Kind::InvalidData | Kind::Unsupported => {
            Finding::Damage
        }
        _ => Finding::Failure,
    }
}

/// Makes the error for a NAR whose length differs from the registered one.
pub(crate) fn wrong_size(how: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("NAR is {how} than its registered size"),
    )
}

/// Makes the error for files whose NAR has another hash than the registered one.
pub(crate) fn wrong_contents() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "NAR has another hash than the registered one",
    )
}
