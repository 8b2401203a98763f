//! Narinfos made before they are asked for.
//!
//! # Theory of operation
//!
//! One thread of low priority for each cache renders and signs
//!
//! * what was *wished* for: the references of a path whose narinfo had just to be made, and theirs.
//!   Whoever copies a path asks for those next.
//! * all paths, the newest first, after the start and after a change of the key, until there is no
//!   room that is free;
//! * what was registered since it last looked, which it does four times a second: a path just built
//!   is asked for soon.
//!
//! Wishes come first, as long as they prove to be worth it: a narinfo made for a wish costs
//! *credit*, and one that is then asked for earns more than it cost. Where requests follow no
//! references, the credit is soon spent, and hardly any narinfo is made for nothing. What nobody
//! wished for takes free room alone, and all these threads a quarter of a core at most; so what is
//! asked for is never evicted by what is not.
//!
//! Everything is as exact as on a worker: a row is read after the snapshot whose epoch it is
//! stamped with. A state of the store that nobody has loaded is loaded here only after a quarter of
//! a second of quiet: a thread of low priority should not be the one that others wait for.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use samovar_store::StoreError;

use crate::narinfo::narinfos::Narinfos;
use crate::narinfo::prefetch_queue::{STEP_COUNT, Task};

/// How often it looks for commits when nobody wishes for anything.
const INTERVAL: Duration = Duration::from_millis(250);

/// The same at the start, when the store is still being loaded; it doubles each time.
const START_INTERVAL: Duration = Duration::from_millis(10);

/// How much longer it rests than it worked, when nobody has asked for that work; where there are
/// more caches and so more threads, all of them together work no longer.
const REST_FACTOR: u32 = 3;

/// Added to the priority's number, where 0 is usual and 19 the lowest priority.
const NICENESS: i32 = 10;

/// The running thread; dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Ahead {
    narinfos: Arc<Narinfos>,
    thread: Option<JoinHandle<()>>,
}

impl Ahead {
    /// `cache_count`: how many such threads there are.
    pub(crate) fn start(narinfos: Arc<Narinfos>, cache_count: u32) -> io::Result<Self> {
        narinfos.wishes.serve();
        let shared = Arc::clone(&narinfos);
        let thread = std::thread::Builder::new()
            .name("narinfos-ahead".into())
            .spawn(move || {
                // Linux counts this for each thread. Where it may not be lowered, that is no harm.
                rustix::process::nice(NICENESS).ok();
                Walk::new(&shared, cache_count).run();
            })?;
        Ok(Self {
            narinfos,
            thread: Some(thread),
        })
    }

    pub(crate) fn narinfos(&self) -> &Arc<Narinfos> {
        &self.narinfos
    }

    /// Ends the thread without waiting for it: it may wait for a disk.
    pub(crate) fn retire(mut self) {
        drop(self.thread.take());
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.narinfos.wishes.stop();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so already.
            let _ended = thread.join();
        }
    }
}

/// The thread's way through all paths.
struct Walk<'a> {
    narinfos: &'a Narinfos,
    /// How much longer than it worked it rests.
    rest_factor: u32,
    /// Whether nobody had loaded the state of the store the last time.
    was_stale: bool,
    /// The last epoch in which new rows were looked for.
    epoch: Option<u64>,
    /// The highest number of a registration that was seen.
    newest: i64,
    /// Where the walk from the newest to the oldest stands: the next row is below.
    below: Option<i64>,
    /// Whether that walk is over.
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
            match self.narinfos.wishes.next(rest) {
                Task::Stop => return,
                // What cannot be read now is read, and reported, when it is asked for.
                Task::Wishes(wishes) => drop(self.narinfos.prepare(&wishes)),
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

    /// A little of what nobody has wished for. `false` when there is nothing to do.
    fn step(&mut self) -> Result<bool, StoreError> {
        let reader = &self.narinfos.reader;
        // What was rendered under another generation of the policy is not sent any more.
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
            // One step of the new ones: after many at once the rest is made when asked for.
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
        // Places are shared out by hash: when most are taken, nearly all are.
        self.is_done = self.below.is_none() || offered_count * 2 < infos.len();
        Ok(true)
    }
}

fn newest_of(infos: &[samovar_nix::PathInfo]) -> Option<i64> {
    infos.first().and_then(|info| info.registration)
}
