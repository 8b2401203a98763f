//! Access to the monitored server.

use std::time::Duration;

use samovar_http::{Load, Server, Service};
use samovar_nix::HashPart;
use samovar_store::StoreError;

use crate::status::{CacheStatus, StoreStatus};
use crate::storage::StorageStatus;
use crate::upstream::UpstreamStatus;

/// An application whose status is monitored.
pub trait Monitored: Send + Sync {
    /// Returns the status of the store and the caches. Never blocks.
    fn status(&self) -> SiteStatus;

    /// Checks that the store can be read. May block for as long as a disk does.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    fn probe_store(&self) -> Result<(), StoreError>;

    /// Returns another reason why requests cannot be answered, although the store can be read;
    /// `None` if there is none. Never blocks.
    fn not_ready(&self) -> Option<String> {
        None
    }

    /// Looks up the name of a path; `None` if it is unknown. May block.
    fn name_of(&self, hash_part: HashPart) -> Option<String>;
}

/// The status of a store and the caches in front of it.
#[derive(Debug, Clone, Default)]
pub struct SiteStatus {
    /// The store's status, without ages and errors, which only the sampler knows.
    pub store: StoreStatus,
    /// The status of the storage for uploads, if there is one.
    pub storage: Option<StorageStatus>,
    /// The status of the upstream caches.
    pub upstreams: Vec<UpstreamStatus>,
    /// URL of the web interface that shows paths; see
    /// [`ServerStatus::pages_url`](crate::ServerStatus::pages_url).
    pub pages_url: Option<String>,
    /// The caches' status, without the hits that are counted per request.
    pub caches: Vec<CacheStatus>,
}

/// A monitored server as a trait object.
pub(crate) trait Probe: Send + Sync {
    fn load(&self) -> Load;
    fn answers_within(&self, timeout: Duration) -> bool;
    fn is_draining(&self) -> bool;
    fn site(&self) -> &dyn Monitored;
}

impl<S: Service + Monitored> Probe for Server<S> {
    fn load(&self) -> Load {
        self.load()
    }

    fn answers_within(&self, timeout: Duration) -> bool {
        self.answers_within(timeout)
    }

    fn is_draining(&self) -> bool {
        self.is_draining()
    }

    fn site(&self) -> &dyn Monitored {
        self.service()
    }
}
