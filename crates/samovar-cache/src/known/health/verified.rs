//! Verification records of paths whose files have the registered hash.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use samovar_nix::HashPart;
use samovar_store::Snapshot;

use super::stamp::Stamp;
use crate::known::sharded::HashPartHasher;
use crate::sync::Locked;

/// Minimum number of records at which the table is searched for records of garbage-collected paths.
const COUNT_MIN: usize = 4096;

/// Maximum age of the clock with which the kernel stamps changes of files: its last tick was up to
/// 10 ms ago.
const CLOCK_STEP: Duration = Duration::from_millis(20);

/// All verification records.
#[derive(Debug, Default)]
pub(super) struct Verified {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<HashPart, Entry, BuildHasherDefault<HashPartHasher>>,
    /// Number of records that were left when the records of garbage-collected paths were last
    /// dropped.
    pruned_count: usize,
}

/// One verification record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) stamp: Stamp,
    /// Time at which the verification began.
    pub(super) began: Moment,
}

impl Verified {
    /// Returns when a path's verification began, if its record has this stamp.
    pub(super) fn find(&self, hash_part: &HashPart, stamp: Stamp) -> Option<Moment> {
        let table = self.table.locked();
        let entry = table.entries.get(hash_part)?;
        (entry.stamp == stamp).then_some(entry.began)
    }

    /// Returns when a path's verification began, ignoring its stamp; `None` without a record.
    pub(super) fn began(&self, hash_part: &HashPart) -> Option<Moment> {
        self.table
            .locked()
            .entries
            .get(hash_part)
            .map(|entry| entry.began)
    }

    /// Adds a record. Each time the table has doubled, also drops the records of garbage-collected
    /// paths.
    pub(super) fn insert(&self, hash_part: HashPart, entry: Entry, snapshot: Option<&Snapshot>) {
        let mut table = self.table.locked();
        table.entries.insert(hash_part, entry);
        let count = table.entries.len();
        if count >= COUNT_MIN.max(table.pruned_count.saturating_mul(2)) {
            table.prune(snapshot);
        }
    }

    pub(super) fn remove(&self, hash_part: &HashPart) {
        self.table.locked().entries.remove(hash_part);
    }

    /// Removes the record of a path if the verification began before a file changed for the last
    /// time; returns `true` then, or if there is no record. `changed`: in seconds and nanoseconds
    /// since 1970.
    pub(super) fn remove_older(&self, hash_part: &HashPart, changed: (i64, u32)) -> bool {
        let mut table = self.table.locked();
        let entry = table.entries.get(hash_part);
        let is_older = entry.is_none_or(|entry| entry.began.is_passed_by(changed));
        if is_older {
            table.entries.remove(hash_part);
        }
        is_older
    }

    /// Returns the records of paths that are still registered.
    pub(super) fn entries(&self, snapshot: Option<&Snapshot>) -> Vec<(HashPart, Entry)> {
        let mut table = self.table.locked();
        table.prune(snapshot);
        let entries = table.entries.iter();
        entries
            .map(|(hash_part, entry)| (*hash_part, *entry))
            .collect()
    }

    pub(super) fn restore(&self, entries: &[(HashPart, Entry)]) {
        let mut table = self.table.locked();
        table.entries.extend(entries.iter().copied());
        table.pruned_count = table.entries.len();
    }
}

impl Table {
    fn prune(&mut self, snapshot: Option<&Snapshot>) {
        // A catalog that was never loaded contains no paths; then no record is dropped.
        if let Some(snapshot) = snapshot.filter(|snapshot| snapshot.path_count() > 0) {
            self.entries
                .retain(|hash_part, _| snapshot.may_contain(hash_part));
            self.entries.shrink_to(2 * self.entries.len());
        }
        self.pruned_count = self.entries.len();
    }
}

/// A time since 1970, for comparison with change times of files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment {
    pub(super) seconds: u32,
    pub(super) nanoseconds: u32,
}

impl Moment {
    /// Returns a time that is not later than the change time of any file that changes from now on.
    pub(crate) fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let since = since.unwrap_or_default().saturating_sub(CLOCK_STEP);
        Self {
            seconds: u32::try_from(since.as_secs()).unwrap_or(u32::MAX),
            nanoseconds: since.subsec_nanos(),
        }
    }

    /// Returns whether a change time, in seconds and nanoseconds since 1970, is not before this
    /// time.
    fn is_passed_by(self, changed: (i64, u32)) -> bool {
        changed >= (i64::from(self.seconds), self.nanoseconds)
    }
}
