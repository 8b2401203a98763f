//! What is asked of the server that is watched.

use std::sync::{Arc, Weak};
use std::time::Duration;

use samovar_http::{Load, Server};
use samovar_nix::HashPart;
use samovar_store::StoreError;

use super::status::{CacheFigures, StoreStatus};
use crate::site::Site;

/// The server that is watched.
pub trait Probe: Send + Sync + 'static {
    /// What it has to do; `None`: it is gone.
    fn load(&self) -> Option<Load>;

    /// Whether every I/O thread of it answers within `timeout`.
    fn answers_within(&self, timeout: Duration) -> bool;

    /// Whether it ends, and takes no more connections.
    fn is_draining(&self) -> bool;

    /// What it knows without asking a disk.
    fn figures(&self) -> Figures;

    /// Asks the store something. May block, for as long as a disk may.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    fn ask_store(&self) -> Result<(), StoreError>;

    /// The name of a path, if it is there. May block.
    fn name_of(&self, hash_part: HashPart) -> Option<String>;
}

/// What a site knows of itself.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// The store; how old its state is stands elsewhere.
    pub store: StoreStatus,
    /// What is kept. Hits of the first two are counted elsewhere.
    pub caches: Vec<CacheFigures>,
}

impl Probe for Weak<Server<Site>> {
    fn load(&self) -> Option<Load> {
        self.upgrade().map(|server| server.load())
    }

    fn answers_within(&self, timeout: Duration) -> bool {
        self.upgrade()
            .is_some_and(|server| server.answers_within(timeout))
    }

    fn is_draining(&self) -> bool {
        self.upgrade().is_none_or(|server| server.is_draining())
    }

    fn figures(&self) -> Figures {
        let figures = |server: Arc<Server<Site>>| server.service().figures();
        self.upgrade().map(figures).unwrap_or_default()
    }

    fn ask_store(&self) -> Result<(), StoreError> {
        self.upgrade()
            .map_or(Ok(()), |server| server.service().ask_store())
    }

    fn name_of(&self, hash_part: HashPart) -> Option<String> {
        let info = self.upgrade()?.service().store().lookup(hash_part);
        let path = info.ok().flatten()?.path;
        Some(path.name().to_owned())
    }
}
