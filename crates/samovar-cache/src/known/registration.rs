//! The registration of a path, and whether it is still current.

use std::io;
use std::sync::Arc;

use samovar_metrics::{Event, Observer};
use samovar_nix::PathInfo;
use samovar_store::{Snapshot, Store, StoreError, TreeError};

use crate::known::health::Health;
use crate::refusal::Refusal;

/// The registration of a path at the start of a response.
///
/// Files are read after the row. If the path is collected and registered anew in between, the
/// response could mix two registrations; a look-up at the end detects that.
#[derive(Clone)]
pub(crate) struct Registration {
    pub(crate) info: PathInfo,
    /// The snapshot of the store before the row was read. While it is current, no look-up is
    /// needed.
    pub(crate) snapshot: Option<Arc<Snapshot>>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) health: Arc<Health>,
}

/// The path was collected or registered anew during the response.
#[derive(Debug, thiserror::Error)]
#[error("path was collected or registered anew on the way")]
pub(crate) struct Collected;

impl From<Collected> for io::Error {
    fn from(collected: Collected) -> Self {
        Self::new(io::ErrorKind::NotFound, collected)
    }
}

impl Registration {
    /// Whether this registration was valid all the time since the row was read.
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
        let now = self.store.lookup(self.info.path.hash_part())?;
        Ok(now.is_some_and(|now| {
            now.registration == self.info.registration && now.nar_hash == self.info.nar_hash
        }))
    }

    /// Refuses a path that is quarantined or suspect.
    pub(crate) fn admit(&self) -> Result<(), Refusal> {
        let epoch = self.snapshot.as_ref().map(|snapshot| snapshot.epoch);
        self.health.admit(&self.info, epoch)
    }

    /// Reports an error of reading the files, unless they were collected, which is not damage.
    pub(crate) fn report(&self, error: &io::Error) {
        let finding = finding(error);
        if finding == Finding::Failure {
            return self.observer.event(&Event::PathFailed {
                path: &self.info.path,
                error,
            });
        }
        match self.is_current() {
            Ok(false) => self.observer.event(&Event::PathCollected(&self.info.path)),
            Ok(true) if finding == Finding::Damage && self.is_mounted(error) => {
                self.health.note_damaged(&self.info, error);
            }
            Ok(true) if finding == Finding::Damage => {
                self.observer.event(&Event::PathFailed {
                    path: &self.info.path,
                    error,
                });
            }
            Ok(true) => self.health.suspect(&self.info),
            // The outage of the store is reported separately.
            Err(_) => {}
        }
    }

    /// Whether the store is mounted: in an empty mount point a missing file proves nothing.
    fn is_mounted(&self, error: &io::Error) -> bool {
        error.kind() != io::ErrorKind::NotFound
            || self
                .store
                .tree(&self.info.path)
                .is_ok_and(|tree| tree.has_neighbours())
    }
}

/// The meaning of an error of reading files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finding {
    /// The files are not the registered ones.
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

/// The error for a NAR that is shorter or longer than its registered size.
pub(crate) fn wrong_size(how: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("NAR is {how} than its registered size"),
    )
}

/// The error for files that make another NAR than the registered one.
pub(crate) fn wrong_contents() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "NAR has another hash than the registered one",
    )
}
