//! Verification records of paths whose files have the registered hash.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use samovar_nix::HashPart;
use samovar_store::Snapshot;

use super::stamp::Stamp;
use crate::known::sharded::HashPartHasher;
use crate::sync::Locked;

/// Minimum number of records at which the table is searched for those of collected paths.
const COUNT_MIN: usize = 4096;

/// All verification records.
#[derive(Debug, Default)]
pub(super) struct Verified {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<HashPart, Entry, BuildHasherDefault<HashPartHasher>>,
    /// Number of records left when those of collected paths were last dropped.
    pruned_count: usize,
}

/// One verification record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) stamp: Stamp,
    /// Time of the verification, in minutes since 1970.
    pub(super) minute: u32,
}

impl Verified {
    /// Returns the minute of a path's verification, if its record has this stamp.
    pub(super) fn find(&self, hash_part: &HashPart, stamp: Stamp) -> Option<u32> {
        let table = self.table.locked();
        let entry = table.entries.get(hash_part)?;
        (entry.stamp == stamp).then_some(entry.minute)
    }

    /// Returns the minute of a path's verification, ignoring its stamp; `None` without a record.
    pub(super) fn minute(&self, hash_part: &HashPart) -> Option<u32> {
        self.table
            .locked()
            .entries
            .get(hash_part)
            .map(|entry| entry.minute)
    }

    /// Adds a record. Each time the table has doubled, also drops the records of collected paths.
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

/// Returns the present time in minutes since 1970.
pub(super) fn minute_now() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u32::try_from(since.as_secs() / 60).unwrap_or(u32::MAX)
    })
}
