//! Group commit: the writer thread commits the rows of many requests in one transaction.
//!
//! # Theory of operation
//!
//! All work that must become durable enters one bounded queue. One writer thread takes everything
//! in the queue and commits it as one transaction, while the next batch gathers in the queue. The
//! busier the server, the larger the batches and the lower the cost per row. A row that arrives at
//! an idle server is committed at once. Under load, the writer leaves some milliseconds between two
//! commits, because committing a single row costs a hundred times as much as a row of a large
//! batch.
//!
//! A request is answered only after its commit. If the queue is full, or an entry has waited too
//! long, the client gets an error at once, so the server never accepts more work than it can finish
//! in time.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::command::{Command, Commands};
use crate::device::{DeviceId, Measurement};
use crate::habit::Habits;
use crate::json::Window;
use crate::metrics::Metrics;
use crate::stats::Totals;
use crate::store::{Batch, Store, StoreError};
use crate::time::Time;

/// Interval of the writer's periodic tasks.
const TICK: Duration = Duration::from_secs(1);
/// A device becomes inactive after it has sent nothing for one to two of these intervals.
const ACTIVE_TIME: Duration = Duration::from_secs(60);

/// Interval at which the store gets the new habits of kettles.
const HABITS_TIME: Duration = Duration::from_secs(60);
/// Maximum number of habits per transaction, so that measurements do not wait for long.
const HABITS_LEN: usize = 2000;

/// Default capacity of the queue, in rows.
pub const QUEUE_LIMIT: usize = 65_536;
/// Default of the minimum time between two commits.
pub const COALESCING_MS: u64 = 5;
/// Default of the maximum time that a row waits.
pub const WAIT_MAX_MS: u64 = 2000;
/// Default retention, in days.
pub const RETAIN_DAYS: u32 = 7;

/// Options of the queue.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Capacity of the queue, in rows.
    pub queue_limit: usize,
    /// Maximum number of rows per transaction; the last entry may exceed it.
    pub batch_max: usize,
    /// Minimum time between two commits.
    pub coalescing: Duration,
    /// Maximum time that a row may wait before its batch is closed.
    pub wait_max: Duration,
    /// Retention of measurements, in days; 0 keeps them for ever.
    pub retain_days: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queue_limit: QUEUE_LIMIT,
            batch_max: 8000,
            coalescing: Duration::from_millis(COALESCING_MS),
            wait_max: Duration::from_millis(WAIT_MAX_MS),
            retain_days: RETAIN_DAYS,
        }
    }
}

/// Work to be made durable.
#[derive(Debug)]
pub enum Work {
    /// A measurement.
    One(Measurement),
    /// A gateway's batch of measurements.
    Many(Vec<Measurement>),
    /// Generated history, which the metrics do not count as measurements of kettles.
    History(Vec<Measurement>),
    /// A login.
    Login(DeviceId),
    /// A command.
    Command(Command),
    /// No rows: only makes the writer read the changes of other processes.
    Look,
}

impl Work {
    fn measurements(&self) -> &[Measurement] {
        match self {
            Self::One(measurement) => std::slice::from_ref(measurement),
            Self::Many(measurements) | Self::History(measurements) => measurements,
            Self::Login(_) | Self::Command(_) | Self::Look => &[],
        }
    }

    fn row_count(&self) -> usize {
        match self {
            Self::Many(measurements) | Self::History(measurements) => measurements.len().max(1),
            Self::One(_) | Self::Login(_) | Self::Command(_) => 1,
            Self::Look => 0,
        }
    }
}

/// Reason why work was not made durable. The client may retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The queue was full.
    Full,
    /// The work waited too long.
    Late,
    /// The store failed.
    Failed,
    /// The server is shutting down.
    Ending,
}

impl Refusal {
    /// All variants.
    pub const ALL: [Self; 4] = [Self::Full, Self::Late, Self::Failed, Self::Ending];

    /// Returns the value of the metric's label `reason`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Late => "late",
            Self::Failed => "store",
            Self::Ending => "ending",
        }
    }
}

/// Callback that receives the outcome once. It must not block.
pub type Acknowledge = Box<dyn FnOnce(Result<(), Refusal>) + Send>;

struct Entry {
    work: Work,
    /// Commands confirmed by the entry's measurements.
    confirms: Vec<(DeviceId, Time)>,
    since: Instant,
    acknowledge: Acknowledge,
}

/// The queue, and the results that its writer thread publishes.
pub struct Ingest {
    options: Options,
    queue: Mutex<Queue>,
    arrived: Condvar,
    totals: Mutex<Arc<Totals>>,
    commands: Arc<Commands>,
    habits: Habits,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct Queue {
    entries: VecDeque<Entry>,
    row_count: usize,
    is_closed: bool,
    /// Whether the writer sleeps until work arrives.
    is_writer_idle: bool,
}

impl Ingest {
    /// Creates an empty queue.
    pub fn new(options: Options, commands: Arc<Commands>, metrics: Arc<Metrics>) -> Self {
        Self {
            options,
            queue: Mutex::default(),
            arrived: Condvar::new(),
            totals: Mutex::default(),
            commands,
            habits: Habits::default(),
            metrics,
        }
    }

    /// Returns what the stored measurements show of each kettle.
    pub fn habits(&self) -> &Habits {
        &self.habits
    }

    /// Returns the options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the totals after the last commit.
    pub fn totals(&self) -> Arc<Totals> {
        let totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&totals)
    }

    /// Returns the number of rows in the queue, and how long the first has waited.
    pub fn waiting(&self) -> (usize, Duration) {
        let queue = self.queue();
        let oldest = queue.entries.front().map(|entry| entry.since.elapsed());
        (queue.row_count, oldest.unwrap_or_default())
    }

    /// Queues `work`. Calls `acknowledge` once it is durable, or at once if it is refused.
    pub fn push(&self, work: Work, acknowledge: Acknowledge) {
        let confirmed = |it: &Measurement| Some((it.device, self.commands.confirmed_by(it)?));
        let confirms = work.measurements().iter().filter_map(confirmed);
        let entry = Entry {
            confirms: confirms.collect(),
            work,
            since: Instant::now(),
            acknowledge,
        };
        let row_count = entry.work.row_count();
        let mut queue = self.queue();
        let refusal = if queue.is_closed {
            Refusal::Ending
        } else if queue.row_count > 0 && queue.row_count + row_count > self.options.queue_limit {
            Refusal::Full
        } else {
            queue.row_count += row_count;
            queue.entries.push_back(entry);
            let is_writer_idle = std::mem::take(&mut queue.is_writer_idle);
            drop(queue);
            if is_writer_idle {
                self.arrived.notify_one();
            }
            return;
        };
        drop(queue);
        self.refuse(entry, refusal);
    }

    /// Closes the queue: refuses new work, and ends the writer once the queue is empty.
    pub fn close(&self) {
        self.queue().is_closed = true;
        self.arrived.notify_one();
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refuse(&self, entry: Entry, refusal: Refusal) {
        self.metrics.refused(refusal, entry.work.row_count());
        (entry.acknowledge)(Err(refusal));
    }

    /// Runs the writer, which owns the store, until the queue is closed and empty. Calls `ready`
    /// once the stored totals are known.
    ///
    /// # Errors
    ///
    /// If the store cannot be read at the start.
    pub fn run(&self, mut store: Box<dyn Store>, ready: impl FnOnce()) -> crate::store::Result<()> {
        let loaded = store.load()?;
        for command in loaded.commands {
            self.commands.add(command);
        }
        self.habits.load(store.habits()?);
        self.publish(loaded.totals);
        ready();
        let mut writer = Writer {
            ingest: self,
            store,
            not_before: Instant::now(),
            is_failing: false,
            pruned: None,
            active: HashSet::new(),
            active_before: HashSet::new(),
            active_since: Instant::now(),
            looked: Instant::now(),
            habits_saved: Instant::now(),
        };
        while writer.turn() {}
        while writer.save_habits() {}
        Ok(())
    }

    fn publish(&self, totals: Totals) {
        let totals = Arc::new(totals);
        *self.totals.lock().unwrap_or_else(PoisonError::into_inner) = totals;
    }

    /// Waits until there is work and a commit may start, and takes the batch; `None` once the queue
    /// is closed and empty.
    fn take(&self, not_before: Instant) -> Option<Vec<Entry>> {
        let mut queue = self.queue();
        if queue.entries.is_empty() {
            if queue.is_closed {
                return None;
            }
            queue.is_writer_idle = true;
            let waited = self.arrived.wait_timeout(queue, TICK);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            queue.is_writer_idle = false;
        }
        // The writer wakes by a timeout here, so that no request has to wake it.
        while !queue.is_closed && !queue.entries.is_empty() {
            let rest = not_before.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                break;
            }
            let waited = self.arrived.wait_timeout(queue, rest);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let mut taken = Vec::new();
        let mut row_count = 0;
        while row_count < self.options.batch_max
            && let Some(entry) = queue.entries.pop_front()
        {
            row_count += entry.work.row_count();
            taken.push(entry);
        }
        queue.row_count -= row_count;
        Some(taken)
    }
}

impl fmt::Debug for Ingest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ingest")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// The writer thread.
struct Writer<'a> {
    ingest: &'a Ingest,
    store: Box<dyn Store>,
    /// Earliest time of the next commit.
    not_before: Instant,
    /// Whether the last batch failed. An outage is logged once, at its start.
    is_failing: bool,
    /// Time of the last call of [`Store::prune`] that had deleted all expired measurements.
    pruned: Option<Instant>,
    /// Devices that sent something since `active_since`, and in the interval before it.
    active: HashSet<DeviceId>,
    active_before: HashSet<DeviceId>,
    active_since: Instant,
    /// Time at which other processes' changes were last read.
    looked: Instant,
    /// Time at which the store had all habits.
    habits_saved: Instant,
}

impl Writer<'_> {
    /// Commits one batch if there is one; returns `false` once the queue is closed and empty.
    fn turn(&mut self) -> bool {
        let options = &self.ingest.options;
        let Some(entries) = self.ingest.take(self.not_before) else {
            return false;
        };
        let now = Instant::now();
        let is_late = |entry: &Entry| now.saturating_duration_since(entry.since) > options.wait_max;
        let (late, entries): (Vec<_>, Vec<_>) = entries.into_iter().partition(is_late);
        for entry in late {
            self.ingest.refuse(entry, Refusal::Late);
        }
        if !entries.is_empty() {
            self.commit(entries);
        }
        if self.looked.elapsed() >= TICK {
            self.look();
        }
        self.prune();
        if self.habits_saved.elapsed() >= HABITS_TIME {
            self.save_habits();
        }
        self.count_active();
        true
    }

    /// Reads the changes of other processes; returns `false` if that failed.
    fn look(&mut self) -> bool {
        self.looked = Instant::now();
        match self.store.look() {
            Ok(Some(loaded)) => {
                self.ingest.publish(loaded.totals);
                self.ingest.commands.replace(loaded.commands);
                true
            }
            Ok(None) => true,
            Err(error) => {
                self.fail("the store cannot be read", &error);
                false
            }
        }
    }

    /// Logs an outage once, because kettles retry for as long as it lasts.
    fn fail(&mut self, what: &str, error: &StoreError) {
        if !std::mem::replace(&mut self.is_failing, true) {
            crate::log::error(what, error);
        }
    }

    fn commit(&mut self, entries: Vec<Entry>) {
        let batch = batch(&entries);
        if batch == Batch::default() {
            let is_known = self.look();
            for entry in entries {
                match is_known {
                    true => (entry.acknowledge)(Ok(())),
                    false => self.ingest.refuse(entry, Refusal::Failed),
                }
            }
            return;
        }
        let started = Instant::now();
        for entry in &entries {
            let waited = started.saturating_duration_since(entry.since);
            self.ingest.metrics.waited(waited);
        }
        let outcome = self.store.commit(&batch);
        self.not_before = Instant::now() + self.ingest.options.coalescing;
        let metrics = &self.ingest.metrics;
        match outcome {
            Ok(committed) => {
                let history = entries.iter().map(|entry| match &entry.work {
                    Work::History(rows) => rows.len(),
                    _ => 0,
                });
                let history = history.sum();
                metrics.history_stored(history);
                let row_count = batch.measurements.len() - history;
                if std::mem::take(&mut self.is_failing) {
                    crate::log::say("kettles: the store works again");
                }
                metrics.committed(row_count, committed.duplicate_count, started.elapsed());
                metrics.synced(committed.sync_time);
                self.ingest.publish(committed.totals);
                for command in &batch.commands {
                    self.ingest.commands.add(*command);
                }
                for (device, time) in &batch.confirmed {
                    self.ingest.commands.done(*device, *time);
                }
                self.ingest.habits.learn(&batch.measurements);
                let devices = batch.measurements.iter().map(|it| it.device);
                self.active.extend(devices);
                for entry in entries {
                    (entry.acknowledge)(Ok(()));
                }
            }
            Err(error) => {
                metrics.commit_failed();
                self.fail("a batch cannot be stored", &error);
                for entry in entries {
                    self.ingest.refuse(entry, Refusal::Failed);
                }
            }
        }
    }

    /// Deletes a part of the expired measurements. Once all are deleted, checks again after a
    /// minute.
    fn prune(&mut self) {
        let is_due = self
            .pruned
            .is_none_or(|pruned| pruned.elapsed() > Duration::from_secs(60));
        let retain_days = self.ingest.options.retain_days;
        if retain_days == 0 || !is_due {
            return;
        }
        let started = Instant::now();
        match self.store.prune(Window::now(retain_days).first) {
            Ok(pruned) => {
                let metrics = &self.ingest.metrics;
                metrics.pruned(pruned.row_count, started.elapsed());
                self.pruned = pruned.is_done.then(Instant::now);
            }
            Err(error) => {
                crate::log::error("expired measurements cannot be deleted", &error);
                self.pruned = Some(Instant::now());
            }
        }
    }

    /// Stores some of the new habits; returns whether there may be more.
    fn save_habits(&mut self) -> bool {
        let habits = &self.ingest.habits;
        let some = habits.take_unsaved(HABITS_LEN);
        let saved = match some.is_empty() {
            true => Ok(()),
            false => self.store.save_habits(&some),
        };
        if let Err(error) = &saved {
            crate::log::error("the habits of the kettles cannot be stored", error);
            habits.put_back(&some);
        }
        let is_more = saved.is_ok() && some.len() == HABITS_LEN;
        if !is_more {
            self.habits_saved = Instant::now();
        }
        is_more
    }

    fn count_active(&mut self) {
        if self.active_since.elapsed() >= ACTIVE_TIME {
            self.active_before = std::mem::take(&mut self.active);
            self.active_since = Instant::now();
        }
        let count = self.active.len().max(self.active_before.len());
        self.ingest.metrics.set_active(count);
    }
}

fn batch(entries: &[Entry]) -> Batch {
    let mut batch = Batch::default();
    for entry in entries {
        batch
            .measurements
            .extend_from_slice(entry.work.measurements());
        match &entry.work {
            Work::Login(device) => batch.devices.push(*device),
            Work::Command(command) => batch.commands.push(*command),
            Work::One(_) | Work::Many(_) | Work::History(_) | Work::Look => {}
        }
        batch.confirmed.extend_from_slice(&entry.confirms);
    }
    batch
        .measurements
        .sort_unstable_by_key(|measurement| (measurement.time, measurement.device));
    batch.devices.sort_unstable();
    batch
}
