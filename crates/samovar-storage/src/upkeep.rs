//! Runs the background threads of a storage: they write uses, make backups, collect, repair the
//! mirror, and read totals.

use std::io;
use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::collect::{Collector, Summary};
use crate::error::StorageError;
use crate::reserve;
use crate::retention::Retentions;
use crate::storage::{Storage, boot_seconds};

/// Interval at which uses are written to the database. It is shorter than
/// [`Rules::hold`](crate::collect::Rules::hold), so that a used path is revived before it can be
/// deleted.
const WRITE_INTERVAL: Duration = Duration::from_secs(600);

/// Number of write intervals between two runs of the collector, one hour in total. The first run
/// follows the first interval, so that a server that is restarted often also collects.
const COLLECT_INTERVAL: u32 = 6;

/// Minimum interval at which the storage is probed and totals are read.
const WATCH_INTERVAL: Duration = Duration::from_secs(5);

/// Pause after reading the totals or a failed repair, as a multiple of the time that this took. It
/// therefore takes at most 1 % of the time.
const WATCH_PAUSE_FACTOR: u32 = 100;

impl Storage {
    /// Sets the retention of each cache.
    pub fn set_retentions(&self, retentions: Retentions) {
        *self
            .retentions
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = retentions;
    }

    /// Starts the thread that makes a backup at the start and every day, writes uses every 10
    /// minutes, and runs the collector every hour. It ends after the storage is dropped. `report`
    /// receives each outcome of the collector, and each error with the task that failed, such as
    /// `delete expired pushes`. `repair` writes the files that the mirror lacks. It is called at
    /// the start, after [`check_mirror`](Self::check_mirror), and after a file could not be
    /// written.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started.
    pub fn start_upkeep(
        self: &Arc<Self>,
        repair: impl Fn() + Send + 'static,
        report: impl Fn(Result<Summary, (&'static str, StorageError)>) + Send + 'static,
    ) -> io::Result<()> {
        let weak = Arc::downgrade(self);
        let upkeep = move || {
            let back_up = |storage: &Self| {
                let backed_up = storage.back_up();
                backed_up.map_err(|error| ("back up the database of the storage", error))
            };
            if let Some(storage) = weak.upgrade() {
                let compared = storage.compare_logs();
                let compared = compared.map_err(|error| ("count the build logs", error));
                for error in [back_up(&storage), compared]
                    .into_iter()
                    .filter_map(Result::err)
                {
                    report(Err(error));
                }
            }
            for interval in 1_u32.. {
                std::thread::sleep(WRITE_INTERVAL);
                let Some(storage) = weak.upgrade() else {
                    return;
                };
                for (task, outcome) in [
                    (
                        "record the last uses of uploaded paths",
                        storage.write_uses(),
                    ),
                    ("delete expired pushes", storage.sweep_pushes()),
                ] {
                    if let Err(error) = outcome {
                        report(Err((task, error)));
                    }
                }
                if let Err(error) = back_up(&storage) {
                    report(Err(error));
                }
                if interval % COLLECT_INTERVAL == 1
                    && let Some(outcome) = storage.collect().transpose()
                {
                    report(outcome.map_err(|error| ("collect uploaded paths", error)));
                }
            }
        };
        let thread = std::thread::Builder::new().name("storage-upkeep".to_owned());
        thread.spawn(upkeep)?;
        self.start_watch(repair)
    }

    /// Starts the thread that probes the storage, repairs the mirror when it is behind, and reads
    /// the totals whenever they were requested.
    fn start_watch(self: &Arc<Self>, repair: impl Fn() + Send + 'static) -> io::Result<()> {
        let weak = Arc::downgrade(self);
        let watch = move || {
            while let Some(storage) = weak.upgrade() {
                let mut started = Instant::now();
                let is_behind = &storage.is_mirror_behind;
                if is_behind.swap(false, Ordering::Relaxed) {
                    repair();
                    if !is_behind.load(Ordering::Relaxed) {
                        // Only a repair that failed will be repeated.
                        started = Instant::now();
                    }
                }
                // Ignore errors: uploads report the same failures.
                storage.probe().ok();
                storage.read_totals().ok();
                storage.make_reserve().ok();
                drop(storage);
                let pause = started.elapsed() * WATCH_PAUSE_FACTOR;
                std::thread::sleep(pause.max(WATCH_INTERVAL));
            }
        };
        let thread = std::thread::Builder::new().name("storage-watch".to_owned());
        thread.spawn(watch).map(drop)
    }

    /// Writes the uses of paths and NARs that are still in memory to the database.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`]. The next attempt writes the uses.
    pub fn write_uses(&self) -> Result<(), StorageError> {
        let uses = mem::take(&mut *self.uses());
        if uses.paths.is_empty() && uses.nars.is_empty() {
            return Ok(());
        }
        let written = self.metadata.record_uses(&uses);
        if written.is_err() {
            let mut unwritten = self.uses();
            unwritten.paths.extend(uses.paths);
            unwritten.nars.extend(uses.nars);
        }
        written
    }

    /// Runs the collector. Returns `None` if another collector of this storage is running.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`]. The next run continues the collection.
    pub fn collect(&self) -> Result<Option<Summary>, StorageError> {
        let started = Instant::now();
        let outcome = self.collecting(|collector| collector.run()).transpose();
        if let Some(outcome) = &outcome {
            self.counters.collected(outcome, started.elapsed());
        }
        outcome.transpose()
    }

    /// Returns the number of seconds by which the clock has advanced more than the time that has
    /// passed since the storage was opened. The time in which the machine was suspended has passed.
    fn drift(&self) -> i64 {
        self.metadata.now() - boot_seconds() - self.clock_offset
    }

    /// Starts a run of the collector and passes it to `run`, so that tests can interrupt it.
    /// Returns `None` if another collector is running.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn collecting<T>(
        &self,
        run: impl FnOnce(Collector<'_>) -> Result<T, StorageError>,
    ) -> Result<Option<T>, StorageError> {
        reserve::give_back(&self.root);
        self.write_uses()?;
        // The collector removes objects: those of an unmounted directory would count as removed.
        self.check_presence()?;
        let retentions = self
            .retentions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let deleted = |cache, hash_part| self.forget(cache, hash_part).map(drop);
        let collector = Collector::start(
            &self.root,
            &*self.metadata,
            &*self.objects,
            self.rules,
            &retentions,
            &deleted,
        )?;
        let drift = self.drift();
        collector
            .map(|collector| run(collector.with_drift(drift)))
            .transpose()
    }
}
