//! Prefetch: renders narinfos before they are requested.
//!
//! # Theory of operation
//!
//! For each cache, one low-priority thread renders and signs
//!
//! * the *queue*: if a narinfo had to be rendered for a request, the references of its path, and
//!   their references. A client that copies the path will request them next;
//! * all paths, newest first, after the start and after a change of keys or policy, until no free
//!   capacity is left;
//! * newly registered paths, four times a second, because a path just built is soon requested.
//!
//! The queue comes first while it pays: a prefetched narinfo costs *credit*, and earns more than
//! that if it is requested later. If clients do not request the references, the credit is soon
//! spent and hardly any work is wasted. The other two kinds of work use only free capacity, and at
//! most a quarter of a core for all caches together. So they never evict a narinfo that was
//! requested.
//!
//! As on a worker, a row is read after the snapshot whose epoch its narinfo gets. A catalog that is
//! out of date is loaded by this thread only after a quarter of a second: until then a request may
//! load it, and should not wait for a low-priority thread.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use samovar_store::StoreError;

use crate::narinfo::narinfos::Narinfos;
use crate::narinfo::prefetch_queue::{STEP_COUNT, Task};
use crate::sync::LowPriority;

/// The interval of checks for new paths while the queue is empty.
const INTERVAL: Duration = Duration::from_millis(250);

/// Interval after the start, while the catalog is being loaded. It doubles each time, up to
/// [`INTERVAL`].
const START_INTERVAL: Duration = Duration::from_millis(10);

/// Pause after background work, as a multiple of its duration. It is multiplied by the number of
/// caches, so that all threads together use no more time than one.
const REST_FACTOR: u32 = 3;

/// The nice value: 0 is the default, 19 the lowest priority.
const NICENESS: i32 = 10;

/// The prefetch thread of one cache. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Prefetcher {
    narinfos: Arc<Narinfos>,
    thread: LowPriority,
}

impl Prefetcher {
    /// Starts the prefetch thread. `cache_count` is the number of caches that have such a thread.
    pub(crate) fn start(narinfos: Arc<Narinfos>, cache_count: usize) -> io::Result<Self> {
        narinfos.prefetch_queue.serve();
        let shared = Arc::clone(&narinfos);
        let work = move || Walk::new(&shared, cache_count).run();
        let thread = LowPriority::start("narinfos-ahead", NICENESS, work)?;
        Ok(Self { narinfos, thread })
    }

    /// Ends the prefetch thread without waiting for it, because it may be waiting for a disk.
    pub(crate) fn retire(mut self) {
        self.thread.detach();
    }
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        self.narinfos.prefetch_queue.stop();
    }
}

/// The thread's state: its position in the list of all paths.
struct Walk<'a> {
    narinfos: &'a Narinfos,
    /// The pause after background work, as a multiple of its duration.
    rest_factor: u32,
    /// Whether the catalog was out of date at the last step.
    was_stale: bool,
    /// The catalog's epoch at the last check for new paths; `None` before the first check.
    epoch: Option<u64>,
    /// The highest registration number found so far.
    newest: i64,
    /// The walk goes through all paths from the newest to the oldest. It continues below this
    /// registration number; `None`: it starts at the newest path.
    below: Option<i64>,
    /// Whether the walk through all paths is complete.
    is_done: bool,
    /// The policy generation in which the walk started.
    generation: u64,
}

impl<'a> Walk<'a> {
    fn new(narinfos: &'a Narinfos, cache_count: usize) -> Self {
        let cache_count = u32::try_from(cache_count).unwrap_or(u32::MAX);
        Self {
            narinfos,
            rest_factor: (REST_FACTOR + 1).saturating_mul(cache_count.max(1)) - 1,
            was_stale: false,
            epoch: None,
            newest: 0,
            below: None,
            is_done: false,
            generation: narinfos.reader.policy.generation(),
        }
    }

    fn run(mut self) {
        let mut rests_until = Instant::now();
        let mut interval = START_INTERVAL;
        loop {
            let rest = rests_until.saturating_duration_since(Instant::now());
            match self.narinfos.prefetch_queue.next(rest) {
                Task::Stop => return,
                // Ignore an error: a request for the path will fail in the same way and report it.
                Task::Prefetch(queued) => drop(self.narinfos.prepare(&queued)),
                Task::Idle => {
                    let started = Instant::now();
                    let rest = match self.step() {
                        Ok(true) => started.elapsed().saturating_mul(self.rest_factor),
                        Ok(false) | Err(_) => {
                            interval = (interval * 2).min(INTERVAL);
                            interval
                        }
                    };
                    rests_until = Instant::now() + rest;
                }
            }
        }
    }

    /// Does one step of background work. Returns `false` if there was nothing to do.
    fn step(&mut self) -> Result<bool, StoreError> {
        let reader = &self.narinfos.reader;
        // A new policy generation invalidates all narinfos, so the walk starts again.
        let generation = reader.policy.generation();
        if std::mem::replace(&mut self.generation, generation) != generation {
            (self.below, self.is_done) = (None, false);
        }
        let Some(catalog) = reader.store().catalog() else {
            return Ok(false);
        };
        let snapshot = match reader.shared.fresh() {
            Some(snapshot) => snapshot,
            None => {
                let loaded = match std::mem::replace(&mut self.was_stale, true) {
                    true => catalog.refresh()?,
                    false => None,
                };
                let Some(snapshot) = loaded else {
                    return Ok(false);
                };
                snapshot
            }
        };
        self.was_stale = false;
        let store = reader.store();
        if self.epoch.is_some_and(|epoch| epoch != snapshot.epoch) {
            // Prefetch only one batch of new paths. Others are rendered when they are requested.
            let infos = store.newest(None, STEP_COUNT)?;
            let new_count = infos
                .iter()
                .take_while(|info| info.registration > Some(self.newest))
                .count();
            self.narinfos
                .offer(infos.get(..new_count).unwrap_or_default(), &snapshot);
            self.newest = newest_of(&infos).unwrap_or(self.newest);
        }
        self.epoch = Some(snapshot.epoch);
        if self.is_done {
            return Ok(false);
        }
        let infos = store.newest(self.below, STEP_COUNT)?;
        self.newest = self.newest.max(newest_of(&infos).unwrap_or(0));
        let offered_count = self.narinfos.offer(&infos, &snapshot);
        self.below = infos.last().and_then(|info| info.registration);
        // Paths are spread over the shards by hash: when most of them found no capacity, nearly all
        // shards are full.
        self.is_done = self.below.is_none() || offered_count * 2 < infos.len();
        Ok(true)
    }
}

fn newest_of(infos: &[samovar_nix::PathInfo]) -> Option<i64> {
    infos.first().and_then(|info| info.registration)
}
