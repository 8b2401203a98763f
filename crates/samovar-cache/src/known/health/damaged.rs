//! Quarantine: paths whose files are not the registered ones.
//!
//! # Theory of operation
//!
//! A bad read marks the path as *suspect*: 503. A second read either removes the mark or
//! *quarantines* the path, with a fingerprint of the files; it does so only if the fingerprint was
//! the same before and after, so that the files were not being repaired meanwhile. A quarantined
//! path is 404 while its row and its fingerprint stay the same. Each request checks the fingerprint
//! again; if it differs the mark is removed, and the path counts as never verified.
//!
//! Clients cache a 404 for an hour, so quarantine requires confirmation; but only a 404 makes them
//! query the next cache.
//!
//! # Limits
//!
//! | what | value | why |
//! | --- | --- | --- |
//! | marks | 65,536 | 100 bytes each; further paths are found and reported again |
//! | checks of one path's files | one at a time | other requests are told to try again |
//! | a check that takes 20 ms or more | a tenth of the time, unless the store changed | a large tree |

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use samovar_metrics::{Event, Observer};
use samovar_nix::{HashPart, PathInfo};
use samovar_store::{Fingerprint, Snapshot, Store};

use super::stamp::Stamp;
use crate::refusal::Refusal;
use crate::sync::Locked;

/// The limit of marks.
pub(super) const COUNT_MAX: usize = 65_536;

/// A check that takes this long is not repeated at once in the same epoch.
const LONG_CHECK: Duration = Duration::from_millis(20);

/// The pause after a long check, as a multiple of its duration.
const PAUSE_FACTOR: u32 = 9;

/// The marks.
#[derive(Debug, Default)]
pub(super) struct Damaged {
    marks: Mutex<HashMap<HashPart, Mark>>,
    /// The number of marks, mostly 0: read for every answer.
    count: AtomicUsize,
}

/// A confirmed mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) row: Stamp,
    pub(super) files: Fingerprint,
}

#[derive(Debug)]
struct Mark {
    row: Stamp,
    /// The fingerprint of the files; `None` until the mark is confirmed.
    files: Option<Fingerprint>,
    /// The epoch of the last check, and when the next one in the same epoch may run.
    checked_epoch: Option<u64>,
    next_check_at: Instant,
    is_being_checked: bool,
}

impl Damaged {
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed) as u64
    }

    /// Whether the path has a suspect or quarantine mark, which may be outdated.
    pub(super) fn contains(&self, hash_part: &HashPart) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.marks.locked().contains_key(hash_part)
    }

    /// Refuses a path that is quarantined or suspect. `info` is its row in the epoch. May read
    /// directories.
    pub(super) fn admit(
        &self,
        info: &PathInfo,
        epoch: Option<u64>,
        store: &dyn Store,
        observer: &dyn Observer,
    ) -> Result<(), Refusal> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let hash_part = info.path.hash_part();
        match self.standing(&hash_part, info, epoch) {
            Some(outcome) => outcome,
            None => self.check_files(info, epoch, store, observer),
        }
    }

    /// Returns the decision if it needs no read of the files, otherwise `None`: the caller must
    /// check them.
    fn standing(
        &self,
        hash_part: &HashPart,
        info: &PathInfo,
        epoch: Option<u64>,
    ) -> Option<Result<(), Refusal>> {
        let mut marks = self.marks.locked();
        let Some(mark) = marks.get_mut(hash_part) else {
            return Some(Ok(()));
        };
        if mark.row != Stamp::of_row(info) {
            self.drop_mark(&mut marks, hash_part);
            return Some(Ok(()));
        }
        if mark.is_being_checked || mark.files.is_none() {
            return Some(Err(Refusal::Suspect));
        }
        if mark.checked_epoch == epoch && Instant::now() < mark.next_check_at {
            return Some(Err(Refusal::Quarantined));
        }
        mark.is_being_checked = true;
        None
    }

    fn check_files(
        &self,
        info: &PathInfo,
        epoch: Option<u64>,
        store: &dyn Store,
        observer: &dyn Observer,
    ) -> Result<(), Refusal> {
        let hash_part = &info.path.hash_part();
        let started = Instant::now();
        let tree = store.tree(&info.path);
        let found = tree.ok().and_then(|tree| tree.fingerprint().ok().flatten());
        let cost = started.elapsed();
        let mut marks = self.marks.locked();
        let Some(mark) = marks.get_mut(hash_part) else {
            return Ok(());
        };
        mark.is_being_checked = false;
        mark.checked_epoch = epoch;
        mark.next_check_at = match cost < LONG_CHECK {
            true => started,
            false => Instant::now() + cost * PAUSE_FACTOR,
        };
        // If the files cannot be read now, keep the mark.
        if found.is_none() || found == mark.files {
            return Err(Refusal::Quarantined);
        }
        self.drop_mark(&mut marks, hash_part);
        drop(marks);
        observer.event(&Event::PathReleased(&info.path));
        Ok(())
    }

    /// Marks a path as suspect. Returns `false` if there are too many marks.
    pub(super) fn suspect(&self, info: &PathInfo) -> bool {
        let mut marks = self.marks.locked();
        let hash_part = info.path.hash_part();
        let row = Stamp::of_row(info);
        // A confirmed mark is never downgraded.
        let is_known = marks.get(&hash_part).is_some_and(|mark| mark.row == row);
        is_known || self.add(&mut marks, hash_part, row, None)
    }

    /// Quarantines a path whose files were read wrong twice and have this fingerprint.
    pub(super) fn quarantine(&self, info: &PathInfo, files: Fingerprint) {
        let row = Stamp::of_row(info);
        self.add(
            &mut self.marks.locked(),
            info.path.hash_part(),
            row,
            Some(files),
        );
    }

    /// Drops the mark of a path. Returns whether there was one.
    pub(super) fn unmark(&self, hash_part: &HashPart) -> bool {
        self.contains(hash_part) && self.drop_mark(&mut self.marks.locked(), hash_part)
    }

    /// Drops the mark of a path unless it is confirmed: only a repair, a new registration or a
    /// right second read ends a quarantine.
    pub(super) fn drop_suspect(&self, hash_part: &HashPart) {
        let mut marks = self.marks.locked();
        if marks
            .get(hash_part)
            .is_some_and(|mark| mark.files.is_none())
        {
            self.drop_mark(&mut marks, hash_part);
        }
    }

    /// The confirmed marks of registered paths.
    pub(super) fn records(&self, snapshot: Option<&Snapshot>) -> Vec<(HashPart, Record)> {
        let mut marks = self.marks.locked();
        // A snapshot that was never loaded has no paths.
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
        let mut marks = self.marks.locked();
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
            checked_epoch: None,
            next_check_at: Instant::now(),
            is_being_checked: false,
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
}
