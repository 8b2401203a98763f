//! The small-NAR cache: short NARs in memory.
//!
//! # Theory of operation
//!
//! A NAR is added when it was requested and its hash matched the registered one. Later changes of
//! the files cannot invalidate the entry: it is the NAR of that hash. The path may get another
//! hash, so an entry carries the epoch in which its row was last read, as a narinfo does.
//!
//! # Limits
//!
//! | what | value | why |
//! | --- | --- | --- |
//! | a NAR in memory | 64 KiB | above, the files cost no more than the rest of the answer |
//! | all NARs | 32 MiB | `SiteConfig::small_nar_memory_len` |

use std::io::{self, Read as _};
use std::sync::Arc;

use samovar_http::Prepared;
use samovar_http::http::Status;
use samovar_nix::{HashPart, NarHash, PathInfo};
use samovar_store::NarReader;
use sha2::{Digest, Sha256};

use crate::known::sharded::{MemoryLen, Sharded};
use crate::prepared::{AnswerHead, Field};

/// The type with which Nix uploads a NAR. Not `text/plain` as from nix-serve: proxies compress
/// texts, and a compressed download cannot be resumed.
const NAR_TYPE: Field = ("Content-Type", "application/x-nix-nar");

pub(crate) const ACCEPT_RANGES: Field = ("Accept-Ranges", "bytes");

/// The head of the answer with a whole NAR.
pub(crate) const HEAD: AnswerHead = AnswerHead {
    status: Status::OK,
    fields: &[NAR_TYPE, ACCEPT_RANGES],
};

/// The longest NAR that is kept, in bytes.
pub(crate) const LEN_MAX: u64 = 64 * 1024;

/// Few, because each needs capacity for several of the longest NARs.
pub(crate) const SHARD_COUNT: usize = 16;

/// A NAR in memory.
#[derive(Debug, Clone)]
pub(crate) struct SmallNar {
    pub(crate) nar_hash: NarHash,
    /// The catalog's epoch in which the path was last known to have that hash.
    pub(crate) epoch: Option<u64>,
    pub(crate) prepared: Arc<Prepared>,
}

impl SmallNar {
    /// An entry, unless the NAR has another hash.
    pub(crate) fn new(nar_hash: NarHash, epoch: Option<u64>, nar: &[u8]) -> Option<Self> {
        let is_right = Sha256::digest(nar).as_slice() == nar_hash.as_bytes();
        is_right.then(|| Self {
            nar_hash,
            epoch,
            prepared: Arc::new(HEAD.prepared(nar)),
        })
    }

    /// Whether hash and size are those of the row. A row with a wrong size is damage, which an
    /// entry of an earlier row must not hide.
    pub(crate) fn is_of(&self, info: &PathInfo) -> bool {
        self.nar_hash == info.nar_hash && self.prepared.body().len() as u64 == info.nar_size
    }
}

/// The cache. A miss is an entry added for a path that had none.
pub(crate) type SmallNars = Sharded<SmallNar>;

impl MemoryLen for SmallNar {
    fn memory_len(&self) -> usize {
        2 * (size_of::<HashPart>() + size_of::<Self>()) + self.prepared.memory_len()
    }
}

/// Reads a NAR of `len` bytes.
///
/// # Errors
///
/// Errors of the files; `InvalidData` if the NAR has another length.
pub(crate) fn read_whole(reader: NarReader, len: u64) -> io::Result<Vec<u8>> {
    let len = len.min(LEN_MAX);
    let mut nar = Vec::with_capacity(usize::try_from(len).unwrap_or(0) + 1);
    // One more byte tells a longer one.
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
    fn a_nar_with_another_hash_is_not_kept() {
        let nar = b"nar".as_slice();
        assert!(SmallNar::new(hash_of(nar), None, nar).is_some());
        assert!(SmallNar::new(hash_of(b"other"), None, nar).is_none());
    }
}
