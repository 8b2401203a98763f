//! Which paths are kept out of all answers because their files are not what is registered.
//!
//! # Theory of operation
//!
//! Whoever finds the files of a path wrong makes a mark. It says at first that the path is in
//! question: 503. A second look then either takes it away or *confirms* it, with what the files
//! look like from outside; it does so only if they looked the same before and after, so nobody
//! was at them meanwhile. From then on the path is damaged: 404, while the row is the same and the
//! files look the same. Whoever asks for it has them looked at again; when they look different the
//! mark is gone, and the path is as one that nobody has verified.
//!
//! A 404 is remembered by clients for an hour, so it is not said lightly; but only after a 404 do
//! they go on to the next cache.
//!
//! # Limits
//!
//! | what | value | why |
//! | --- | --- | --- |
//! | marks | 65,536 | 100 bytes each; more are found and reported again |
//! | looks at the files of one path | one at a time | others are told to ask again |
//! | the same, where one takes 20 ms or more | a tenth of the time, but for commits | a large tree |

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use samovar_metrics::{Event, Observer};
use samovar_nix::{HashPart, PathInfo};
use samovar_store::{Fingerprint, Snapshot, Store};

use super::stamp::Stamp;
use crate::refusal::Refusal;

/// Marks that are remembered.
pub(super) const COUNT_MAX: usize = 65_536;

/// A look that takes so long is not repeated at once if nothing was committed.
const LONG_LOOK: Duration = Duration::from_millis(20);

/// How much longer than it took.
const REST_FACTOR: u32 = 9;

/// The marks.
#[derive(Debug)]
pub(super) struct Damaged {
    store: Arc<dyn Store>,
    observer: Arc<dyn Observer>,
    marks: Mutex<HashMap<HashPart, Mark>>,
    /// How many there are: asked for every answer, and mostly 0.
    count: AtomicUsize,
}

/// What was confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) row: Stamp,
    pub(super) files: Fingerprint,
}

#[derive(Debug)]
struct Mark {
    row: Stamp,
    /// How the files look; `None` until that is confirmed.
    files: Option<Fingerprint>,
    /// The epoch of the catalog in which the files were last looked at, and when they may be
    /// looked at again in the same one.
    looked_in: Option<u64>,
    rests_until: Instant,
    is_looked_at: bool,
}

impl Damaged {
    pub(super) fn new(store: Arc<dyn Store>, observer: Arc<dyn Observer>) -> Self {
        Self {
            store,
            observer,
            marks: Mutex::default(),
            count: AtomicUsize::new(0),
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed) as u64
    }

    /// Whether there is a mark, true or not.
    pub(super) fn contains(&self, hash_part: &HashPart) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.marks().contains_key(hash_part)
    }

    /// Refuses a path that is quarantined or suspect. `info` is its row in the epoch. May read
    /// directories.
    pub(super) fn admit(&self, info: &PathInfo, epoch: Option<u64>) -> Result<(), Refusal> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let hash_part = info.path.hash_part();
        match self.begin(&hash_part, info, epoch) {
            Some(outcome) => outcome,
            None => self.look(&hash_part, info, epoch),
        }
    }

    /// The answer that needs no read of the files. `None`: the caller has to check them.
    fn begin(
        &self,
        hash_part: &HashPart,
        info: &PathInfo,
        epoch: Option<u64>,
    ) -> Option<Result<(), Refusal>> {
        let mut marks = self.marks();
        let Some(mark) = marks.get_mut(hash_part) else {
            return Some(Ok(()));
        };
        if mark.row != Stamp::of_row(info) {
            self.drop_mark(&mut marks, hash_part);
            return Some(Ok(()));
        }
        if mark.is_looked_at || mark.files.is_none() {
            return Some(Err(Refusal::Suspect));
        }
        if mark.looked_in == epoch && Instant::now() < mark.rests_until {
            return Some(Err(Refusal::Quarantined));
        }
        mark.is_looked_at = true;
        None
    }

    fn look(
        &self,
        hash_part: &HashPart,
        info: &PathInfo,
        epoch: Option<u64>,
    ) -> Result<(), Refusal> {
        let started = Instant::now();
        let tree = self.store.tree(&info.path);
        let found = tree.ok().and_then(|tree| tree.fingerprint().ok().flatten());
        let cost = started.elapsed();
        let mut marks = self.marks();
        let Some(mark) = marks.get_mut(hash_part) else {
            return Ok(());
        };
        mark.is_looked_at = false;
        mark.looked_in = epoch;
        mark.rests_until = match cost < LONG_LOOK {
            true => started,
            false => Instant::now() + cost * REST_FACTOR,
        };
        // What cannot be looked at now is as it was.
        if found.is_none() || found == mark.files {
            return Err(Refusal::Quarantined);
        }
        self.drop_mark(&mut marks, hash_part);
        drop(marks);
        self.observer.event(&Event::PathReleased(&info.path));
        Ok(())
    }

    /// Marks a path whose files were found wrong. `false` if there are too many marks.
    pub(super) fn suspect(&self, info: &PathInfo) -> bool {
        let mut marks = self.marks();
        let hash_part = info.path.hash_part();
        let row = Stamp::of_row(info);
        // One that is confirmed stays so.
        let is_known = marks.get(&hash_part).is_some_and(|mark| mark.row == row);
        is_known || self.add(&mut marks, hash_part, row, None)
    }

    /// Marks a path whose files were found wrong twice, and look like this.
    pub(super) fn confirm(&self, info: &PathInfo, files: Fingerprint) {
        let row = Stamp::of_row(info);
        self.add(&mut self.marks(), info.path.hash_part(), row, Some(files));
    }

    /// Drops a mark, if there is one.
    pub(super) fn unmark(&self, hash_part: &HashPart) -> bool {
        self.contains(hash_part) && self.drop_mark(&mut self.marks(), hash_part)
    }

    /// All confirmed marks of paths that are there.
    pub(super) fn records(&self, snapshot: Option<&Snapshot>) -> Vec<(HashPart, Record)> {
        let mut marks = self.marks();
        // A snapshot that was never loaded knows no path.
        if let Some(snapshot) = snapshot.filter(|snapshot| snapshot.path_count() > 0) {
            marks.retain(|hash_part, _| snapshot.may_contain(hash_part));
            self.count.store(marks.len(), Ordering::Relaxed);
        }
        let marks = marks.iter();
        marks
            .filter_map(|(hash_part, mark)| {
                let (row, files) = (mark.row, mark.files?);
                Some((*hash_part, Record { row, files }))
            })
            .collect()
    }

    pub(super) fn restore(&self, records: &[(HashPart, Record)]) {
        let mut marks = self.marks();
        for (hash_part, record) in records {
            self.add(&mut marks, *hash_part, record.row, Some(record.files));
        }
    }

    fn add(
        &self,
        marks: &mut HashMap<HashPart, Mark>,
        hash_part: HashPart,
        row: Stamp,
        files: Option<Fingerprint>,
    ) -> bool {
        if marks.len() >= COUNT_MAX && !marks.contains_key(&hash_part) {
            return false;
        }
        let mark = Mark {
            row,
            files,
            looked_in: None,
            rests_until: Instant::now(),
            is_looked_at: false,
        };
        marks.insert(hash_part, mark);
        self.count.store(marks.len(), Ordering::Relaxed);
        true
    }

    fn drop_mark(&self, marks: &mut HashMap<HashPart, Mark>, hash_part: &HashPart) -> bool {
        let was_there = marks.remove(hash_part).is_some();
        self.count.store(marks.len(), Ordering::Relaxed);
        was_there
    }

    fn marks(&self) -> MutexGuard<'_, HashMap<HashPart, Mark>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
