//! The entries of the NAR cache, and the disk space that they use.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use samovar_metrics::{CacheStatus, Event, Observer};
use samovar_nix::narinfo::Compression;
use samovar_nix::{HashPart, NarHash};
use samovar_store::Identity;

use super::{NarCacheDirectory, allocate};

use crate::known::sharded::PathCache;
use crate::sync::Locked;

/// Minimum size of a cached NAR, in bytes. Smaller ones are sent in one buffer.
pub(super) const NAR_LEN_MIN: u64 = 256 * 1024;

/// Number of bytes of disk space that are allocated at a time. So an aborted download evicts no
/// more than its own bytes plus this number.
const STEP_LEN: u64 = 4 << 20;

/// Time after a write error during which no copy is written.
const PAUSE: Duration = Duration::from_secs(60);

/// Maximum number of NARs recorded as not worth caching, at 72 bytes each.
const REFUSED_COUNT_MAX: usize = 4096;

/// The form of the NAR in a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    /// Uncompressed.
    Identity,
    /// Compressed with zstd by this server.
    Zstd,
    /// The file of an upstream cache, which it has compressed.
    Upstream(Compression),
}

/// Identifies a copy: the hash of its NAR, and its form.
pub(crate) type Key = (NarHash, Form);

/// A copy of a NAR: either its hash is the registered one, or its files were verified before.
#[derive(Debug)]
pub(crate) struct CachedNar {
    pub(super) file: Arc<File>,
    pub(super) allocation: Allocation,
    /// Length of the uncompressed NAR, in bytes.
    pub(super) nar_size: u64,
    /// The files that were copied, if the copy was not hashed: it is only as good as they are.
    pub(super) files: Option<CopiedFiles>,
}

/// Files that were verified before they were copied, and not hashed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CopiedFiles {
    pub(crate) hash_part: HashPart,
    pub(crate) root: Identity,
}

/// The disk space of a copy. It is counted from before the first byte is written until the last
/// reader of the copy ends.
#[derive(Debug)]
pub(super) struct Allocation {
    pub(super) key: Key,
    /// Length of the copy, in bytes; before the copy is complete, the most that it may have.
    pub(super) len: u64,
    /// Number of bytes allocated so far; once the copy is complete, equal to `len`.
    taken_len: u64,
    pub(super) cache: Arc<NarCache>,
}

impl Allocation {
    /// Allocates the first `len` bytes, evicting the least recently used copies if necessary.
    /// `None`: there is not enough disk space.
    pub(super) fn grow(&mut self, file: &File, len: u64) -> Option<()> {
        if len <= self.taken_len {
            return Some(());
        }
        let wanted_len = len.max(self.taken_len + STEP_LEN).min(self.len);
        let more_len = wanted_len.checked_sub(self.taken_len)?;
        let evicted = self.cache.take(more_len)?;
        let before_len = std::mem::replace(&mut self.taken_len, wanted_len);
        // Close the files of the evicted copies now that `take` has released the lock of the cache:
        // dropping their allocations takes the same lock.
        drop(evicted);
        let allocated = allocate(file, before_len, more_len);
        allocated
            .inspect_err(|error| self.cache.note_failure(error))
            .ok()
    }
}

impl Allocation {
    /// Frees the disk space beyond the first `len` bytes.
    pub(super) fn shrink(&mut self, file: &File, len: u64) -> io::Result<()> {
        file.set_len(len)?;
        let freed = self.taken_len.saturating_sub(len);
        self.cache.state.locked().used_len -= freed;
        (self.len, self.taken_len) = (len, self.taken_len - freed);
        Ok(())
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let mut state = self.cache.state.locked();
        state.used_len -= self.taken_len;
        state.allocations.remove(&self.key);
    }
}

/// The NAR cache: its entries, and the copies that are being written.
#[derive(Debug)]
pub(crate) struct NarCache {
    directory: NarCacheDirectory,
    observer: Arc<dyn Observer>,
    count_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<Key, Entry>,
    /// Keys of all copies that have disk space allocated, whether complete or being written.
    allocations: HashSet<Key>,
    used_len: u64,
    /// Number of uses of copies so far. Each entry stores the value at its last use, so that the
    /// least recently used one can be found.
    clock: u64,
    /// NARs that are not cached again, because their copy was unreadable or is not worth its disk
    /// space. The set is cleared when it is full.
    refused: HashSet<Key>,
    failed_at: Option<Instant>,
    hit_count: u64,
    miss_count: u64,
    eviction_count: u64,
}

#[derive(Debug)]
struct Entry {
    cached: Arc<CachedNar>,
    used: u64,
}

impl NarCache {
    pub(crate) fn new(directory: NarCacheDirectory, observer: Arc<dyn Observer>) -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self {
            directory,
            observer,
            count_max: usize::try_from((descriptors / 32).min(4096)).unwrap_or(0),
            state: Mutex::default(),
        }
    }

    /// Whether this copy is cached. Does not count as a use.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.state.locked().entries.contains_key(key)
    }

    /// Whether this copy is being written now.
    pub(crate) fn is_in_progress(&self, key: &Key) -> bool {
        let state = self.state.locked();
        state.allocations.contains(key) && !state.entries.contains_key(key)
    }

    pub(super) fn find(&self, key: &Key) -> Option<Arc<CachedNar>> {
        let mut state = self.state.locked();
        state.clock += 1;
        let used = state.clock;
        let Some(entry) = state.entries.get_mut(key) else {
            state.miss_count += 1;
            return None;
        };
        entry.used = used;
        let cached = Arc::clone(&entry.cached);
        state.hit_count += 1;
        Some(cached)
    }

    pub(crate) fn status(&self) -> CacheStatus {
        let state = self.state.locked();
        CacheStatus {
            name: "nar_cache".to_owned(),
            entry_count: state.entries.len() as u64,
            len: state.used_len,
            len_max: self.directory.len_max(state.used_len),
            hit_count: state.hit_count,
            miss_count: state.miss_count,
            eviction_count: state.eviction_count,
        }
    }

    /// Creates the file for a copy, with no disk space allocated yet. Returns `None` after an
    /// error, which it reports.
    pub(super) fn file(&self) -> Option<File> {
        let file = self.directory.file();
        file.inspect_err(|error| self.note_failure(error)).ok()
    }

    /// Permits a copy of `len` bytes. Returns `None` if it is not worth caching, is cached
    /// already, or cannot be cached now.
    pub(super) fn reserve(self: &Arc<Self>, key: &Key, len: u64) -> Option<Allocation> {
        let mut state = self.state.locked();
        let is_paused = state.failed_at.is_some_and(|at| at.elapsed() < PAUSE);
        if is_paused || state.allocations.contains(key) || state.refused.contains(key) {
            return None;
        }
        let len_min = match key.1 {
            Form::Identity => NAR_LEN_MIN,
            Form::Zstd | Form::Upstream(_) => 0,
        };
        if len < len_min || len > self.directory.len_max(state.used_len) / 2 {
            return None;
        }
        let in_progress_count = state.allocations.len().saturating_sub(state.entries.len());
        if in_progress_count >= self.count_max {
            return None;
        }
        state.allocations.insert(*key);
        Some(Allocation {
            key: *key,
            len,
            taken_len: 0,
            cache: Arc::clone(self),
        })
    }

    /// Counts `len` more bytes for a copy in progress, and returns the copies evicted for them.
    /// Returns `None` if so much space cannot be freed.
    fn take(&self, len: u64) -> Option<Vec<Arc<CachedNar>>> {
        let mut state = self.state.locked();
        let len_max = self.directory.len_max(state.used_len);
        let evicted = state.evict(len_max.checked_sub(len)?, self.count_max)?;
        state.used_len += len;
        Some(evicted)
    }

    /// Adds a complete copy. `None`: there is no capacity for one more, so the copy is dropped.
    pub(super) fn insert(&self, cached: CachedNar) -> Option<Arc<CachedNar>> {
        let key = cached.allocation.key;
        let mut state = self.state.locked();
        state.failed_at = None;
        let evicted = state.evict(u64::MAX, self.count_max.saturating_sub(1));
        if evicted.is_none() {
            drop(state);
            return None;
        }
        state.clock += 1;
        let cached = Arc::new(cached);
        let entry = Entry {
            cached: Arc::clone(&cached),
            used: state.clock,
        };
        let before = state.entries.insert(key, entry);
        drop(state);
        drop((before, evicted));
        Some(cached)
    }

    /// Drops a copy that was not hashed, because its files have changed.
    pub(super) fn drop_copy(&self, cached: &CachedNar) {
        drop(self.state.locked().entries.remove(&cached.allocation.key));
    }

    /// Records that a NAR is not worth caching.
    pub(super) fn refuse(&self, key: Key) {
        let refused = &mut self.state.locked().refused;
        if refused.len() == REFUSED_COUNT_MAX {
            refused.clear();
        }
        refused.insert(key);
    }

    /// Drops a copy that could not be read, and does not cache that NAR again. Other copies may be
    /// readable.
    pub(super) fn fail(&self, cached: &CachedNar, error: &io::Error) {
        let key = cached.allocation.key;
        let dropped = self.state.locked().entries.remove(&key);
        if dropped.is_some() {
            self.refuse(key);
            let what = format_args!("an entry cannot be read and is dropped: {error}");
            self.observer.event(&Event::NarCacheFailed(&what));
        }
    }

    /// Pauses writing after a write error, and reports it.
    pub(super) fn note_failure(&self, error: &io::Error) {
        let before = self.state.locked().failed_at.replace(Instant::now());
        if before.is_none() {
            self.observer.event(&Event::NarCacheFailed(error));
        }
    }
}

impl PathCache for NarCache {
    fn drop_path(&self, hash_part: &HashPart) {
        let is_of = |_: &Key, entry: &mut Entry| {
            let files = entry.cached.files;
            files.is_some_and(|files| files.hash_part == *hash_part)
        };
        let dropped: Vec<_> = self.state.locked().entries.extract_if(is_of).collect();
        // Close the files now that the lock is released: dropping an allocation takes it.
        drop(dropped);
    }
}

impl State {
    /// Evicts unused copies, least recently used first, down to these limits. `None`: that is
    /// impossible, because too many copies are being read.
    fn evict(&mut self, len_max: u64, count_max: usize) -> Option<Vec<Arc<CachedNar>>> {
        let mut idle: Vec<(u64, Key, u64)> = Vec::new();
        let (mut len, mut count) = (self.used_len, self.entries.len());
        if len > len_max || count > count_max {
            let entries = self.entries.iter();
            idle.extend(
                entries
                    .filter(|(_, entry)| Arc::strong_count(&entry.cached) == 1)
                    .map(|(key, entry)| (entry.used, *key, entry.cached.allocation.len)),
            );
            idle.sort_unstable_by_key(|(used, ..)| *used);
        }
        let mut evicted = Vec::new();
        let mut oldest = idle.into_iter();
        while len > len_max || count > count_max {
            let (_, key, freed) = oldest.next()?;
            len -= freed;
            count -= 1;
            evicted.push(key);
        }
        self.eviction_count += evicted.len() as u64;
        let entries = evicted.iter().filter_map(|one| self.entries.remove(one));
        Some(entries.map(|entry| entry.cached).collect())
    }
}
