//! Listings that were made, bounded in memory and shared by all who read them.

use std::hash::RandomState;
use std::sync::{Arc, Mutex, PoisonError};

use samovar_http::{Body, Response};
use samovar_nix::{HashPart, NarHash};
use samovar_store::{StoreError, Tree};

use crate::answers::{json_response, no_path, unavailable};
use crate::cache::Cache;
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

impl Cache {
    pub(crate) fn listing(&self, hash_part: HashPart) -> Result<Response, StoreError> {
        let Some(registration) = self.registration(hash_part)? else {
            return Ok(no_path());
        };
        let nar_hash = registration.info.nar_hash;
        if let Some(listing) = self.listings.find(&nar_hash) {
            return Ok(json_response(Body::Shared(listing)));
        }
        let tree: Tree = self.store.tree(&registration.info.path)?;
        match tree.listing() {
            Ok(json) if registration.holds()? => {
                let listing: Arc<[u8]> = json.into_bytes().into();
                self.listings.insert(&nar_hash, &listing);
                Ok(json_response(Body::Shared(listing)))
            }
            // What was read may be of two registrations.
            Ok(_) => Ok(unavailable()),
            Err(error) => self.unreadable(&registration, error),
        }
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
