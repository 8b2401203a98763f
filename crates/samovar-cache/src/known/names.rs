//! Names of recently requested paths, for access logs: a URL has only the hash part.

use std::hash::BuildHasherDefault;
use std::sync::{Mutex, MutexGuard, PoisonError};

use samovar_nix::{HashPart, StorePath};

use crate::known::recent::{MemoryLen, Recent};
use crate::known::sharded::HashPartHasher;

/// The capacity in bytes: some thousand names.
const MEMORY_LEN: usize = 1 << 20;

/// The memory of an entry besides the name, in bytes.
const ENTRY_LEN: usize = 160;

type Table = Recent<HashPart, Name, BuildHasherDefault<HashPartHasher>>;

/// The names.
#[derive(Debug, Default)]
pub(crate) struct Names(Mutex<Table>);

#[derive(Debug, Clone)]
struct Name(StorePath);

impl MemoryLen for Name {
    fn memory_len(&self) -> usize {
        ENTRY_LEN + self.0.name().len()
    }
}

impl Names {
    pub(crate) fn note(&self, path: &StorePath) {
        let mut table = self.table();
        let hash_part = path.hash_part();
        if table.find(&hash_part, MEMORY_LEN).is_none() {
            table.insert(hash_part, Name(path.clone()), MEMORY_LEN);
        }
    }

    pub(crate) fn find(&self, hash_part: &HashPart) -> Option<StorePath> {
        Some(self.table().peek(hash_part)?.0)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
