//! An I/O thread's snapshot of the store.

use std::sync::Arc;

use samovar_http::Turn;
use samovar_store::{Catalog, Snapshot, Store};

/// An I/O thread's snapshot of the catalog, which is checked once per turn of the engine's event
/// loop.
#[derive(Debug)]
pub(crate) struct Fresh {
    snapshot: Option<Arc<Snapshot>>,
    /// The turn in which the snapshot was last checked, and whether it was current then; `None`
    /// before the first check.
    checked: Option<(Turn, bool)>,
}

impl Fresh {
    pub(crate) fn new(store: &dyn Store) -> Self {
        Self {
            snapshot: store.catalog().map(Catalog::current),
            checked: None,
        }
    }

    /// Returns the snapshot if it is current, otherwise `None`. It is checked once per turn of the
    /// event loop. That is enough, because all requests that a turn handles were sent before it
    /// began.
    pub(crate) fn snapshot(&mut self, store: &dyn Store, turn: Turn) -> Option<&Snapshot> {
        let (catalog, snapshot) = (store.catalog()?, self.snapshot.as_mut()?);
        let is_fresh = match self.checked {
            Some((checked, is_fresh)) if checked == turn => is_fresh,
            _ => catalog.check(snapshot),
        };
        self.checked = Some((turn, is_fresh));
        is_fresh.then_some(snapshot)
    }
}
