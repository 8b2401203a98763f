//! Names of recently requested paths, for access logs: a URL has only the hash part.

use std::sync::Arc;

use samovar_nix::StorePath;

use crate::known::sharded::{MemoryLen, Sharded};

/// Names of recently requested paths, by hash part.
pub(crate) type Names = Sharded<StorePath>;

/// Memory for all names, in bytes: enough for a few thousand names.
const MEMORY_LEN: usize = 1 << 20;

/// Memory of an entry in addition to its name, in bytes.
const ENTRY_LEN: usize = 160;

impl MemoryLen for StorePath {
    fn memory_len(&self) -> usize {
        ENTRY_LEN + self.name().len()
    }
}

/// Creates an empty table.
pub(crate) fn new() -> Names {
    Names::new(1, MEMORY_LEN, Arc::default())
}
