//! The collector: deletes paths and NARs that are not kept.
//!
//! # Kept paths
//!
//! A path is kept if it is pinned, if it was uploaded within the last day, or if it was used within
//! the retention time of its cache, which is unlimited by default. A retention time of less than a
//! day also applies to uploads. The closure of a kept path is kept, too. Uses of a path are
//! requests for its narinfo or NAR, and further uploads of it. For caches of limited size see
//! [`Retention`]. A NAR is kept if a path uses it, or if a client has sent it within the last day.
//! For build logs and realisations see [`unused_extras`].
//!
//! # Steps
//!
//! A run consists of small steps ([`Collector::step`]). The run may end, or the process may be
//! killed, after each step: the next run continues the work.
//!
//! 0. *Purge* what interrupted deletions of caches have left: see [`purge_step`].
//!    Record build logs that other programs have written.
//! 1. *Mark.* Read all paths, and decide which of them to keep.
//! 2. *Condemn* the other paths. After the commit, *confirm* the condemnations, which sets their
//!    time. Revive paths that were condemned earlier but are kept now.
//! 3. *Delete* paths that have been condemned for [`Rules::hold`], referrers first. A path stays if
//!    another path or a pin needs it, and the next run revives it.
//!    Then delete build logs and realisations without a path.
//! 4. Condemn NARs, and delete them later, in the same way. The transaction that deletes a NAR also
//!    records the key of its object as garbage.
//! 5. *Remove* the objects whose keys are garbage.
//! 6. *Free* these keys [`Rules::key_rest`] later, so that new objects can use them.
//!
//! With [`Rules::at_once`], one run does all of this. Then `hold` is zero, and a pause after the
//! condemnation takes its place: it exceeds the interval at which servers write uses, and what is
//! condemned was not used within the retention time, an hour at least.
//!
//! # Invariants
//!
//! * **A path exists only with its references and its NAR.** Foreign keys enforce this.
//! * **A visible path has an object.** An object is removed only if its key is garbage. A key
//!   becomes garbage in the transaction that deletes the last row with it, and no new object gets a
//!   key that is garbage. A delayed removal therefore never removes an object that is in use.
//! * **A look-up stays valid.** A path or file that a look-up has returned exists for
//!   [`Rules::hold`] after that. A look-up that finds it condemned revives it in the database
//!   first. A look-up that began before the condemnation was confirmed is older than the time from
//!   which `hold` is counted.
//! * **One collector runs at a time**, among all processes: it holds a lock on a file.
//! * **Doubt deletes nothing.** A run ends before it changes anything if the small tables of the
//!   database are damaged, or if the clock has jumped; and before it condemns a path if that would
//!   condemn more than half of the paths. An operator can [confirm](Collector::forced) the run.

mod extras;
mod keep;
pub(crate) mod log_files;
pub(crate) mod plausible;
mod purge;
mod pushes;
mod retention;

use std::fmt;
use std::fs::{File, TryLockError};
use std::mem;
use std::ops::AddAssign;
use std::path::Path;
use std::time::Duration;

use samovar_nix::HashPart;
use samovar_text::{counted, human};

use crate::error::StorageError;
use crate::metadata::{self, CacheId, Database, Extra, Graph, check, collect, pins, totals};
use crate::objects::Objects;
use crate::sql::Exclusive;
use crate::unmounted::check_files;

pub use extras::unused_extras;
pub use keep::Verdict;
pub use purge::purge_step;
pub use pushes::sweep_pushes;
pub use retention::{Retention, RetentionRule, Retentions, Rules, retention_time};

/// Name of the file that the collector locks, relative to the storage directory.
const LOCK: &str = ".samovar/collector-lock";

/// Maximum number of rows that one step changes. Uploads wait about 20 ms for such a step.
const BATCH_COUNT: u32 = 500;

/// Numbers of pins, paths and NARs that a run has changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of expired pins that were removed.
    pub expired_pins: usize,
    /// Number of paths that were condemned.
    pub condemned: usize,
    /// Number of paths that were condemned before and are kept again.
    pub revived: usize,
    /// Number of paths that were deleted.
    pub deleted: usize,
    /// Number of NARs that were condemned.
    pub condemned_nars: usize,
    /// Number of NARs that were deleted.
    pub deleted_nars: usize,
    /// Total length of the files of the deleted NARs, in bytes.
    pub deleted_bytes: u64,
    /// Number of build logs and realisations without a path that were deleted.
    pub deleted_extras: usize,
    /// Their total length, in bytes.
    pub deleted_extra_bytes: u64,
}

impl AddAssign for Summary {
    fn add_assign(&mut self, other: Self) {
        self.expired_pins += other.expired_pins;
        self.condemned += other.condemned;
        self.revived += other.revived;
        self.deleted += other.deleted;
        self.condemned_nars += other.condemned_nars;
        self.deleted_nars += other.deleted_nars;
        self.deleted_bytes += other.deleted_bytes;
        self.deleted_extras += other.deleted_extras;
        self.deleted_extra_bytes += other.deleted_extra_bytes;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} condemned, {} deleted; {} condemned, {} deleted ({})",
            counted(self.condemned, "path"),
            self.deleted,
            counted(self.condemned_nars, "file"),
            self.deleted_nars,
            human(self.deleted_bytes)
        )?;
        if self.deleted_extras > 0 {
            let (count, size) = (self.deleted_extras, human(self.deleted_extra_bytes));
            write!(f, "; {count} build logs and realisations deleted ({size})")?;
        }
        for (count, noun, what) in [
            (self.revived, "path", "kept again"),
            (self.expired_pins, "expired pin", "removed"),
        ] {
            if count > 0 {
                write!(f, "; {} {what}", counted(count, noun))?;
            }
        }
        Ok(())
    }
}

/// A run of the collector.
pub struct Collector<'a> {
    metadata: &'a Database,
    objects: &'a Objects,
    rules: Rules,
    retentions: &'a Retentions,
    /// Called after each deletion of a path.
    deleted: &'a dyn Fn(CacheId, HashPart) -> Result<(), StorageError>,
    /// Number of seconds by which the clock has advanced more than the time that has passed since
    /// the start of the process.
    drift: i64,
    /// Whether an operator has confirmed the run, so that it is not doubted.
    is_forced: bool,
    /// Time between the condemnation of paths and their deletion, in which uses are recorded.
    pause: Duration,
    phase: Phase,
    summary: Summary,
    /// The right to collect alone among the nodes that share the database.
    exclusive: Option<Exclusive>,
    _lock: File,
}

/// The next step of a run.
#[derive(Debug, Default)]
enum Phase {
    Check,
    RemovePins,
    PurgeCaches,
    CompareLogs,
    Mark,
    Revive(Vec<i64>, Vec<i64>),
    Condemn(Vec<i64>),
    ConfirmPaths,
    FindPaths,
    DeletePaths(Vec<i64>),
    FindExtras,
    DeleteExtras(Vec<Extra>),
    FindUnusedNars,
    CondemnNars(Vec<i64>),
    ConfirmNars,
    FindNars,
    DeleteNars(Vec<i64>),
    FindGarbage,
    RemoveObjects(Vec<String>),
    /// The first objects were removed and their keys must be recorded; the others are still to
    /// remove.
    RecordRemoved(Vec<String>, Vec<String>),
    FreeKeys,
    #[default]
    Done,
}

impl fmt::Debug for Collector<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Collector").field(&self.phase).finish()
    }
}

impl<'a> Collector<'a> {
    /// Starts a run. Returns `None` if another collector of this storage is running, on whichever
    /// node.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if the lock file cannot be created or locked;
    /// [`StorageError::Unavailable`] if the database that nodes share is away.
    pub fn start(
        root: &Path,
        metadata: &'a Database,
        objects: &'a Objects,
        rules: Rules,
        retentions: &'a Retentions,
        deleted: &'a dyn Fn(CacheId, HashPart) -> Result<(), StorageError>,
    ) -> Result<Option<Self>, StorageError> {
        let lock = File::create(root.join(LOCK))
            .map_err(|error| StorageError::file("cannot create", LOCK, error))?;
        let exclusive = match metadata.postgres() {
            Some(postgres) => match postgres.exclusive("collector")? {
                None => return Ok(None),
                exclusive => exclusive,
            },
            None => None,
        };
        match lock.try_lock() {
            Ok(()) => Ok(Some(Self {
                metadata,
                objects,
                rules,
                retentions,
                deleted,
                drift: 0,
                is_forced: false,
                pause: Duration::ZERO,
                phase: Phase::Check,
                summary: Summary::default(),
                exclusive,
                _lock: lock,
            })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(StorageError::file("cannot lock", LOCK, error)),
        }
    }

    /// Sets the number of seconds by which the clock has advanced more than the time that has
    /// passed since the start of the process.
    pub(crate) fn with_drift(mut self, drift: i64) -> Self {
        self.drift = drift;
        self
    }

    /// Sets whether an operator has confirmed the run. Otherwise it may end with
    /// [`StorageError::Doubtful`] before it changes anything.
    #[must_use]
    pub fn forced(mut self, is_forced: bool) -> Self {
        self.is_forced = is_forced;
        self
    }

    /// Sets a pause between the condemnation of paths and the first deletion. With
    /// [`Rules::at_once`], a use before the condemnation must be recorded until then.
    #[must_use]
    pub fn pausing(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Checks the database and the clock.
    fn check(&self) -> Result<(), StorageError> {
        let metadata = self.metadata;
        // The objects of an unmounted directory would count as removed.
        check_files(metadata, self.objects)?;
        check::small_tables(metadata)?;
        let collected_at = totals::collected_at(metadata)?;
        let (now, rules) = (metadata.now(), &self.rules);
        match plausible::of_clock(now, collected_at, self.drift, rules, self.retentions) {
            Some(doubt) if !self.is_forced => Err(StorageError::Doubtful(doubt)),
            _ => Ok(()),
        }
    }

    /// Runs all steps.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn run(mut self) -> Result<Summary, StorageError> {
        while self.has_right()? && self.step()? {}
        Ok(self.summary)
    }

    /// Returns `true`, or fails if another node may be collecting, too.
    fn has_right(&self) -> Result<bool, StorageError> {
        match &self.exclusive {
            Some(right) if !right.is_held() => {
                let lost = "the connection that lets this node collect alone was lost";
                Err(StorageError::Unavailable(lost.to_owned()))
            }
            _ => Ok(true),
        }
    }

    /// Returns what the steps so far have changed.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.summary
    }

    /// Runs one step. Returns whether more steps follow.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`]. The run must be dropped.
    pub fn step(&mut self) -> Result<bool, StorageError> {
        self.phase = match mem::take(&mut self.phase) {
            Phase::Check => {
                self.check()?;
                Phase::RemovePins
            }
            Phase::RemovePins => {
                self.summary.expired_pins = pins::remove_expired(self.metadata)?;
                Phase::PurgeCaches
            }
            Phase::PurgeCaches => match purge_step(self.metadata, self.objects)? {
                true => Phase::PurgeCaches,
                false => Phase::CompareLogs,
            },
            Phase::CompareLogs => {
                let before = self.metadata.now() - self.rules.young;
                log_files::compare(self.metadata, self.objects, before)?;
                Phase::Mark
            }
            Phase::Mark => self.mark()?,
            Phase::Revive(mut kept, dead) => {
                let batch = next(&mut kept);
                collect::condemn_paths(self.metadata, &batch, false)?;
                self.summary.revived += batch.len();
                match kept.is_empty() {
                    true => Phase::Condemn(dead),
                    false => Phase::Revive(kept, dead),
                }
            }
            Phase::Condemn(mut dead) => {
                let batch = next(&mut dead);
                collect::condemn_paths(self.metadata, &batch, true)?;
                self.summary.condemned += batch.len();
                match dead.is_empty() {
                    true => Phase::ConfirmPaths,
                    false => Phase::Condemn(dead),
                }
            }
            Phase::ConfirmPaths => match collect::confirm(self.metadata, BATCH_COUNT)? {
                true => {
                    if self.summary.condemned > 0 {
                        std::thread::sleep(self.pause);
                    }
                    Phase::FindPaths
                }
                false => Phase::ConfirmPaths,
            },
            Phase::FindPaths => Phase::DeletePaths(collect::condemned_paths(
                self.metadata,
                self.condemned_before(),
            )?),
            Phase::DeletePaths(ids) => self.delete_paths(ids)?,
            Phase::FindExtras => {
                let unused = unused_extras(self.metadata, &self.rules, self.retentions)?;
                Phase::DeleteExtras(unused)
            }
            Phase::DeleteExtras(mut extras) => {
                self.delete_extras(&next(&mut extras))?;
                match extras.is_empty() {
                    true => Phase::FindUnusedNars,
                    false => Phase::DeleteExtras(extras),
                }
            }
            other => return self.step_of_nars(other),
        };
        Ok(true)
    }

    /// Runs a step of the second half of a run, which handles NARs and objects.
    fn step_of_nars(&mut self, phase: Phase) -> Result<bool, StorageError> {
        let metadata = self.metadata;
        let (sent_before, before) = (metadata.now() - self.rules.loose, self.condemned_before());
        self.phase = match phase {
            Phase::FindUnusedNars => {
                Phase::CondemnNars(collect::loose_nars(metadata, sent_before, None)?)
            }
            Phase::CondemnNars(mut ids) => {
                let batch = next(&mut ids);
                self.summary.condemned_nars +=
                    collect::condemn_nars(metadata, &batch, sent_before)?;
                match ids.is_empty() {
                    true => Phase::ConfirmNars,
                    false => Phase::CondemnNars(ids),
                }
            }
            Phase::ConfirmNars => match collect::confirm(metadata, BATCH_COUNT)? {
                true => Phase::FindNars,
                false => Phase::ConfirmNars,
            },
            Phase::FindNars => {
                Phase::DeleteNars(collect::loose_nars(metadata, sent_before, Some(before))?)
            }
            Phase::DeleteNars(mut ids) => {
                let sizes = collect::delete_nars(metadata, &next(&mut ids), sent_before, before)?;
                self.summary.deleted_nars += sizes.len();
                self.summary.deleted_bytes += sizes.iter().sum::<u64>();
                match ids.is_empty() {
                    true => Phase::FindGarbage,
                    false => Phase::DeleteNars(ids),
                }
            }
            Phase::FindGarbage => Phase::RemoveObjects(collect::garbage(metadata)?),
            Phase::RemoveObjects(mut keys) => {
                let batch = next(&mut keys);
                self.objects.remove_all(&batch)?;
                Phase::RecordRemoved(batch, keys)
            }
            Phase::RecordRemoved(removed, keys) => {
                collect::set_removed(metadata, &removed)?;
                match keys.is_empty() {
                    true => Phase::FreeKeys,
                    false => Phase::RemoveObjects(keys),
                }
            }
            Phase::FreeKeys => {
                collect::free_keys(metadata, metadata.now() - self.rules.key_rest)?;
                totals::set_collected(metadata)?;
                Phase::Done
            }
            _ => return Ok(false),
        };
        Ok(true)
    }

    fn mark(&mut self) -> Result<Phase, StorageError> {
        let (graph, verdicts) = preview(self.metadata, &self.rules, self.retentions)?;
        match plausible::of_verdicts(&graph, &verdicts) {
            Some(doubt) if !self.is_forced => return Err(StorageError::Doubtful(doubt)),
            _ => {}
        }
        let (mut kept, mut dead) = (Vec::new(), Vec::new());
        for (path, verdict) in graph.paths.iter().zip(verdicts) {
            match (verdict, path.is_condemned) {
                (Verdict::Keep, true) => kept.push(path.id),
                (Verdict::Unused | Verdict::OverSize, false) => dead.push(path.id),
                _ => {}
            }
        }
        Ok(Phase::Revive(kept, dead))
    }

    fn delete_paths(&mut self, mut ids: Vec<i64>) -> Result<Phase, StorageError> {
        // The newest rows are deleted first, because they are the referrers.
        let rest = ids.split_off(ids.len().min(BATCH_COUNT as usize));
        let before = self.condemned_before();
        let deleted = self
            .objects
            .removing(|mirror| collect::delete_paths(self.metadata, &ids, before, mirror))?;
        self.summary.deleted += deleted.len();
        for (cache, hash_part) in deleted {
            (self.deleted)(cache, hash_part)?;
        }
        Ok(match rest.is_empty() {
            true => Phase::FindExtras,
            false => Phase::DeletePaths(rest),
        })
    }

    fn delete_extras(&mut self, extras: &[Extra]) -> Result<(), StorageError> {
        let before = self.metadata.now() - self.rules.young;
        let deleted = self
            .objects
            .removing(|files| metadata::extras::delete(self.metadata, extras, before, files))?;
        self.summary.deleted_extras += deleted.len();
        let sizes = deleted.iter().map(|extra| extra.size);
        self.summary.deleted_extra_bytes += sizes.sum::<u64>();
        Ok(())
    }

    /// Returns the latest time of condemnation at which a path or NAR may be deleted now.
    fn condemned_before(&self) -> i64 {
        self.metadata.now() - self.rules.hold
    }
}

/// Removes the next batch, of at most `BATCH_COUNT` items, from the end of a list.
fn next<T>(list: &mut Vec<T>) -> Vec<T> {
    list.split_off(list.len().saturating_sub(BATCH_COUNT as usize))
}

/// Reads all paths and decides which of them the next run would condemn, without changing anything.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn preview(
    metadata: &Database,
    rules: &Rules,
    retentions: &Retentions,
) -> Result<(Graph, Vec<Verdict>), StorageError> {
    let graph = collect::graph(metadata, &|cache, name| retentions.of(cache).time_of(name))?;
    let verdicts = keep::decide(&graph, retentions, rules, metadata.now());
    Ok((graph, verdicts))
}
