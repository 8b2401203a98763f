//! Other caches, in the place of those that are served.

use std::sync::Arc;

use crate::access::{Access, AccessConfig, AccessError};
use crate::site::Site;
use crate::site::background::BackgroundError;
use crate::site::cache::{Cache, CacheConfig};
use crate::site::current::Caches;

/// Why the caches stay as they are.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ReconfigureError(BackgroundError);

impl Site {
    /// Puts other caches in the place of all that are served, from the next request on. They are
    /// made ready beside them, which may take some seconds; no request waits for that. What is
    /// known of the store is kept, and of each cache as much as stays the same.
    ///
    /// # Errors
    ///
    /// If it cannot be found out what may be read in them, or a thread cannot be started. All stays
    /// as it was.
    pub fn reconfigure(&self, configs: Vec<CacheConfig>) -> Result<(), ReconfigureError> {
        let mut background = self.background();
        let before = self.caches();
        let len = self.rendered_memory_len;
        let caches = Arc::new(Caches::build(&self.shared, configs, len, Some(&before)));
        let health = &self.shared.health;
        health.watch(before.rendered().chain(caches.rendered()).collect());
        let prepared = match background.prepare(&before, &caches) {
            Ok(prepared) => prepared,
            Err(error) => {
                health.watch(before.rendered().collect());
                return Err(ReconfigureError(error));
            }
        };
        self.current.put(Arc::clone(&caches));
        background.change(&caches, prepared);
        health.watch(caches.rendered().collect());
        for gone in before.narinfos() {
            if caches.narinfos().all(|now| !Arc::ptr_eq(gone, now)) {
                gone.retire();
            }
        }
        Ok(())
    }

    /// Who may read a cache that is to be served at this prefix, and remarks about that. What the
    /// one that is there remembers of clients is kept: passwords, and what they have used up.
    ///
    /// # Errors
    ///
    /// As [`Access::new`].
    pub fn access(
        &self,
        path_prefix: &str,
        config: AccessConfig,
    ) -> Result<(Access, Vec<String>), AccessError> {
        let caches = self.caches();
        match caches.at(path_prefix).and_then(Cache::access) {
            Some(before) => before.renewed(config),
            None => Access::new(config),
        }
    }
}
