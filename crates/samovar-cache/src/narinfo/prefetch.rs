//! Prefetch: narinfos rendered before they are requested.
//!
//! # Theory of operation
//!
//! One thread of low priority for each cache renders and signs
//!
//! * the *queue*: the references of a path whose narinfo had to be rendered for a request, and
//!   their references. A client that copies the path requests them next;
//! * all paths, newest first, after the start and after a change of keys or policy, until the free
//!   capacity is used up;
//! * newly registered paths, four times a second: a path just built is requested soon.
//!
//! The queue comes first while it pays: a prefetched narinfo costs *credit*, and one that is then
//! requested earns more than it cost. Where requests do not follow references the credit is soon
//! spent, and hardly any work is wasted. Everything beyond the queue uses only free capacity, and a
//! quarter of a core for all caches together; so a requested narinfo is never evicted by one that
//! was not.
//!
//! A row is read after the snapshot whose epoch its narinfo gets, as on a worker. A catalog that is
//! out of date is loaded here only after a quarter of a second: requests should not wait for a
//! thread of low priority.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use samovar_store::StoreError;

use crate::narinfo::narinfos::Narinfos;
use crate::narinfo::prefetch_queue::{STEP_COUNT, Task};

/// The interval of checks for new paths while the queue is empty.
const INTERVAL: Duration = Duration::from_millis(250);

/// The first interval after the start, while the catalog is being loaded; it doubles each time.
const START_INTERVAL: Duration = Duration::from_millis(10);

/// The pause after background work, as a multiple of its duration. It is longer with more caches,
/// so that all threads together take no more.
const REST_FACTOR: u32 = 3;

/// The nice value: 0 is the default, 19 the lowest priority.
const NICENESS: i32 = 10;

/// The running thread; dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Prefetcher {
    pub(crate) narinfos: Arc<Narinfos>,
    thread: Option<JoinHandle<()>>,
}

impl Prefetcher {
    /// `cache_count`: the number of such threads.
    pub(crate) fn start(narinfos: Arc<Narinfos>, cache_count: u32) -> io::Result<Self> {
        narinfos.prefetch_queue.serve();
        let shared = Arc::clone(&narinfos);
        let thread = std::thread::Builder::new()
            .name("narinfos-ahead".into())
            .spawn(move || {
                // Per thread on Linux. A failure is harmless.
                rustix::process::nice(NICENESS).ok();
                Walk::new(&shared, cache_count).run();
            })?;
        Ok(Self {
            narinfos,
            thread: Some(thread),
        })
    }

    /// Ends the thread without waiting for it: it may wait for a disk.
    pub(crate) fn retire(mut self) {
        drop(self.thread.take());
    }
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        self.narinfos.prefetch_queue.stop();
        if let Some(thread) = self.thread.take() {
            // A panic was reported by its hook.
            let _ended = thread.join();
        }
    }
}

/// The thread's walk through all paths.
struct Walk<'a> {
    narinfos: &'a Narinfos,
    /// The pause after background work, as a multiple of its duration.
    rest_factor: u32,
    /// Whether the catalog was out of date at the last step.
    was_stale: bool,
    /// The epoch of the last check for new paths.
    epoch: Option<u64>,
    /// The highest registration number seen.
    newest: i64,
    /// The position of the walk, newest to oldest: the next row is below.
    below: Option<i64>,
    /// Whether the walk is over.
    is_done: bool,
    /// The generation of the policy in which the walk began.
    generation: u64,
}

impl<'a> Walk<'a> {
    fn new(narinfos: &'a Narinfos, cache_count: u32) -> Self {
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
                // Errors are met again, and reported, when the path is requested.
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

    /// One step of background work. Returns `false` if there is none.
    fn step(&mut self) -> Result<bool, StoreError> {
        let reader = &self.narinfos.reader;
        // Narinfos of another generation of the policy are not sent any more.
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
            // One step of new paths; beyond that they are rendered when requested.
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
        // Capacity is shared out by hash: when most shards are full, nearly all are.
        self.is_done = self.below.is_none() || offered_count * 2 < infos.len();
        Ok(true)
    }
}

fn newest_of(infos: &[samovar_nix::PathInfo]) -> Option<i64> {
    infos.first().and_then(|info| info.registration)
}
