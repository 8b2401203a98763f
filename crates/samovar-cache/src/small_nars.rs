//! Small NARs in memory.
//!
//! # Theory of operation
//!
//! A NAR gets here when it was asked for, whole, and only after its hash was compared with the
//! registered one. So nothing that happens to the files later can make it wrong: it is the NAR of
//! that hash for ever. What can change is whether the path has that hash, and for that an entry
//! carries the epoch in which its row was last read, as a narinfo does.
//!
//! # Limits
//!
//! | what | value | why |
//! | --- | --- | --- |
//! | a NAR in memory | 64 KiB | above, the files cost no more than the rest of the answer |
//! | all of them | 32 MiB | `SiteConfig::small_nar_memory_len` |

use std::hash::BuildHasherDefault;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use samovar_http::Prepared;
use samovar_http::http::Status;
use samovar_nix::{HashPart, NarHash, PathInfo};
use samovar_store::NarReader;
use sha2::{Digest, Sha256};

use crate::prepared::{AnswerHead, Field};
use crate::recent::{Fill, HashPartHasher, MemoryLen, Recent};

/// The type with which Nix uploads a NAR. Not `text/plain` as from nix-serve: proxies compress
/// texts, and a compressed download cannot be resumed.
const NAR_TYPE: Field = ("Content-Type", "application/x-nix-nar");

pub(crate) const ACCEPT_RANGES: Field = ("Accept-Ranges", "bytes");

/// The head of the answer with a whole NAR.
pub(crate) const HEAD: AnswerHead = AnswerHead {
    status: Status::OK,
    fields: &[NAR_TYPE, ACCEPT_RANGES],
};

/// Bytes of the longest NAR that is kept.
pub(crate) const LEN_MAX: u64 = 64 * 1024;

/// Few, because each has to have room for some of the longest.
const SHARD_COUNT: usize = 16;

/// A NAR in memory.
#[derive(Debug, Clone)]
pub(crate) struct SmallNar {
    pub(crate) nar_hash: NarHash,
    /// The catalog's epoch in which the path was last known to have that hash.
    pub(crate) epoch: Option<u64>,
    pub(crate) prepared: Arc<Prepared>,
}

impl SmallNar {
    /// Takes a NAR, unless its hash is another one.
    pub(crate) fn new(nar_hash: NarHash, epoch: Option<u64>, nar: &[u8]) -> Option<Self> {
        let is_right = Sha256::digest(nar).as_slice() == nar_hash.as_bytes();
        is_right.then(|| Self {
            nar_hash,
            epoch,
            prepared: Arc::new(HEAD.prepared(nar)),
        })
    }

    /// Whether it is what the row says, size included: a row that is wrong about that is damage,
    /// and not to be hidden by what was read under another one.
    pub(crate) fn is_of(&self, info: &PathInfo) -> bool {
        self.nar_hash == info.nar_hash && self.prepared.body().len() as u64 == info.nar_size
    }
}

/// Those that were asked for lately.
#[derive(Debug)]
pub(crate) struct SmallNars {
    shards: Box<[Mutex<Shard>]>,
    /// Bytes of one shard.
    shard_len_max: usize,
    miss_count: AtomicU64,
}

type Shard = Recent<HashPart, SmallNar, BuildHasherDefault<HashPartHasher>>;

impl SmallNars {
    /// `memory_len`: what all entries may take, in bytes.
    pub(crate) fn new(memory_len: usize) -> Self {
        Self {
            shards: (0..SHARD_COUNT).map(|_| Mutex::default()).collect(),
            shard_len_max: memory_len / SHARD_COUNT,
            miss_count: AtomicU64::new(0),
        }
    }

    /// The entry of a path, whether it is still true or not.
    pub(crate) fn find(&self, hash_part: &HashPart) -> Option<SmallNar> {
        self.shard(hash_part).find(hash_part, self.shard_len_max)
    }

    pub(crate) fn insert(&self, hash_part: HashPart, nar: SmallNar) {
        let mut shard = self.shard(&hash_part);
        if shard.peek(&hash_part).is_none() {
            self.miss_count.fetch_add(1, Ordering::Relaxed);
        }
        shard.insert(hash_part, nar, self.shard_len_max);
    }

    /// How many came that were not there.
    pub(crate) fn miss_count(&self) -> u64 {
        self.miss_count.load(Ordering::Relaxed)
    }

    pub(crate) fn remove(&self, hash_part: &HashPart) {
        self.shard(hash_part).remove(hash_part);
    }

    pub(crate) fn fill(&self) -> Fill {
        let shard = |shard: &Mutex<Shard>| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.fill()
        };
        self.shards
            .iter()
            .map(shard)
            .fold(Fill::default(), Fill::and)
    }

    /// Bytes that all entries may take.
    pub(crate) fn len_max(&self) -> u64 {
        (self.shard_len_max * SHARD_COUNT) as u64
    }

    fn shard(&self, hash_part: &HashPart) -> MutexGuard<'_, Shard> {
        let index = usize::from(hash_part.as_bytes()[0]) % SHARD_COUNT;
        self.shards[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryLen for SmallNar {
    fn memory_len(&self) -> usize {
        2 * (size_of::<HashPart>() + size_of::<Self>()) + self.prepared.memory_len()
    }
}

/// Reads a NAR of `len` bytes to its end.
///
/// # Errors
///
/// Those of the files; `InvalidData` when it has another length.
pub(crate) fn read_whole(mut reader: NarReader, len: u64) -> io::Result<Vec<u8>> {
    let wrong_size = || io::Error::new(io::ErrorKind::InvalidData, "NAR has another size");
    let len = usize::try_from(len.min(LEN_MAX)).map_err(|_error| wrong_size())?;
    // One more tells a longer one.
    let mut nar = vec![0; len + 1];
    let mut filled = 0;
    while let Some(room) = nar.get_mut(filled..).filter(|room| !room.is_empty()) {
        match reader.fill(room)? {
            0 => break,
            more => filled += more,
        }
    }
    if filled != len {
        return Err(wrong_size());
    }
    nar.truncate(len);
    Ok(nar)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash_of(nar: &[u8]) -> NarHash {
        NarHash::from_bytes(Sha256::digest(nar).into())
    }

    #[test]
    fn only_what_has_the_registered_hash_is_kept() {
        let nar = b"nar".as_slice();
        assert!(SmallNar::new(hash_of(nar), None, nar).is_some());
        assert!(SmallNar::new(hash_of(b"other"), None, nar).is_none());
    }

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let memory_len = 8 << 20;
        let nars = SmallNars::new(memory_len);
        let part = |number: u32| {
            let mut bytes = [0; 20];
            bytes[..4].copy_from_slice(&number.to_le_bytes());
            HashPart::from_bytes(bytes)
        };
        let nar = vec![b'x'; 60_000];
        let nar = SmallNar::new(hash_of(&nar), None, &nar).expect("the hash is right");
        nars.insert(part(7), nar.clone());
        for number in 100..2000 {
            nars.insert(part(number), nar.clone());
            assert!(nars.find(&part(7)).is_some());
        }
        let held: usize = nars
            .shards
            .iter()
            .map(|shard| {
                let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
                shard.values().map(MemoryLen::memory_len).sum::<usize>()
            })
            .sum();
        assert!(held <= memory_len + SHARD_COUNT * 2 * 61_000, "{held}");
        assert!(held >= memory_len / 4, "{held}");
    }
}
