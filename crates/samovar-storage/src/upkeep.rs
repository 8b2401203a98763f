//! Runs the background threads of a storage: they write uses, make backups, collect, and read
//! totals.

use std::io;
use std::mem;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::collect::{Collector, Retentions, Summary};
use crate::error::StorageError;
use crate::storage::Storage;

/// Interval at which uses are written to the database. It is shorter than
/// [`Rules::hold`](crate::collect::Rules::hold), so that a used path is revived before it can be
/// deleted.
const WRITE_INTERVAL: Duration = Duration::from_secs(600);

/// Number of write intervals between two runs of the collector, one hour in total. The first run
/// follows the first interval, so that a server that is restarted often also collects.
const COLLECT_INTERVAL: u32 = 6;

/// Minimum interval at which totals are read.
const TOTALS_INTERVAL: Duration = Duration::from_secs(5);

/// Pause after reading the totals, as a multiple of the time that reading took. Reading therefore
/// takes at most 1 % of the time.
const TOTALS_PAUSE_FACTOR: u32 = 100;

impl Storage {
    /// Sets the retention of each cache.
    pub fn set_retentions(&self, retentions: Retentions) {
        *self
            .retentions
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = retentions;
    }

    /// Starts the thread that writes uses every 10 minutes, makes a backup every day, and runs the
    /// collector every hour. It ends after the storage is dropped. `report` receives each outcome
    /// of the collector, and each error with the task that failed, such as `delete expired
    /// pushes`.
    ///
    /// # Errors
    ///
    /// If the thread cannot be started.
    pub fn start_upkeep(
        self: &Arc<Self>,
        report: impl Fn(Result<Summary, (&'static str, StorageError)>) + Send + 'static,
    ) -> io::Result<()> {
        let weak = Arc::downgrade(self);
        let upkeep = move || {
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
                    ("back up the database of the storage", storage.back_up()),
                ] {
                    if let Err(error) = outcome {
                        report(Err((task, error)));
                    }
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
        self.start_totals()
    }

    /// Starts the thread that probes the storage, and reads the totals whenever they were
    /// requested.
    fn start_totals(self: &Arc<Self>) -> io::Result<()> {
        let weak = Arc::downgrade(self);
        let totals = move || {
            while let Some(storage) = weak.upgrade() {
                let started = Instant::now();
                // Ignore errors: uploads report the same failures.
                storage.probe().ok();
                storage.read_totals().ok();
                drop(storage);
                let pause = started.elapsed() * TOTALS_PAUSE_FACTOR;
                std::thread::sleep(pause.max(TOTALS_INTERVAL));
            }
        };
        let thread = std::thread::Builder::new().name("storage-totals".to_owned());
        thread.spawn(totals).map(drop)
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
        collector.map(run).transpose()
    }
}
