//! An observer that records events, and shared stores that report to it.

use std::sync::{Arc, Mutex};

use samovar_metrics::{Event, Observer};

use super::memory_store::MemoryStore;
use crate::known::nar_cache::NarCacheDirectory;
use crate::known::shared_store::{SharedConfig, SharedStore};
use crate::{Program, Trust};

/// An observer that records the names of events.
#[derive(Debug, Default)]
pub(crate) struct Recorder(Mutex<Vec<&'static str>>);

impl Recorder {
    /// Returns the names of the events since the last call.
    pub(crate) fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl samovar_http::Observer for Recorder {}

impl Observer for Recorder {
    fn event(&self, event: &Event<'_>) {
        let name = match event {
            Event::StoreFailed(_) => "store failed",
            Event::StoreRecovered => "store recovered",
            Event::RootsFailed(_) => "roots failed",
            Event::RootsRecovered => "roots recovered",
            Event::DenialsEnded(_) => "denials ended",
            Event::PathFailed { .. } => "path failed",
            Event::PathCollected(_) => "path collected",
            Event::PathQuarantined { .. } => "path quarantined",
            Event::PathReleased(_) => "path released",
            Event::PathVerified => "path verified",
            Event::ScrubProgress(_) => "scrub progress",
            Event::NarCacheFailed(_) => "NAR cache failed",
            Event::BulkLimitReached => "bulk limit reached",
            Event::LeasesFailed { .. } => "leases failed",
            Event::LeasesRecovered => "leases recovered",
            Event::Unleased(_) => "unleased",
            _ => "another event",
        };
        self.0.lock().unwrap().push(name);
    }
}

/// Makes the shared state of `store`, without GC leases and without a small-NAR cache.
pub(crate) fn shared(
    store: &MemoryStore,
    nar_cache: Option<NarCacheDirectory>,
) -> (Arc<SharedStore>, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::default());
    let config = SharedConfig {
        small_nar_memory_len: 0,
        nar_cache,
        gc_lease: None,
        trust: Trust::default(),
        program: Program::default(),
        shown_metrics: None,
    };
    let observer = Arc::<Recorder>::clone(&recorder);
    let shared = SharedStore::new(Box::new(store.clone()), config, observer);
    (Arc::new(shared), recorder)
}
