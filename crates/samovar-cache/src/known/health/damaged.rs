//! Quarantine of paths whose files do not match their registration.
//!
//! # Theory of operation
//!
//! A bad read marks the path as *suspect*, and requests for it get 503. A second read then either
//! removes the mark or *quarantines* the path, and stores a fingerprint of its files. Quarantine
//! requires that the fingerprint was the same before and after that read, so that files under
//! repair are not quarantined. A quarantined path gets 404 while its row and the fingerprint of its
//! files stay the same. Each request checks the fingerprint again, one request per path at a time;
//! meanwhile, others get 503. If the fingerprint differs, the mark is removed and the path counts
//! as never verified.
//!
//! Clients cache a 404 for an hour, so it must not be sent before the damage is confirmed. But only
//! a 404 makes clients query their next cache, so confirmed damage must not be a 503.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use samovar_metrics::{Event, Observer};
use samovar_nix::HashPart;
use samovar_store::{Fingerprint, Snapshot, Store};

use super::stamp::Stamp;
use crate::known::row::Row;
use crate::refusal::Refusal;
use crate::sync::Locked;

/// Maximum number of marks, at 100 bytes each. Further damaged paths are found and reported again
/// each time their NAR is hashed.
pub(super) const COUNT_MAX: usize = 65_536;

/// Duration from which a check counts as long: it is not repeated at once in the same epoch.
const LONG_CHECK: Duration = Duration::from_millis(20);

/// The pause after a long check, as a multiple of its duration: checking a large tree takes at most
/// a tenth of the time.
const PAUSE_FACTOR: u32 = 9;

/// The marks of suspect and quarantined paths.
#[derive(Debug, Default)]
pub(super) struct Damaged {
    marks: Mutex<HashMap<HashPart, Mark>>,
    /// The number of marks, which every answer reads; usually 0.
    count: AtomicUsize,
}

/// The record of a quarantined path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) row: Stamp,
    pub(super) files: Fingerprint,
}

#[derive(Debug)]
struct Mark {
    row: Stamp,
    /// The fingerprint of the damaged files; `None` while the path is only suspect.
    files: Option<Fingerprint>,
    /// The catalog's epoch in which the files were last checked. In the same epoch, they are not
    /// checked again before `next_check_at`.
    checked_epoch: Option<u64>,
    next_check_at: Instant,
    is_being_checked: bool,
}

impl Damaged {
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed) as u64
    }

    /// Whether the path has a mark. The mark may be outdated.
    pub(super) fn contains(&self, hash_part: &HashPart) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.marks.locked().contains_key(hash_part)
    }

    /// Returns an error if the path is quarantined or suspect. `row` is its row in the given
    /// epoch. May read directories.
    pub(super) fn admit(
        &self,
        row: &Row,
        epoch: Option<u64>,
        store: &dyn Store,
        observer: &dyn Observer,
    ) -> Result<(), Refusal> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let hash_part = row.path.hash_part();
        match self.decide_by_mark(&hash_part, row, epoch) {
            Some(outcome) => outcome,
            None => self.check_files(row, epoch, store, observer),
        }
    }

    /// Decides from the mark alone, if possible. Returns `None` if the caller must check the files.
    fn decide_by_mark(
        &self,
        hash_part: &HashPart,
        row: &Row,
        epoch: Option<u64>,
    ) -> Option<Result<(), Refusal>> {
        let mut marks = self.marks.locked();
        let Some(mark) = marks.get_mut(hash_part) else {
            return Some(Ok(()));
        };
        if mark.row != Stamp::of_row(row) {
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
        row: &Row,
        epoch: Option<u64>,
        store: &dyn Store,
        observer: &dyn Observer,
    ) -> Result<(), Refusal> {
        let hash_part = &row.path.hash_part();
        let started = Instant::now();
        let tree = store.tree(&row.path);
        let found = tree.ok().and_then(|tree| tree.fingerprint().ok());
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
        // If the files cannot be read now, the path stays quarantined.
        if found.is_none() || found == mark.files {
            return Err(Refusal::Quarantined);
        }
        self.drop_mark(&mut marks, hash_part);
        drop(marks);
        observer.event(&Event::PathReleased(&row.path));
        Ok(())
    }

    /// Marks a path as suspect. Returns `false` if the limit of marks is reached.
    pub(super) fn suspect(&self, row: &Row) -> bool {
        let mut marks = self.marks.locked();
        let hash_part = row.path.hash_part();
        let stamp = Stamp::of_row(row);
        // A quarantined path stays quarantined and does not become suspect.
        let is_known = marks.get(&hash_part).is_some_and(|mark| mark.row == stamp);
        is_known || self.add(&mut marks, hash_part, stamp, None)
    }

    /// Quarantines a path whose files failed two reads. `files` is the fingerprint of the files.
    pub(super) fn quarantine(&self, row: &Row, files: Fingerprint) {
        let stamp = Stamp::of_row(row);
        self.add(
            &mut self.marks.locked(),
            row.path.hash_part(),
            stamp,
            Some(files),
        );
    }

    /// Removes a path's mark. Returns whether there was one.
    pub(super) fn unmark(&self, hash_part: &HashPart) -> bool {
        self.contains(hash_part) && self.drop_mark(&mut self.marks.locked(), hash_part)
    }

    /// Drops the mark of a path that is only suspect. A quarantine ends only when the files are
    /// repaired, the path is registered anew, or a second read finds the registered hash.
    pub(super) fn drop_suspect(&self, hash_part: &HashPart) {
        let mut marks = self.marks.locked();
        if marks
            .get(hash_part)
            .is_some_and(|mark| mark.files.is_none())
        {
            self.drop_mark(&mut marks, hash_part);
        }
    }

    /// Returns the records of quarantined paths that are still registered.
    pub(super) fn records(&self, snapshot: Option<&Snapshot>) -> Vec<(HashPart, Record)> {
        let mut marks = self.marks.locked();
        // A catalog that was never loaded contains no paths; then all records are returned.
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
