//! From requests to transactions.
//!
//! # Theory of operation
//!
//! Whatever has to be durable goes into one queue with a limit, and one thread takes from it all
//! that is there and commits it as one transaction. While that runs the next batch gathers: the
//! busier it is, the larger are the batches, and the less costs a row. There is no timer that a
//! lone kettle would wait for; but commits keep a distance of some milliseconds, because one row
//! for each synchronised commit costs a hundred times what a row of a large batch does.
//!
//! Nobody is answered before the commit. Who comes when the queue is full, or has waited too long
//! in it, is told at once that nothing was stored: what cannot be done in time is not piled up.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::command::{Command, Commands};
use crate::device::{DeviceId, Measurement};
use crate::json::Window;
use crate::metrics::Metrics;
use crate::stats::Totals;
use crate::store::{Batch, Store, StoreError};
use crate::time::Time;

/// How often the writer looks at what is no business of anybody who waits.
const TICK: Duration = Duration::from_secs(1);
/// A device that was not heard of for this long, or twice that, is not active.
const ACTIVE_TIME: Duration = Duration::from_secs(60);

/// Rows that may wait, unless it is said otherwise.
pub const QUEUE_LIMIT: usize = 65_536;
/// The least time between two commits, unless it is said otherwise.
pub const SPACING_MS: u64 = 5;
/// How long a row may wait, unless it is said otherwise.
pub const WAIT_MAX_MS: u64 = 2000;
/// Days for which measurements are kept, unless it is said otherwise.
pub const RETAIN_DAYS: u32 = 7;

/// How the queue is to behave.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Rows that may wait.
    pub queue_limit: usize,
    /// Rows of one transaction, but for the last entry's.
    pub batch_max: usize,
    /// The least time between two commits.
    pub spacing: Duration,
    /// How long a row may wait before its batch is closed.
    pub wait_max: Duration,
    /// Days for which measurements are kept; 0 means for ever.
    pub retain_days: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queue_limit: QUEUE_LIMIT,
            batch_max: 8000,
            spacing: Duration::from_millis(SPACING_MS),
            wait_max: Duration::from_millis(WAIT_MAX_MS),
            retain_days: RETAIN_DAYS,
        }
    }
}

/// Something to be made durable.
#[derive(Debug)]
pub enum Work {
    /// What a kettle measured.
    One(Measurement),
    /// What a gateway has gathered.
    Many(Vec<Measurement>),
    /// A kettle that got its name.
    Login(DeviceId),
    /// A command for a kettle.
    Command(Command),
    /// Nothing: what other processes have made durable is to be known.
    Look,
}

impl Work {
    fn measurements(&self) -> &[Measurement] {
        match self {
            Self::One(measurement) => std::slice::from_ref(measurement),
            Self::Many(measurements) => measurements,
            Self::Login(_) | Self::Command(_) | Self::Look => &[],
        }
    }

    fn row_count(&self) -> usize {
        match self {
            Self::Many(measurements) => measurements.len().max(1),
            Self::One(_) | Self::Login(_) | Self::Command(_) => 1,
            Self::Look => 0,
        }
    }
}

/// Why something was not made durable. It may be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The queue is full.
    Full,
    /// It has waited too long.
    Late,
    /// The store could not.
    Failed,
    /// The server is about to end.
    Ending,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Full, Self::Late, Self::Failed, Self::Ending];

    /// As a label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Late => "late",
            Self::Failed => "store",
            Self::Ending => "ending",
        }
    }
}

/// Told once what became of it. Must not block.
pub type Acknowledge = Box<dyn FnOnce(Result<(), Refusal>) + Send>;

struct Entry {
    work: Work,
    /// The commands that its measurements confirm.
    confirms: Vec<(DeviceId, Time)>,
    since: Instant,
    acknowledge: Acknowledge,
}

/// The queue, and what the thread behind it makes known.
pub struct Ingest {
    options: Options,
    queue: Mutex<Queue>,
    arrived: Condvar,
    totals: Mutex<Arc<Totals>>,
    commands: Arc<Commands>,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct Queue {
    entries: VecDeque<Entry>,
    row_count: usize,
    is_closed: bool,
    /// The writer sleeps until somebody comes.
    is_writer_idle: bool,
}

impl Ingest {
    /// An empty queue.
    pub fn new(options: Options, commands: Arc<Commands>, metrics: Arc<Metrics>) -> Self {
        Self {
            options,
            queue: Mutex::default(),
            arrived: Condvar::new(),
            totals: Mutex::default(),
            commands,
            metrics,
        }
    }

    /// How it behaves.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The totals behind the last commit.
    pub fn totals(&self) -> Arc<Totals> {
        let totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&totals)
    }

    /// Rows that wait, and for how long the first of them has.
    pub fn waiting(&self) -> (usize, Duration) {
        let queue = self.queue();
        let oldest = queue.entries.front().map(|entry| entry.since.elapsed());
        (queue.row_count, oldest.unwrap_or_default())
    }

    /// Queues `work`; `acknowledge` is told when it is durable, or at once that it will not be.
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

    /// Lets nothing more in; the writer ends when all that waits is done.
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

    /// Takes from the queue until it is closed and empty: the work of one thread, which owns the
    /// store. `ready` is called when it is known what there is.
    ///
    /// # Errors
    ///
    /// If the store cannot be read at the start.
    pub fn run(&self, mut store: Box<dyn Store>, ready: impl FnOnce()) -> crate::store::Result<()> {
        let loaded = store.load()?;
        for command in loaded.commands {
            self.commands.add(command);
        }
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
        };
        while writer.turn() {}
        Ok(())
    }

    fn publish(&self, totals: Totals) {
        let totals = Arc::new(totals);
        *self.totals.lock().unwrap_or_else(PoisonError::into_inner) = totals;
    }

    /// Waits until something is there and a commit may be, and takes it; `None` if nothing ever
    /// will be.
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
        // Nobody wakes the writer here, so it need not be woken for each row.
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

/// The thread that writes.
struct Writer<'a> {
    ingest: &'a Ingest,
    store: Box<dyn Store>,
    /// When the next commit may be.
    not_before: Instant,
    /// The last batch was not stored, and that was said.
    is_failing: bool,
    /// When there was nothing left to prune.
    pruned: Option<Instant>,
    /// Devices heard of since `active_since`, and in the time before that.
    active: HashSet<DeviceId>,
    active_before: HashSet<DeviceId>,
    active_since: Instant,
    /// When it was last looked what others have written.
    looked: Instant,
}

impl Writer<'_> {
    /// One batch, if there is one; `false` when there will be none.
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
        self.count_active();
        true
    }

    /// Learns what other processes have written; `false` if that cannot be.
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
                self.fail("the store was not read", &error);
                false
            }
        }
    }

    /// Kettles come again and again: one line for the whole of an outage.
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
        self.not_before = Instant::now() + self.ingest.options.spacing;
        let metrics = &self.ingest.metrics;
        match outcome {
            Ok(committed) => {
                let row_count = batch.measurements.len();
                if std::mem::take(&mut self.is_failing) {
                    crate::log::say("kettles: batches are stored again");
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
                let devices = batch.measurements.iter().map(|it| it.device);
                self.active.extend(devices);
                for entry in entries {
                    (entry.acknowledge)(Ok(()));
                }
            }
            Err(error) => {
                metrics.commit_failed();
                self.fail("a batch was not stored", &error);
                for entry in entries {
                    self.ingest.refuse(entry, Refusal::Failed);
                }
            }
        }
    }

    /// Deletes some of what is too old; all of it, some with each turn, and then once a minute.
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
                crate::log::error("old measurements were not deleted", &error);
                self.pruned = Some(Instant::now());
            }
        }
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
            Work::One(_) | Work::Many(_) | Work::Look => {}
        }
        batch.confirmed.extend_from_slice(&entry.confirms);
    }
    batch
        .measurements
        .sort_unstable_by_key(|measurement| (measurement.time, measurement.device));
    batch.devices.sort_unstable();
    batch
}
