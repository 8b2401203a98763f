//! Listings that were made, bounded in memory and shared by all who read them.

use std::hash::RandomState;
use std::sync::{Arc, Mutex, PoisonError};

use samovar_nix::NarHash;

use crate::recent::{MemoryLen, Recent};

/// Memory for all of them, in bytes.
const MEMORY_LEN_MAX: usize = 16 << 20;

/// Listings by NAR hash, which says all that a listing says: they never go stale.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    recent: Mutex<Recent<[u8; 32], Arc<[u8]>, RandomState>>,
}

impl Listings {
    pub(crate) fn find(&self, nar_hash: &NarHash) -> Option<Arc<[u8]>> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.find(nar_hash.as_bytes(), MEMORY_LEN_MAX)
    }

    pub(crate) fn insert(&self, nar_hash: &NarHash, listing: &Arc<[u8]>) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.insert(*nar_hash.as_bytes(), Arc::clone(listing), MEMORY_LEN_MAX);
    }
}

impl MemoryLen for Arc<[u8]> {
    fn memory_len(&self) -> usize {
        self.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let listings = Listings::default();
        let listing: Arc<[u8]> = vec![b' '; 100_000].into();
        let favourite = NarHash::from_bytes([255; 32]);
        listings.insert(&favourite, &listing);
        for number in 0..250 {
            listings.insert(&NarHash::from_bytes([number; 32]), &listing);
            assert!(listings.find(&favourite).is_some());
        }
        let recent = listings.recent.lock().unwrap();
        let count = recent.values().count();
        assert!(
            count * listing.len() <= MEMORY_LEN_MAX + 2 * listing.len(),
            "{count}"
        );
    }
}
