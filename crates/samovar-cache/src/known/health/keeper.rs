//! The thread that looks a second time, and writes down what is known.

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use samovar_metrics::Event;
use samovar_nix::HashPart;
use samovar_store::{Verdict, verify};

use super::{Health, scrub};

/// Paths that wait for a second look; more are left as they are.
const WISH_COUNT_MAX: usize = 1024;

/// How long what has changed is not written down, at least.
const SAVE_INTERVAL: Duration = Duration::from_secs(30);

/// How much longer than writing took it is not written again: a large file is written seldom.
const SAVE_REST_FACTOR: u32 = 100;

/// How long the end of the server waits for the last file.
const END_TIME: Duration = Duration::from_secs(2);

/// Added to the priority's number, where 0 is usual and 19 the lowest priority.
const NICENESS: i32 = 15;

/// What the threads are to do.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    state: Mutex<WishState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WishState {
    queue: VecDeque<HashPart>,
    has_changed: bool,
    is_stopped: bool,
    /// Threads that have not ended.
    thread_count: usize,
}

impl Wishes {
    /// Wishes for a second look at a path; `false` if there will be none.
    pub(super) fn add(&self, hash_part: HashPart) -> bool {
        let mut state = self.state();
        if state.queue.contains(&hash_part) {
            return true;
        }
        let is_taken =
            state.thread_count > 0 && !state.is_stopped && state.queue.len() < WISH_COUNT_MAX;
        if is_taken {
            state.queue.push_back(hash_part);
            drop(state);
            self.changed.notify_all();
        }
        is_taken
    }

    /// Something is known that was not.
    pub(super) fn note_change(&self) {
        let was_changed = std::mem::replace(&mut self.state().has_changed, true);
        if !was_changed {
            self.changed.notify_all();
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.state().is_stopped
    }

    /// Waits so long; [`ControlFlow::Break`] at once when the server ends.
    pub(super) fn rest(&self, time: Duration) -> ControlFlow<()> {
        let waited = self
            .changed
            .wait_timeout_while(self.state(), time, |state| !state.is_stopped);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match state.is_stopped {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn state(&self) -> MutexGuard<'_, WishState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The running threads; dropping it ends them.
#[derive(Debug)]
pub(crate) struct Watch {
    health: Arc<Health>,
    threads: Vec<JoinHandle<()>>,
}

impl Watch {
    /// # Errors
    ///
    /// If a thread cannot be started.
    pub(crate) fn start(health: &Arc<Health>) -> io::Result<Self> {
        let mut watch = Self {
            health: Arc::clone(health),
            threads: Vec::new(),
        };
        watch.spawn("files-checked", |health| Keeper::new(health).run())?;
        if let Some(rate) = health.trust.scrub_rate {
            watch.spawn("files-scrubbed", move |health| scrub::run(health, rate))?;
        }
        Ok(watch)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce(&Health) + Send + 'static) -> io::Result<()> {
        let health = Arc::clone(&self.health);
        health.wishes.state().thread_count += 1;
        let spawned = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                // Linux counts this for each thread. Where it may not be lowered, that is no harm.
                rustix::process::nice(NICENESS).ok();
                let ended = Ended(health);
                work(&ended.0);
            });
        match spawned {
            Ok(thread) => {
                self.threads.push(thread);
                Ok(())
            }
            Err(error) => {
                self.health.wishes.state().thread_count -= 1;
                Err(error)
            }
        }
    }

    /// Ends the threads, and waits a little for what they write last.
    pub(crate) fn stop(&self) {
        let wishes = &self.health.wishes;
        let mut state = wishes.state();
        state.is_stopped = true;
        wishes.changed.notify_all();
        let waited = wishes
            .changed
            .wait_timeout_while(state, END_TIME, |state| state.thread_count > 0);
        drop(waited);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop();
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so already.
            let _ended = thread.join();
        }
    }
}

/// Counts a thread out, however it ends.
struct Ended(Arc<Health>);

impl Drop for Ended {
    fn drop(&mut self) {
        let wishes = &self.0.wishes;
        wishes.state().thread_count -= 1;
        wishes.changed.notify_all();
    }
}

/// The thread's own.
struct Keeper<'a> {
    health: &'a Health,
    saves_from: Instant,
    has_failed: bool,
}

/// What to do next.
enum Task {
    Look(HashPart),
    Save,
    Stop,
}

impl<'a> Keeper<'a> {
    fn new(health: &'a Health) -> Self {
        Self {
            health,
            saves_from: Instant::now() + SAVE_INTERVAL,
            has_failed: false,
        }
    }

    fn run(mut self) {
        loop {
            match self.next() {
                Task::Look(hash_part) => self.look(hash_part),
                Task::Save => self.save(),
                Task::Stop => return self.save(),
            }
        }
    }

    fn next(&self) -> Task {
        let wishes = &self.health.wishes;
        let mut state = wishes.state();
        loop {
            if state.is_stopped {
                return Task::Stop;
            }
            if let Some(hash_part) = state.queue.pop_front() {
                return Task::Look(hash_part);
            }
            let rest = self.saves_from.saturating_duration_since(Instant::now());
            if !state.has_changed || self.health.trust.state_directory.is_none() {
                let woken = wishes.changed.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
            } else if rest.is_zero() {
                return Task::Save;
            } else {
                let woken = wishes.changed.wait_timeout(state, rest);
                (state, _) = woken.unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn look(&self, hash_part: HashPart) {
        let health = self.health;
        let verdict = health.store.lookup(hash_part).ok().flatten().map(|info| {
            let before = health.look_of(&info);
            let found = verify(&*health.store, &info, &mut |_| self.go_on());
            let after = health.look_of(&info);
            (info, found, before.filter(|_| before == after))
        });
        match verdict {
            Some((info, Ok(Verdict::Right(root)), _)) => health.acquit(&info, root.as_ref()),
            Some((info, Ok(Verdict::Damaged(damage)), Some(files))) => {
                health.confirm(&info, files, &damage);
            }
            // It is gone, or somebody is at it, or it cannot be read now: nobody knows.
            _ => drop(health.damaged.unmark(&hash_part)),
        }
    }

    fn go_on(&self) -> ControlFlow<()> {
        match self.health.wishes.is_stopped() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn save(&mut self) {
        if !std::mem::take(&mut self.health.wishes.state().has_changed) {
            return;
        }
        let started = Instant::now();
        match self.health.save() {
            Ok(()) => self.has_failed = false,
            Err(error) => {
                // Once until it works again.
                if !std::mem::replace(&mut self.has_failed, true) {
                    self.health.observer.event(&Event::StateFailed(&error));
                }
            }
        }
        let rest = started.elapsed() * SAVE_REST_FACTOR;
        self.saves_from = Instant::now() + rest.max(SAVE_INTERVAL);
    }
}
