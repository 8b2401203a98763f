//! Runs the background threads of a storage: they write uses, make backups, collect, repair the
//! mirror, and read totals.

use std::collections::HashSet;
use std::hash::Hash;
use std::io;
use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::error::StorageError;
use crate::gc::{Collector, Rules, Summary, log_files, sweep_pushes};
use crate::metadata::{Uses, exchanges, uses};
use crate::reserve;
use crate::storage::statistics::read_totals;
use crate::storage::{Storage, backup, mirrored};
use crate::sys::boot_seconds;

/// Interval at which uses are written to the database, and at which the threads look whether there
/// is something to do.
const INTERVAL: Duration = Duration::from_secs(5);

/// Maximum number of uses of paths, and of NARs, that one transaction records. Uploads wait about
/// 20 ms for it.
const BATCH_COUNT: usize = 500;

/// Pause between the condemnation of a path and its deletion in a run that frees space at once. It
/// exceeds the interval at which uses are written, so that a used path is revived before it can be
/// deleted.
pub const PAUSE: Duration = Duration::from_secs(15);

/// Number of intervals after which backups are checked, and expired pushes and tokens of OIDC
/// deleted.
const TASKS_INTERVAL: u32 = 120;

/// Number of intervals between two runs of the collector, one hour in total. The first run follows
/// the first tasks, so that a server that is restarted often also collects.
const COLLECT_INTERVAL: u32 = 6 * TASKS_INTERVAL;

/// Minimum number of intervals between runs that free space because a quota is exceeded.
const FREE_INTERVAL: u32 = TASKS_INTERVAL;

/// Interval at which the storage is probed, and minimum interval at which totals are read.
const WATCH_INTERVAL: Duration = Duration::from_secs(5);

/// Pause after reading the totals or a failed repair, as a multiple of the time that this took. It
/// therefore takes at most 1 % of the time.
const WATCH_PAUSE_FACTOR: u32 = 100;

/// Names of the work that one node does at a time.
const BACKUP: &str = "backup";
const MIRROR: &str = "mirror";
const PUSHES: &str = "pushes";

/// Starts the threads that make a backup at the start and every day, record the uses of paths every
/// few seconds, and run the collector every hour and soon after an upload was refused because of
/// the quota. Of the nodes that share a database, one at a time makes a backup, deletes expired
/// pushes, collects, and repairs the mirror. The threads end after the storage is dropped. `report`
/// receives each outcome of the collector, and each error with its task, such as `delete expired
/// pushes`. `repair` writes the files that the mirror lacks; it is called at the start, after
/// [`Storage::check_mirror`], and after a file could not be written.
///
/// # Errors
///
/// If a thread cannot be started.
pub fn start(
    storage: &Arc<Storage>,
    repair: impl Fn() + Send + 'static,
    report: impl Fn(Result<Summary, (&'static str, StorageError)>) + Send + 'static,
) -> io::Result<()> {
    let weak = Arc::downgrade(storage);
    let upkeep = move || {
        if let Some(storage) = weak.upgrade() {
            let Storage {
                metadata,
                objects,
                rules,
                ..
            } = &*storage;
            let before = metadata.now() - rules.young;
            let compared = log_files::compare(metadata, objects, before);
            let compared = compared.map_err(|error| ("count the build logs", error));
            for error in [back_up(&storage), compared]
                .into_iter()
                .filter_map(Result::err)
            {
                report(Err(error));
            }
        }
        let mut freed_in = 0;
        for interval in 1_u32.. {
            std::thread::sleep(INTERVAL);
            let Some(storage) = weak.upgrade() else {
                return;
            };
            if interval % TASKS_INTERVAL == 0 {
                let removed = exchanges::remove_expired(&storage.metadata);
                let removed = removed
                    .map(drop)
                    .map_err(|error| ("delete expired tokens of OIDC", error));
                for error in [sweep(&storage), removed, back_up(&storage)]
                    .into_iter()
                    .filter_map(Result::err)
                {
                    report(Err(error));
                }
            }
            let is_over_quota = &storage.is_over_quota;
            let collected = if interval % COLLECT_INTERVAL == TASKS_INTERVAL {
                collect(&storage)
            } else if (freed_in == 0 || interval - freed_in >= FREE_INTERVAL)
                && is_over_quota.swap(false, Ordering::Relaxed)
            {
                freed_in = interval;
                collect_at_once(&storage)
            } else {
                continue;
            };
            if let Some(outcome) = collected.transpose() {
                report(outcome.map_err(|error| ("collect uploaded paths", error)));
            }
        }
    };
    let thread = std::thread::Builder::new().name("storage-upkeep".to_owned());
    thread.spawn(upkeep)?;
    start_recording(storage)?;
    start_watch(storage, repair)
}

/// Makes a backup, unless another node does. An error comes with its task.
fn back_up(storage: &Storage) -> Result<(), (&'static str, StorageError)> {
    let backed_up = storage.metadata.alone(BACKUP, || backup::write(storage));
    let failed = |error| ("back up the database of the storage", error);
    backed_up.map(drop).map_err(failed)
}

/// Deletes expired pushes, unless another node does. An error comes with its task.
fn sweep(storage: &Storage) -> Result<(), (&'static str, StorageError)> {
    let sweep = || sweep_pushes(&storage.metadata, &storage.objects);
    let swept = storage.metadata.alone(PUSHES, sweep);
    swept
        .map(drop)
        .map_err(|error| ("delete expired pushes", error))
}

/// Starts the thread that writes uses to the database. It has nothing else to do, so that a
/// collector of another process can rely on the interval.
fn start_recording(storage: &Arc<Storage>) -> io::Result<()> {
    let weak = Arc::downgrade(storage);
    let record = move || {
        while let Some(storage) = weak.upgrade() {
            // Ignore errors: the next attempt writes the times of last use again. If the disk fails
            // permanently, uploads report it.
            write_uses(&storage).ok();
            drop(storage);
            std::thread::sleep(INTERVAL);
        }
    };
    let thread = std::thread::Builder::new().name("storage-uses".to_owned());
    thread.spawn(record).map(drop)
}

/// Starts the thread that probes the storage, repairs the mirror when it is behind, and reads the
/// valid tokens and the totals whenever they were requested.
fn start_watch(storage: &Arc<Storage>, repair: impl Fn() + Send + 'static) -> io::Result<()> {
    let weak = Arc::downgrade(storage);
    let watch = move || {
        let mut due = Instant::now();
        while let Some(storage) = weak.upgrade() {
            // Ignore errors: uploads report the same failures.
            storage.probe().ok();
            if !storage.is_usable() || Instant::now() < due {
                drop(storage);
                std::thread::sleep(WATCH_INTERVAL);
                continue;
            }
            let mut started = Instant::now();
            let is_behind = &storage.is_mirror_behind;
            if is_behind.swap(false, Ordering::Relaxed) {
                let repaired = storage.metadata.alone(MIRROR, || {
                    mirrored::resume(&storage);
                    repair();
                    Ok(())
                });
                let is_done = matches!(repaired, Ok(Some(())));
                if !is_done {
                    // Another node repairs the mirror, and may have passed what this one could not
                    // write; or the database is away.
                    storage.check_mirror();
                }
                if !is_done || !is_behind.load(Ordering::Relaxed) {
                    // Only a repair that failed delays the next.
                    started = Instant::now();
                }
            }
            read_totals(&storage.counters, &storage.metadata, &storage.objects).ok();
            storage.seen_tokens.read(&storage.metadata).ok();
            storage.make_reserve().ok();
            drop(storage);
            due = Instant::now() + started.elapsed() * WATCH_PAUSE_FACTOR;
            std::thread::sleep(WATCH_INTERVAL);
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
pub fn write_uses(storage: &Storage) -> Result<(), StorageError> {
    loop {
        let batch = take_batch(&mut storage.uses());
        if batch.paths.is_empty() && batch.nars.is_empty() {
            return Ok(());
        }
        if let Err(error) = uses::record(&storage.metadata, &batch) {
            let mut unwritten = storage.uses();
            unwritten.paths.extend(batch.paths);
            unwritten.nars.extend(batch.nars);
            return Err(error);
        }
    }
}

/// Runs the collector. Returns `None` if another collector of this storage is running.
///
/// # Errors
///
/// Any [`StorageError`]. The next run continues the collection.
pub fn collect(storage: &Storage) -> Result<Option<Summary>, StorageError> {
    collect_by(storage, storage.rules, |collector| collector.run())
}

/// Like [`collect`], but frees space [at once](Rules::at_once).
fn collect_at_once(storage: &Storage) -> Result<Option<Summary>, StorageError> {
    let run = |collector: Collector<'_>| collector.pausing(PAUSE).run();
    collect_by(storage, storage.rules.at_once(), run)
}

fn collect_by(
    storage: &Storage,
    rules: Rules,
    run: impl FnOnce(Collector<'_>) -> Result<Summary, StorageError>,
) -> Result<Option<Summary>, StorageError> {
    let started = Instant::now();
    let outcome = collecting_by(storage, rules, run).transpose();
    if let Some(outcome) = &outcome {
        storage.counters.collected(outcome, started.elapsed());
    }
    outcome.transpose()
}

/// Returns the number of seconds by which the clock has advanced more than the time that has passed
/// since the storage was opened, or since a jump that counts no more. The time in which the machine
/// was suspended has passed.
fn drift(storage: &Storage, rules: &Rules) -> i64 {
    let mut jumps = storage.jumps.lock().unwrap_or_else(PoisonError::into_inner);
    let boot = boot_seconds();
    jumps.drift(storage.metadata.now() - boot, boot, rules)
}

/// Starts a run of the collector and passes it to `run`, so that tests can interrupt it. Returns
/// `None` if another collector is running.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn collecting<T>(
    storage: &Storage,
    run: impl FnOnce(Collector<'_>) -> Result<T, StorageError>,
) -> Result<Option<T>, StorageError> {
    collecting_by(storage, storage.rules, run)
}

fn collecting_by<T>(
    storage: &Storage,
    rules: Rules,
    run: impl FnOnce(Collector<'_>) -> Result<T, StorageError>,
) -> Result<Option<T>, StorageError> {
    reserve::give_back(&storage.root);
    write_uses(storage)?;
    // Check that the directory is mounted: otherwise its files are absent, and the collector would
    // record their objects as removed.
    storage.check_presence()?;
    let retentions = storage
        .retentions
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    let deleted = |cache, hash_part| storage.forget(cache, hash_part).map(drop);
    let collector = Collector::start(
        &storage.root,
        &storage.metadata,
        &storage.objects,
        rules,
        &retentions,
        &deleted,
    )?;
    let drift = drift(storage, &rules);
    collector
        .map(|collector| run(collector.with_drift(drift)))
        .transpose()
}

/// Removes some of the uses that wait to be written.
fn take_batch(uses: &mut Uses) -> Uses {
    Uses {
        paths: take_some(&mut uses.paths),
        nars: take_some(&mut uses.nars),
    }
}

fn take_some<T: Copy + Eq + Hash>(from: &mut HashSet<T>) -> HashSet<T> {
    if from.len() <= BATCH_COUNT {
        return mem::take(from);
    }
    let some: HashSet<T> = from.iter().take(BATCH_COUNT).copied().collect();
    from.retain(|item| !some.contains(item));
    some
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use samovar_nix::StoreDir;
    use testkit::postgres::Postgres;

    use super::*;
    use crate::location::Location;
    use crate::metadata::Database;
    use crate::postgres::PostgresSettings;

    #[test]
    fn work_that_another_node_does_is_left_out_or_done_later() {
        if !Postgres::is_installed() {
            return;
        }
        let settings = PostgresSettings::parse(&Postgres::shared().new_database()).unwrap();
        let other = Database::open_postgres(&settings, None).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let location = Location::new(dir.path()).with_database(Some(settings));
        let storage = Storage::open(&location, &StoreDir::default()).unwrap();
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let repair = move || {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        let has_backup = || dir.path().join(".samovar/backup").exists();
        let by_another = |name: &str| {
            let postgres = other.postgres().unwrap();
            postgres.exclusive(name).unwrap().unwrap()
        };
        let rights = [BACKUP, MIRROR].map(by_another);
        start(&storage, repair, |outcome| {
            outcome.unwrap();
        })
        .unwrap();
        let is_done = || has_backup() || count.load(Ordering::Relaxed) > 0;
        assert!(!testkit::holds_within(WATCH_INTERVAL * 2, is_done));
        drop(rights);
        testkit::eventually("the mirror is repaired", || {
            count.load(Ordering::Relaxed) == 1
        });
        // The server notices the end of a connection a little later.
        testkit::eventually("the right is free", || {
            let backed_up = storage.metadata.alone(BACKUP, || backup::write(&storage));
            backed_up.unwrap().is_some()
        });
        assert!(has_backup());
    }
}
