//! The thread that reads suspect files a second time, and writes the state file.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use samovar_nix::HashPart;
use samovar_store::{Fingerprint, StoreError, Verdict, VerifyError, verify};

use super::{Health, Moment, scrub};
use crate::known::row::Row;

use crate::sync::{Locked, LowPriority, unpoisoned};

/// Maximum number of paths that wait for a second read. Bad reads of other paths are not marked.
const QUEUE_COUNT_MAX: usize = 1024;

/// Number of attempts of a second read while the store is unavailable.
const ATTEMPT_COUNT: u32 = 5;

/// Pause between two attempts of a second read.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(200);

/// Minimum interval between writes of the state file.
const SAVE_INTERVAL: Duration = Duration::from_secs(30);

/// Minimum pause after a write, as a multiple of the write's duration, so that a large file is not
/// written all the time.
const SAVE_PAUSE_FACTOR: u32 = 100;

/// Maximum time for which a shutdown waits for the state file.
const END_TIME: Duration = Duration::from_secs(2);

/// The nice value: 0 is the default, 19 the lowest priority.
const NICENESS: i32 = 15;

/// The shared work list of the background threads.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    state: Mutex<TaskState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TaskState {
    queue: VecDeque<HashPart>,
    has_changed: bool,
    is_stopped: bool,
    /// Number of background threads that are running.
    thread_count: usize,
}

impl Tasks {
    /// Queues a second read of a path. Returns `false` if the path will not be read again, because
    /// the queue is full or no thread runs.
    pub(super) fn add(&self, hash_part: HashPart) -> bool {
        let mut state = self.state.locked();
        if state.queue.contains(&hash_part) {
            return true;
        }
        let is_taken =
            state.thread_count > 0 && !state.is_stopped && state.queue.len() < QUEUE_COUNT_MAX;
        if is_taken {
            state.queue.push_back(hash_part);
            drop(state);
            self.changed.notify_all();
        }
        is_taken
    }

    /// Records that the state file is out of date.
    pub(super) fn note_change(&self) {
        let was_changed = std::mem::replace(&mut self.state.locked().has_changed, true);
        if !was_changed {
            self.changed.notify_all();
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.state.locked().is_stopped
    }

    /// Sleeps for `time`. Returns [`ControlFlow::Break`] as soon as the server ends.
    pub(super) fn rest(&self, time: Duration) -> ControlFlow<()> {
        let waited = self
            .changed
            .wait_timeout_while(self.state.locked(), time, |state| !state.is_stopped);
        let (state, _) = unpoisoned(waited);
        match state.is_stopped {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// The background threads. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    health: Arc<Health>,
    threads: Vec<LowPriority>,
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
        health.tasks.state.locked().thread_count += 1;
        // If the thread cannot be started, `ended` is dropped with the closure.
        let ended = Ended(health);
        let thread = LowPriority::start(name, NICENESS, move || work(&ended.0))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Ends the threads, and waits up to [`END_TIME`] for the state file.
    pub(crate) fn stop(&self) {
        let tasks = &self.health.tasks;
        let mut state = tasks.state.locked();
        state.is_stopped = true;
        tasks.changed.notify_all();
        let waited = tasks
            .changed
            .wait_timeout_while(state, END_TIME, |state| state.thread_count > 0);
        drop(waited);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Decrements the number of threads when one ends, by return or panic.
struct Ended(Arc<Health>);

impl Drop for Ended {
    fn drop(&mut self) {
        let tasks = &self.0.tasks;
        tasks.state.locked().thread_count -= 1;
        tasks.changed.notify_all();
    }
}

/// The thread that reads suspect files again and writes the state file.
struct Keeper<'a> {
    health: &'a Health,
    next_save_at: Instant,
    has_failed: bool,
}

/// A row, the verdict on its files, and their fingerprint if it is known.
type SecondRead = (Row, Verdict, Option<Fingerprint>);

/// The thread's next task.
enum Task {
    Verify(HashPart),
    Save,
    Stop,
}

impl<'a> Keeper<'a> {
    fn new(health: &'a Health) -> Self {
        Self {
            health,
            next_save_at: Instant::now() + SAVE_INTERVAL,
            has_failed: false,
        }
    }

    fn run(mut self) {
        loop {
            match self.next() {
                Task::Verify(hash_part) => self.verify(hash_part),
                Task::Save => self.save(),
                Task::Stop => return self.save(),
            }
        }
    }

    fn next(&self) -> Task {
        let tasks = &self.health.tasks;
        let mut state = tasks.state.locked();
        loop {
            if state.is_stopped {
                return Task::Stop;
            }
            if let Some(hash_part) = state.queue.pop_front() {
                return Task::Verify(hash_part);
            }
            let rest = self.next_save_at.saturating_duration_since(Instant::now());
            if !state.has_changed || self.health.trust.state_directory.is_none() {
                let woken = tasks.changed.wait(state);
                state = unpoisoned(woken);
            } else if rest.is_zero() {
                return Task::Save;
            } else {
                let woken = tasks.changed.wait_timeout(state, rest);
                (state, _) = unpoisoned(woken);
            }
        }
    }

    /// Reads a path a second time. Repeats the read while the store is unavailable: until a
    /// download fails again, nothing else would find the damage.
    fn verify(&self, hash_part: HashPart) {
        let health = self.health;
        let mut began = Moment::now();
        let mut read = self.second_read(hash_part);
        for _ in 1..ATTEMPT_COUNT {
            if read.is_ok() || health.tasks.rest(ATTEMPT_PAUSE).is_break() {
                break;
            }
            began = Moment::now();
            read = self.second_read(hash_part);
        }
        match read {
            Ok(Some((row, Verdict::Right(root), _))) => health.release(&row, &root, began),
            Ok(Some((row, Verdict::Damaged(damage), Some(files)))) => {
                health.quarantine(&row, files, &damage);
            }
            // The path was garbage-collected or changed meanwhile, or is unreadable now: nothing is
            // proven, so a suspect path is no longer suspect.
            _ => health.damaged.drop_suspect(&hash_part),
        }
    }

    /// Reads a path. Returns its row, the verdict, and the fingerprint of its files if they did not
    /// change during the read; `None` if the path is not registered or its files are unreadable.
    fn second_read(&self, hash_part: HashPart) -> Result<Option<SecondRead>, StoreError> {
        let health = self.health;
        let Some(info) = health.store.lookup(hash_part)? else {
            return Ok(None);
        };
        let row = Row::from(&info);
        let before = health.fingerprint_of(&row);
        let go_on = &mut |_| health.tasks.rest(Duration::ZERO);
        let verdict = match verify(&*health.store, &info, go_on) {
            Ok(verdict) => verdict,
            Err(VerifyError::Store(error)) => return Err(error),
            Err(_) => return Ok(None),
        };
        let after = health.fingerprint_of(&row);
        Ok(Some((row, verdict, before.filter(|_| before == after))))
    }

    fn save(&mut self) {
        if !std::mem::take(&mut self.health.tasks.state.locked().has_changed) {
            return;
        }
        let started = Instant::now();
        match self.health.save() {
            Ok(()) => self.has_failed = false,
            Err(error) => {
                // Report only the first of several failures in a row.
                if !std::mem::replace(&mut self.has_failed, true) {
                    self.health.report_state(&error);
                }
            }
        }
        let rest = started.elapsed() * SAVE_PAUSE_FACTOR;
        self.next_save_at = Instant::now() + rest.max(SAVE_INTERVAL);
    }
}
