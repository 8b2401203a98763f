//! Which copies there are, and what they take.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use samovar_metrics::CacheStatus;
use samovar_nix::NarHash;

use super::{KeptSpace, allocate};
use samovar_metrics::{Event, Observer};

/// A shorter NAR is one buffer: not worth a file.
const NAR_LEN_MIN: u64 = 256 * 1024;

/// Space is taken in such steps, as bytes come: who breaks off has displaced no more than that
/// beyond what he has read.
const STEP_LEN: u64 = 4 << 20;

/// How long nothing is written after an error.
const PAUSE: Duration = Duration::from_secs(60);

/// NARs not worth a copy that are remembered. 70 bytes each.
const REFUSED_COUNT_MAX: usize = 4096;

/// A right copy of a NAR.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) file: Arc<File>,
    pub(super) place: Place,
}

/// What a copy takes, from before its first byte is written until nobody reads it any more.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) nar_hash: NarHash,
    pub(super) len: u64,
    /// What is taken so far; in the end `len`.
    taken_len: u64,
    table: Arc<Table>,
}

impl Place {
    /// Takes space for the first `len` bytes, in place of copies that were not used for longest.
    /// `None`: there is none.
    pub(super) fn grow(&mut self, file: &File, len: u64) -> Option<()> {
        if len <= self.taken_len {
            return Some(());
        }
        let wanted_len = len.max(self.taken_len + STEP_LEN).min(self.len);
        let more_len = wanted_len.checked_sub(self.taken_len)?;
        let evicted = self.table.take(more_len)?;
        let before_len = std::mem::replace(&mut self.taken_len, wanted_len);
        // Closed without the lock, which their places take.
        drop(evicted);
        let allocated = allocate(file, before_len, more_len);
        allocated
            .inspect_err(|error| self.table.note_failure(error))
            .ok()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.table.state();
        state.used_len -= self.taken_len;
        state.places.remove(&self.nar_hash);
    }
}

/// The table.
#[derive(Debug)]
pub(super) struct Table {
    space: KeptSpace,
    pub(super) observer: Arc<dyn Observer>,
    count_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    kept: HashMap<NarHash, Entry>,
    /// Of everything that takes space, kept or not.
    places: HashSet<NarHash>,
    used_len: u64,
    /// Counts uses.
    clock: u64,
    /// What was found wrong, or not worth it, is not written again and again.
    refused: Refused,
    failed_at: Option<Instant>,
    hit_count: u64,
    miss_count: u64,
    eviction_count: u64,
}

/// The last ones refused.
#[derive(Debug, Default)]
struct Refused {
    set: HashSet<NarHash>,
    in_order: VecDeque<NarHash>,
}

#[derive(Debug)]
struct Entry {
    kept: Arc<Kept>,
    used: u64,
}

impl Table {
    pub(super) fn new(space: KeptSpace, observer: Arc<dyn Observer>) -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self {
            space,
            observer,
            count_max: usize::try_from((descriptors / 32).min(4096)).unwrap_or(0),
            state: Mutex::default(),
        }
    }

    pub(super) fn find(&self, nar_hash: &NarHash) -> Option<Arc<Kept>> {
        let mut state = self.state();
        state.clock += 1;
        let used = state.clock;
        let Some(entry) = state.kept.get_mut(nar_hash) else {
            state.miss_count += 1;
            return None;
        };
        entry.used = used;
        let kept = Arc::clone(&entry.kept);
        state.hit_count += 1;
        Some(kept)
    }

    pub(super) fn figures(&self) -> CacheStatus {
        let state = self.state();
        CacheStatus {
            name: "nar_cache".to_owned(),
            entry_count: state.kept.len() as u64,
            len: state.used_len,
            len_max: self.space.len_max(state.used_len),
            hit_count: state.hit_count,
            miss_count: state.miss_count,
            eviction_count: state.eviction_count,
        }
    }

    /// A file for a copy, and its place, which takes nothing yet.
    pub(super) fn place(self: &Arc<Self>, nar_hash: &NarHash, len: u64) -> Option<(File, Place)> {
        if len < NAR_LEN_MIN {
            return None;
        }
        let place = self.reserve(nar_hash, len)?;
        match self.space.file() {
            Ok(file) => Some((file, place)),
            Err(error) => {
                self.note_failure(&error);
                None
            }
        }
    }

    fn reserve(self: &Arc<Self>, nar_hash: &NarHash, len: u64) -> Option<Place> {
        let mut state = self.state();
        let is_paused = state.failed_at.is_some_and(|at| at.elapsed() < PAUSE);
        if is_paused || state.places.contains(nar_hash) || state.refused.set.contains(nar_hash) {
            return None;
        }
        if len > self.space.len_max(state.used_len) / 2 {
            return None;
        }
        let under_way_count = state.places.len().saturating_sub(state.kept.len());
        if under_way_count >= self.count_max {
            return None;
        }
        state.places.insert(*nar_hash);
        Some(Place {
            nar_hash: *nar_hash,
            len,
            taken_len: 0,
            table: Arc::clone(self),
        })
    }

    /// Takes so much more for a copy that is under way; returns what went for it.
    fn take(&self, len: u64) -> Option<Vec<Arc<Kept>>> {
        let mut state = self.state();
        let len_max = self.space.len_max(state.used_len);
        let evicted = state.make_room(len_max.checked_sub(len)?, self.count_max)?;
        state.used_len += len;
        Some(evicted)
    }

    pub(super) fn keep(&self, kept: Kept) {
        let nar_hash = kept.place.nar_hash;
        let mut state = self.state();
        state.failed_at = None;
        let evicted = state.make_room(u64::MAX, self.count_max.saturating_sub(1));
        if evicted.is_none() {
            drop(state);
            return;
        }
        state.clock += 1;
        let entry = Entry {
            kept: Arc::new(kept),
            used: state.clock,
        };
        let before = state.kept.insert(nar_hash, entry);
        drop(state);
        drop((before, evicted));
    }

    /// Remembers not to copy a NAR again.
    pub(super) fn refuse(&self, nar_hash: NarHash) {
        let refused = &mut self.state().refused;
        if refused.in_order.len() == REFUSED_COUNT_MAX
            && let Some(oldest) = refused.in_order.pop_front()
        {
            refused.set.remove(&oldest);
        }
        if refused.set.insert(nar_hash) {
            refused.in_order.push_back(nar_hash);
        }
    }

    /// A copy could not be read. It goes for good, and says nothing about others.
    pub(super) fn fail(&self, kept: &Kept, error: &io::Error) {
        let forgotten = self.state().kept.remove(&kept.place.nar_hash);
        if forgotten.is_some() {
            self.refuse(kept.place.nar_hash);
            let what = format_args!("one copy cannot be read, and is given up: {error}");
            self.observer.event(&Event::NarCacheFailed(&what));
        }
    }

    /// Copies cannot be written.
    pub(super) fn note_failure(&self, error: &io::Error) {
        let before = self.state().failed_at.replace(Instant::now());
        if before.is_none() {
            self.observer.event(&Event::NarCacheFailed(error));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Drops copies that nobody reads until at most so much is taken; `None` if that cannot be.
    fn make_room(&mut self, len_max: u64, count_max: usize) -> Option<Vec<Arc<Kept>>> {
        let mut idle: Vec<(u64, NarHash, u64)> = Vec::new();
        let (mut len, mut count) = (self.used_len, self.kept.len());
        if len > len_max || count > count_max {
            let entries = self.kept.iter();
            idle.extend(
                entries
                    .filter(|(_, entry)| Arc::strong_count(&entry.kept) == 1)
                    .map(|(nar_hash, entry)| (entry.used, *nar_hash, entry.kept.place.len)),
            );
            idle.sort_unstable();
        }
        let mut evicted = Vec::new();
        let mut oldest = idle.into_iter();
        while len > len_max || count > count_max {
            let (_, nar_hash, freed) = oldest.next()?;
            len -= freed;
            count -= 1;
            evicted.push(nar_hash);
        }
        self.eviction_count += evicted.len() as u64;
        let entries = evicted.iter().filter_map(|one| self.kept.remove(one));
        Some(entries.map(|entry| entry.kept).collect())
    }
}
