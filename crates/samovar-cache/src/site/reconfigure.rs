//! Replaces the caches of a running site.

use std::sync::Arc;

use samovar_storage::StorageError;

use crate::access::{Access, AccessConfig, AccessError};
use crate::site::Site;
use crate::site::background::BackgroundError;
use crate::site::config::CacheConfig;
use crate::site::current::Caches;
use crate::sync::Locked;
use crate::upstream::Upstreams;

/// The reason why the caches were not replaced.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ReconfigureError(Reason);

#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error(transparent)]
    Background(#[from] BackgroundError),
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl Site {
    /// Replaces all caches, starting with the next request. The new ones are prepared first, which
    /// may take some seconds, but no request waits for that. Everything known about the store is
    /// kept, and so are the narinfos of caches whose settings are unchanged. `change_storage` is
    /// called last, when nothing else can fail.
    ///
    /// # Errors
    ///
    /// If the roots of a new policy cannot be followed, a thread cannot be started, or
    /// `change_storage` fails. Nothing changes then.
    pub fn reconfigure(
        &self,
        configs: Vec<CacheConfig>,
        upstreams: Option<Arc<Upstreams>>,
        change_storage: impl FnOnce() -> Result<(), StorageError>,
    ) -> Result<(), ReconfigureError> {
        let mut background = self.background.locked();
        let before = self.caches();
        let len = self.narinfo_memory_len;
        let caches = Arc::new(Caches::build(
            &self.shared,
            configs,
            len,
            Some(&before),
            upstreams.as_ref(),
        ));
        let health = &self.shared.health;
        health.watch(before.path_caches().chain(caches.path_caches()).collect());
        let prepared = background.prepare(&before, &caches).map_err(Reason::from);
        let changed = prepared.and_then(|prepared| {
            change_storage()?;
            Ok(prepared)
        });
        let prepared = match changed {
            Ok(prepared) => prepared,
            Err(error) => {
                health.watch(before.path_caches().collect());
                return Err(ReconfigureError(error));
            }
        };
        self.current.replace(Arc::clone(&caches));
        *self.upstreams.locked() = upstreams;
        caches.announce(&*self.shared.observer);
        self.shared.pin_watch.release();
        background.change(&caches, prepared);
        health.watch(caches.path_caches().collect());
        for gone in before.narinfos() {
            if caches.narinfos().all(|now| !Arc::ptr_eq(gone, now)) {
                // Free the memory now: idle threads may hold the cache for longer.
                gone.clear();
            }
        }
        Ok(())
    }

    /// Returns whether a cache has this URL path, without a trailing slash; empty for the root.
    pub fn has_prefix(&self, path_prefix: &str) -> bool {
        self.caches().at(path_prefix).is_some()
    }

    /// Makes the access rules for a new cache at this prefix. Also returns warnings; the change
    /// from a restricted cache to an open one is one of them. Verified passwords and rate limits of
    /// the present cache at the prefix are kept.
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
        match caches
            .at(path_prefix)
            .and_then(|cache| cache.access.as_ref())
        {
            Some(before) => {
                let is_opened = config.lets_everybody_in() && !before.lets_everybody_in();
                let (access, mut warnings) = before.renewed(config)?;
                if is_opened {
                    warnings.push(format!(
                        "every client may now read {path_prefix}/: before the reload, an option \
                         of access restricted it"
                    ));
                }
                Ok((access, warnings))
            }
            None => Access::new(config),
        }
    }
}
