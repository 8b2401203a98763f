//! [`Arriving`]: counts the files of upstreams that arrive at the same time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::metadata::CacheId;
use crate::storage::counters::locked;

/// Total length of the files that arrive, by the cache in which they are kept; bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct ArrivingLens(Arc<Mutex<HashMap<CacheId, u64>>>);

/// Counts a file that arrives. Dropping it ends that.
#[derive(Debug)]
pub(super) struct Arriving {
    lens: ArrivingLens,
    cache: CacheId,
    len: u64,
}

impl ArrivingLens {
    /// Returns the total lengths of the files that arrive for this cache and for all caches.
    pub(super) fn lens(&self, cache: CacheId) -> (u64, u64) {
        totals(&locked(&self.0), cache)
    }

    /// Counts a file of this length, if `check` permits that. `check` gets the total lengths of the
    /// files that arrive for this cache and for all caches.
    pub(super) fn count<E>(
        &self,
        cache: CacheId,
        len: u64,
        check: impl FnOnce((u64, u64)) -> Result<(), E>,
    ) -> Result<Arriving, E> {
        // Held until the file is counted: files that arrive at the same time count one by one.
        let mut lens = locked(&self.0);
        check(totals(&lens, cache))?;
        *lens.entry(cache).or_default() += len;
        Ok(Arriving {
            lens: self.clone(),
            cache,
            len,
        })
    }
}

/// Returns the total lengths for this cache and for all caches.
fn totals(lens: &HashMap<CacheId, u64>, cache: CacheId) -> (u64, u64) {
    let of_cache = lens.get(&cache).copied().unwrap_or_default();
    (of_cache, lens.values().sum())
}

impl Drop for Arriving {
    fn drop(&mut self) {
        if let Some(len) = locked(&self.lens.0).get_mut(&self.cache) {
            *len = len.saturating_sub(self.len);
        }
    }
}
