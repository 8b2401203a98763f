//! The small-NAR cache: short NARs in memory.
//!
//! # Theory of operation
//!
//! A NAR is added after it was requested and its hash matched the registered one. Later changes of
//! the files do not invalidate the entry, because it still has the registered hash. The path may be
//! registered again with another hash, so each entry has the epoch in which its row was last read,
//! like a narinfo.

use std::io::{self, Read as _};
use std::sync::Arc;

use samovar_http::Prepared;
use samovar_http::http::Status;
use samovar_nix::{HashPart, NarHash};
use samovar_store::NarReader;
use sha2::{Digest, Sha256};

use crate::known::row::Row;
use crate::known::sharded::{MemoryLen, Sharded};
use crate::prepared::{AnswerHead, Field};

/// The media type that Nix gives NARs when it uploads them. nix-serve sends `text/plain`, but
/// proxies compress texts, and a compressed download cannot be resumed.
const NAR_TYPE: Field = ("Content-Type", "application/x-nix-nar");

pub(crate) const ACCEPT_RANGES: Field = ("Accept-Ranges", "bytes");

/// Status and header fields of a response with a whole NAR.
pub(crate) const HEAD: AnswerHead = AnswerHead {
    status: Status::OK,
    fields: &[NAR_TYPE, ACCEPT_RANGES],
};

/// Maximum size of a NAR in this cache, in bytes. For larger NARs, reading files is a small part of
/// the cost.
pub(crate) const LEN_MAX: u64 = 64 * 1024;

/// Number of shards. Few, because each must have capacity for several NARs of maximum size.
pub(crate) const SHARD_COUNT: usize = 16;

/// An entry of the small-NAR cache: one NAR in memory.
#[derive(Debug, Clone)]
pub(crate) struct SmallNar {
    pub(crate) nar_hash: NarHash,
    /// The catalog's epoch in which the path was last known to have that hash.
    pub(crate) epoch: Option<u64>,
    pub(crate) prepared: Arc<Prepared>,
}

impl SmallNar {
    /// Makes an entry; `None` if the NAR does not have this hash.
    pub(crate) fn new(nar_hash: NarHash, epoch: Option<u64>, nar: &[u8]) -> Option<Self> {
        let is_right = Sha256::digest(nar).as_slice() == nar_hash.as_bytes();
        is_right.then(|| Self {
            nar_hash,
            epoch,
            prepared: Arc::new(HEAD.prepared(nar)),
        })
    }

    /// Whether the entry has the hash and size in the row. A row with a wrong size is damage, which
    /// an entry made from an earlier row must not hide.
    pub(crate) fn is_of(&self, row: &Row) -> bool {
        self.nar_hash == row.nar_hash && self.prepared.body().len() as u64 == row.nar_size
    }
}

/// The small-NAR cache. It counts a miss when an entry is added for a path that had none.
pub(crate) type SmallNars = Sharded<SmallNar>;

impl MemoryLen for SmallNar {
    fn memory_len(&self) -> usize {
        2 * (size_of::<HashPart>() + size_of::<Self>()) + self.prepared.memory_len()
    }
}

/// Reads a whole NAR of `len` bytes.
///
/// # Errors
///
/// Errors of the files; `InvalidData` if the NAR has another length.
pub(crate) fn read_whole(reader: NarReader, len: u64) -> io::Result<Vec<u8>> {
    let len = len.min(LEN_MAX);
    let mut nar = Vec::with_capacity(usize::try_from(len).unwrap_or(0) + 1);
    // Read one byte more than expected, to detect a NAR that is too long.
    reader.take(len + 1).read_to_end(&mut nar)?;
    if nar.len() as u64 != len {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "NAR has another size",
        ));
    }
    Ok(nar)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash_of(nar: &[u8]) -> NarHash {
        NarHash::from_bytes(Sha256::digest(nar).into())
    }

    #[test]
    fn a_nar_with_another_hash_is_not_cached() {
        let nar = b"nar".as_slice();
        assert!(SmallNar::new(hash_of(nar), None, nar).is_some());
        assert!(SmallNar::new(hash_of(b"other"), None, nar).is_none());
    }
}
