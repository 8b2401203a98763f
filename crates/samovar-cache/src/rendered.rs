//! Rendered narinfos, bounded in memory.
//!
//! Shards keep threads out of each other's way: an I/O thread holds a shard's lock for one look-up
//! in a hash table.

use std::borrow::Borrow;
use std::hash::BuildHasherDefault;
use std::sync::{Arc, Mutex, PoisonError};

use samovar_http::http::Status;
use samovar_http::{Body, Prepared, Response};
use samovar_nix::{HashPart, PathInfo, StorePath};

use crate::health::PathCache;
use crate::prepared::{AnswerHead, PreparedBody, may_go_inline};
use crate::recent::{Fill, HashPartHasher, MemoryLen, Recent};

const SHARD_COUNT: usize = 64;

/// A state of the world: what was true in it holds while it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The catalog's epoch.
    pub(crate) epoch: u64,
    /// Counts changes of what may be read.
    pub(crate) generation: u64,
}

/// The head of a narinfo's answer.
const HEAD: AnswerHead = AnswerHead {
    status: Status::OK,
    fields: &[("Content-Type", "text/x-nix-narinfo")],
};

/// A narinfo with its signatures, as it is sent.
#[derive(Debug)]
pub(crate) struct Narinfo {
    pub(crate) path: StorePath,
    /// The registration that it describes.
    pub(crate) registration: Option<i64>,
    /// Length of the text before the signatures.
    pub(crate) unsigned_len: usize,
    pub(crate) prepared: Prepared,
}

impl Narinfo {
    pub(crate) fn new(info: &PathInfo, text: &[u8], unsigned_len: usize) -> Self {
        Self {
            path: info.path.clone(),
            registration: info.registration,
            unsigned_len,
            prepared: HEAD.prepared(text),
        }
    }

    /// As a worker sends it.
    pub(crate) fn response(self: Arc<Self>) -> Response {
        // Copying a short text costs less than pulling it.
        let body = if may_go_inline(&self.prepared) {
            Body::Bytes(self.text().to_vec().into())
        } else {
            PreparedBody::whole(self)
        };
        HEAD.response(body)
    }

    pub(crate) fn text(&self) -> &[u8] {
        self.prepared.body()
    }
}

impl Borrow<Prepared> for Narinfo {
    fn borrow(&self) -> &Prepared {
        &self.prepared
    }
}

/// A narinfo in memory, and how long it holds.
#[derive(Debug, Clone)]
pub(crate) struct Rendered {
    /// The state in which it was last known to be true; `None`: it was true once, which is worth
    /// remembering only because a signature may still fit.
    pub(crate) stamp: Option<Stamp>,
    /// The second since 1970 from which on it may not be read any more.
    pub(crate) until: i64,
    /// The generation in which its path was last held against garbage collection; zero for none.
    pub(crate) held: u32,
    /// Whether it was made for a wish, and nobody has asked for it yet.
    pub(crate) was_wished_for: bool,
    pub(crate) narinfo: Arc<Narinfo>,
}

/// The cache.
#[derive(Debug)]
pub(crate) struct RenderedCache {
    shards: Box<[Mutex<Shard>]>,
    /// Bytes of one shard.
    shard_len_max: usize,
}

type Shard = Recent<HashPart, Rendered, BuildHasherDefault<HashPartHasher>>;

impl RenderedCache {
    /// `memory_len`: what all entries may take, in bytes.
    pub(crate) fn new(memory_len: usize) -> Self {
        let shards = (0..SHARD_COUNT).map(|_| Mutex::default()).collect();
        Self {
            shards,
            shard_len_max: memory_len / SHARD_COUNT,
        }
    }

    /// The entry of a path, whether it is still true or not.
    pub(crate) fn find(&self, hash_part: &HashPart) -> Option<Rendered> {
        let mut shard = self.shard(hash_part);
        let rendered = shard.find(hash_part, self.shard_len_max)?;
        if rendered.was_wished_for {
            // Told once.
            let was_wished_for = false;
            let asked_for = Rendered {
                was_wished_for,
                ..rendered.clone()
            };
            shard.insert(*hash_part, asked_for, self.shard_len_max);
        }
        Some(rendered)
    }

    /// The entry of a path, which is not asked for.
    pub(crate) fn peek(&self, hash_part: &HashPart) -> Option<Rendered> {
        self.shard(hash_part).peek(hash_part)
    }

    /// Remembers which generation holds a path.
    pub(crate) fn note_held(&self, hash_part: &HashPart, generation: u32) {
        if let Some(rendered) = self.shard(hash_part).peek_mut(hash_part) {
            rendered.held = generation;
        }
    }

    /// Whether there is room for a path that nobody has asked for.
    pub(crate) fn has_room(&self, hash_part: &HashPart) -> bool {
        self.shard(hash_part)
            .has_room(hash_part, self.shard_len_max)
    }

    /// Keeps what nobody has asked for, if there is room.
    pub(crate) fn offer(&self, hash_part: HashPart, rendered: Rendered) -> bool {
        self.fits(&rendered)
            && self
                .shard(&hash_part)
                .offer(hash_part, rendered, self.shard_len_max)
    }

    /// Keeps a narinfo, unless it is so long that it would be the only one.
    pub(crate) fn insert(&self, hash_part: HashPart, rendered: Rendered) {
        let fits = self.fits(&rendered);
        let mut shard = self.shard(&hash_part);
        if fits {
            shard.insert(hash_part, rendered, self.shard_len_max);
        } else {
            shard.remove(&hash_part);
        }
    }

    /// Whether it leaves room for others: see [`Recent::insert`].
    fn fits(&self, rendered: &Rendered) -> bool {
        rendered.memory_len() <= self.shard_len_max / 2
    }

    pub(crate) fn remove(&self, hash_part: &HashPart) {
        self.shard(hash_part).remove(hash_part);
    }

    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            *shard.lock().unwrap_or_else(PoisonError::into_inner) = Shard::default();
        }
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

    /// Whether it was made for as many bytes.
    pub(crate) fn is_made_for(&self, memory_len: usize) -> bool {
        self.shard_len_max == memory_len / SHARD_COUNT
    }

    /// Bytes that all entries may take.
    pub(crate) fn len_max(&self) -> u64 {
        (self.shard_len_max * SHARD_COUNT) as u64
    }

    fn shard(&self, hash_part: &HashPart) -> std::sync::MutexGuard<'_, Shard> {
        let index = usize::from(hash_part.as_bytes()[0]) % SHARD_COUNT;
        self.shards[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl PathCache for RenderedCache {
    fn drop_path(&self, hash_part: &HashPart) {
        self.remove(hash_part);
    }
}

impl MemoryLen for Rendered {
    fn memory_len(&self) -> usize {
        let narinfo = &self.narinfo;
        2 * (size_of::<HashPart>() + size_of::<Self>())
            + size_of::<Narinfo>()
            + narinfo.path.base_name().len()
            + narinfo.prepared.memory_len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(len: usize) -> Rendered {
        let path = StorePath::from_base_name("zs83x50c7jbs0hj70ivx7ykckxh2zzl5-x").unwrap();
        let narinfo = Narinfo {
            path,
            registration: None,
            unsigned_len: len,
            prepared: HEAD.prepared(&vec![b'x'; len]),
        };
        Rendered {
            stamp: None,
            until: i64::MAX,
            held: 0,
            was_wished_for: false,
            narinfo: Arc::new(narinfo),
        }
    }

    /// A path with thousands of references may have such a narinfo.
    #[test]
    fn what_would_be_the_only_one_is_not_kept() {
        let cache = RenderedCache::new(SHARD_COUNT * 20_000);
        let part = hash_part(7);
        // The head says how long the body is, in as many digits.
        let overhead = rendered(9_000).memory_len() - 9_000;
        cache.insert(part, rendered(10_000 - overhead));
        assert!(cache.find(&part).is_some());
        assert!(!cache.offer(part, rendered(10_001 - overhead)));
        cache.insert(part, rendered(10_001 - overhead));
        assert!(cache.find(&part).is_none());
    }

    fn hash_part(number: u32) -> HashPart {
        let mut bytes = [0; 20];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        bytes[4] = 1;
        HashPart::from_bytes(bytes)
    }

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let memory_len = 1 << 20;
        let cache = RenderedCache::new(memory_len);
        let favourite = hash_part(7);
        cache.insert(favourite, rendered(500));
        for number in 100..50_000 {
            cache.insert(hash_part(number), rendered(500));
            assert!(cache.find(&favourite).is_some());
        }
        let held: usize = cache
            .shards
            .iter()
            .map(|shard| {
                let shard = shard.lock().unwrap();
                shard.values().map(MemoryLen::memory_len).sum::<usize>()
            })
            .sum();
        assert!(held <= memory_len + SHARD_COUNT * 2000, "{held}");
        assert!(held >= memory_len / 4, "{held}");
        cache.remove(&favourite);
        assert!(cache.find(&favourite).is_none());
    }
}
