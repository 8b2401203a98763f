//! Names of recently requested paths, for access logs: a URL has only the hash part.

use std::sync::Arc;

use samovar_nix::{HashPart, StorePath};

use crate::known::sharded::{MemoryLen, Sharded};

/// Memory for all names, in bytes: enough for some thousand.
const MEMORY_LEN: usize = 1 << 20;

/// Memory of an entry in addition to its name, in bytes.
const ENTRY_LEN: usize = 160;

/// Names of recently requested paths, by hash part.
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
