//! Listings that were made, bounded in memory and shared by all who read them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use samovar_nix::NarHash;

/// Memory for each of the two tables, in bytes.
const TABLE_LEN_MAX: usize = 8 << 20;

/// Listings by NAR hash, which says all that a listing says: they never go stale. Two tables, as
/// for narinfos: what is asked for stays, the rest goes.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    young: HashMap<[u8; 32], Arc<[u8]>>,
    young_len: usize,
    old: HashMap<[u8; 32], Arc<[u8]>>,
}

impl Listings {
    pub(crate) fn find(&self, nar_hash: &NarHash) -> Option<Arc<[u8]>> {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(listing) = tables.young.get(nar_hash.as_bytes()) {
            return Some(Arc::clone(listing));
        }
        let listing = tables.old.remove(nar_hash.as_bytes())?;
        tables.insert(*nar_hash.as_bytes(), Arc::clone(&listing));
        Some(listing)
    }

    pub(crate) fn insert(&self, nar_hash: &NarHash, listing: &Arc<[u8]>) {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables.insert(*nar_hash.as_bytes(), Arc::clone(listing));
    }
}

impl Tables {
    fn insert(&mut self, key: [u8; 32], listing: Arc<[u8]>) {
        self.young_len += listing.len();
        if let Some(replaced) = self.young.insert(key, listing) {
            self.young_len -= replaced.len();
        }
        if self.young_len > TABLE_LEN_MAX {
            self.old = std::mem::take(&mut self.young);
            self.young_len = 0;
        }
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
        let tables = listings.tables.lock().unwrap();
        let count = tables.young.len() + tables.old.len();
        assert!(
            count * listing.len() <= 2 * TABLE_LEN_MAX + 2 * listing.len(),
            "{count}"
        );
    }
}
