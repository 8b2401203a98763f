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

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use samovar_nix::HashPart;
use samovar_store::StoreError;

use crate::narinfos::Narinfos;

/// Wishes that wait; more are forgotten. 24 bytes each.
const WISH_COUNT_MAX: usize = 16 * 1024;

/// What a narinfo made for a wish costs.
const COST: i64 = 8;

/// What one earns that is asked for: one in four is enough.
const EARNED: i64 = 4 * COST;

/// What a cold narinfo earns: one in eight finds out whether wishes have become worth it.
const EARNED_COLD: i64 = 1;

/// The most that can be saved, and what there is at the start: 1024 narinfos.
const CREDIT_MAX: i64 = 1024 * COST;

/// Paths looked up at once: less than a millisecond with the connection.
const STEP_COUNT: usize = 32;

/// How often it looks for commits when nobody wishes for anything.
const INTERVAL: Duration = Duration::from_millis(250);

/// The same at the start, when the store is still being loaded; it doubles each time.
const START_INTERVAL: Duration = Duration::from_millis(10);

/// How much longer it rests than it worked, when nobody has asked for that work; where there are
/// more caches and so more threads, all of them together work no longer.
const REST_FACTOR: u32 = 3;

/// Added to the priority's number, where 0 is usual and 19 the lowest priority.
const NICENESS: i32 = 10;

/// What is to be made ready next; shared with those who wish.
#[derive(Debug)]
pub(crate) struct Wishes {
    state: Mutex<State>,
    changed: Condvar,
    credit: AtomicI64,
}

impl Default for Wishes {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::default(),
            credit: AtomicI64::new(CREDIT_MAX),
        }
    }
}

#[derive(Debug, Default)]
struct State {
    /// With how far to go from each.
    queue: VecDeque<(HashPart, u8)>,
    /// Whether there is a thread.
    is_served: bool,
    starts_anew: bool,
    is_stopped: bool,
}

/// What to do next.
enum Task {
    Wishes(Vec<(HashPart, u8)>),
    Anew,
    Idle,
    Stop,
}

impl Wishes {
    /// Wishes for these paths, and for what is `depth - 1` references away from them; unless wishes
    /// have proved to be in vain.
    pub(crate) fn add(&self, hash_parts: impl Iterator<Item = HashPart>, depth: u8) {
        if depth == 0 || self.credit.load(Ordering::Relaxed) < COST {
            return;
        }
        let mut state = self.state();
        if !state.is_served {
            return;
        }
        let was_empty = state.queue.is_empty();
        let room = WISH_COUNT_MAX.saturating_sub(state.queue.len());
        state
            .queue
            .extend(hash_parts.take(room).map(|one| (one, depth)));
        let is_news = was_empty && !state.queue.is_empty();
        drop(state);
        if is_news {
            self.changed.notify_one();
        }
    }

    /// A narinfo had to be made while somebody waited.
    pub(crate) fn note_cold(&self) {
        self.earn(EARNED_COLD);
    }

    /// A narinfo that was wished for was asked for.
    pub(crate) fn note_useful(&self) {
        self.earn(EARNED);
    }

    /// Pays for so many narinfos.
    pub(crate) fn pay(&self, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.credit
            .fetch_sub(count.saturating_mul(COST), Ordering::Relaxed);
    }

    fn earn(&self, sum: i64) {
        // Two at once may miss the limit by a little.
        if self.credit.load(Ordering::Relaxed) < CREDIT_MAX {
            self.credit.fetch_add(sum, Ordering::Relaxed);
        }
    }

    /// All that was made ready is out of date.
    pub(crate) fn start_anew(&self) {
        self.state().starts_anew = true;
        self.changed.notify_one();
    }

    /// Waits for something to do, for `patience` at most.
    fn next(&self, patience: Duration) -> Task {
        let state = self.state();
        let (mut state, _) = self
            .changed
            .wait_timeout_while(state, patience, |state| {
                state.queue.is_empty() && !state.starts_anew && !state.is_stopped
            })
            .unwrap_or_else(PoisonError::into_inner);
        if state.is_stopped {
            return Task::Stop;
        }
        if std::mem::take(&mut state.starts_anew) {
            return Task::Anew;
        }
        if state.queue.is_empty() {
            return Task::Idle;
        }
        let count = state.queue.len().min(STEP_COUNT);
        Task::Wishes(state.queue.drain(..count).collect())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The running thread; dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Ahead {
    narinfos: Arc<Narinfos>,
    thread: Option<JoinHandle<()>>,
}

impl Ahead {
    /// `cache_count`: how many such threads there are.
    pub(crate) fn start(narinfos: Arc<Narinfos>, cache_count: u32) -> io::Result<Self> {
        narinfos.wishes.state().is_served = true;
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
        self.narinfos.wishes.state().is_stopped = true;
        self.narinfos.wishes.changed.notify_one();
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
                Task::Anew => (self.below, self.is_done) = (None, false),
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
        let Some(catalog) = self.narinfos.store().catalog() else {
            return Ok(false);
        };
        let snapshot = match self.narinfos.origin.fresh() {
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
        let store = self.narinfos.store();
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
