//! Prefetch: renders narinfos before they are requested.
//!
//! # Theory of operation
//!
//! For each cache, one low-priority thread renders and signs
//!
//! * the *queue*: if a narinfo had to be rendered for a request, the references of its path, and
//!   their references. A client that copies the path will request them next;
//! * newly registered paths, four times a second, because a path just built is soon requested;
//!   after the catalog is loaded and after a change of keys or policy, the newest ones.
//!
//! The queue comes first while there is *credit*: a prefetched narinfo costs credit, and earns more
//! than it has cost if a client requests it later. If clients do not request the references, the
//! credit is soon spent and hardly any work is wasted. New paths use only free capacity, one batch
//! at a time. So they never evict a narinfo that was requested, and cost the same for all sizes of
//! stores. Until the catalog is loaded, nothing is prefetched, so a server without requests does no
//! look-ups.
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

/// The nice value: 0 is the default, 19 the lowest priority.
const NICENESS: i32 = 10;

/// The prefetch thread of one cache. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Prefetcher {
    narinfos: Arc<Narinfos>,
    thread: LowPriority,
}

impl Prefetcher {
    /// Starts the prefetch thread.
    pub(crate) fn start(narinfos: Arc<Narinfos>) -> io::Result<Self> {
        narinfos.prefetch_queue.serve();
        let shared = Arc::clone(&narinfos);
        let work = move || NewPaths::new(&shared).run();
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

/// The state of the thread: the paths that it has seen.
struct NewPaths<'a> {
    narinfos: &'a Narinfos,
    /// Whether the catalog was out of date at the last check.
    was_stale: bool,
    /// The catalog's epoch at the last check for new paths; `None` before the first check.
    epoch: Option<u64>,
    /// The highest registration number found so far.
    newest: i64,
    /// The policy generation at the last check.
    generation: u64,
}

impl<'a> NewPaths<'a> {
    fn new(narinfos: &'a Narinfos) -> Self {
        Self {
            narinfos,
            was_stale: false,
            epoch: None,
            newest: 0,
            generation: narinfos.reader.policy.generation(),
        }
    }

    fn run(mut self) {
        let mut checked_at = Instant::now();
        loop {
            let rest = INTERVAL.saturating_sub(checked_at.elapsed());
            match self.narinfos.prefetch_queue.next(rest) {
                Task::Stop => return,
                // Ignore an error: a request for the path will fail in the same way and report it.
                Task::Prefetch(queued) => drop(self.narinfos.prepare(&queued)),
                Task::Idle => {
                    self.prefetch_new().unwrap_or_default();
                    if let Some(packed) = &self.narinfos.packed {
                        packed.train();
                    }
                    checked_at = Instant::now();
                }
            }
        }
    }

    /// Prefetches one batch of new paths. Others are rendered when they are requested.
    fn prefetch_new(&mut self) -> Result<(), StoreError> {
        let reader = &self.narinfos.reader;
        // A new policy generation invalidates all narinfos, so the newest paths are new again.
        let generation = reader.policy.generation();
        if std::mem::replace(&mut self.generation, generation) != generation {
            (self.epoch, self.newest) = (None, 0);
        }
        let Some(catalog) = reader.store().catalog() else {
            return Ok(());
        };
        let snapshot = match reader.shared.fresh() {
            Some(snapshot) => snapshot,
            None => {
                let loaded = match std::mem::replace(&mut self.was_stale, true) {
                    true => catalog.renew()?,
                    false => None,
                };
                let Some(snapshot) = loaded else {
                    return Ok(());
                };
                snapshot
            }
        };
        self.was_stale = false;
        if self.epoch == Some(snapshot.epoch) {
            return Ok(());
        }
        let infos = reader.store().newest(None, STEP_COUNT)?;
        let new_count = infos
            .iter()
            .take_while(|info| info.registration > Some(self.newest))
            .count();
        let new = infos.get(..new_count).unwrap_or_default();
        self.narinfos.offer(new, &snapshot);
        let newest = infos.first().and_then(|info| info.registration);
        self.newest = newest.unwrap_or(self.newest);
        self.epoch = Some(snapshot.epoch);
        Ok(())
    }
}
