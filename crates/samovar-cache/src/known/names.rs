//! Names of recently requested paths, for access logs: a URL has only the hash part.

use std::sync::Arc;

use samovar_nix::{HashPart, StorePath};

use crate::known::sharded::{MemoryLen, Sharded};

/// The capacity in bytes: some thousand names.
const MEMORY_LEN: usize = 1 << 20;

/// The memory of an entry besides the name, in bytes.
const ENTRY_LEN: usize = 160;

/// The names.
#[derive(Debug)]
pub(crate) struct Names(Sharded<StorePath>);

impl MemoryLen for StorePath {
    fn memory_len(&self) -> usize {
        ENTRY_LEN + self.name().len()
    }
}

impl Default for Names {
    fn default() -> Self {
        Self(Sharded::new(1, MEMORY_LEN, Arc::default()))
    }
}

impl Names {
    pub(crate) fn note(&self, path: &StorePath) {
        let hash_part = path.hash_part();
        if self.0.find(&hash_part).is_none() {
            self.0.insert(hash_part, path.clone());
        }
    }

    pub(crate) fn find(&self, hash_part: &HashPart) -> Option<StorePath> {
        self.0.peek(hash_part)
    }
}
