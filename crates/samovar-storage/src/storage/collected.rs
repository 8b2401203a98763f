//! [`Collected`]: which paths were deleted lately, to explain why they are missing.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use samovar_nix::HashPart;

use crate::metadata::CacheId;
use crate::storage::counters::locked;

/// Maximum number of paths that are remembered. They need about 5 MiB.
const COUNT_MAX: usize = 50_000;

/// The paths that were deleted since the process has started, up to [`COUNT_MAX`].
#[derive(Debug, Default)]
pub(crate) struct Collected {
    /// Whether there is any, so that most misses need no lock.
    has_any: AtomicBool,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Times of deletion, in seconds since 1970.
    times: HashMap<(CacheId, HashPart), i64>,
    /// The paths, oldest first.
    order: VecDeque<(CacheId, HashPart)>,
}

impl Collected {
    /// Remembers that a path was deleted at this time, in seconds since 1970.
    pub(super) fn add(&self, path: (CacheId, HashPart), time: i64) {
        let mut table = locked(&self.table);
        if table.times.insert(path, time).is_none() {
            table.order.push_back(path);
        }
        if table.order.len() > COUNT_MAX
            && let Some(oldest) = table.order.pop_front()
        {
            table.times.remove(&oldest);
        }
        self.has_any.store(true, Ordering::Relaxed);
    }

    /// Returns when a path was deleted, in seconds since 1970; `None`: unknown.
    pub(super) fn at(&self, path: (CacheId, HashPart)) -> Option<i64> {
        match self.has_any.load(Ordering::Relaxed) {
            true => locked(&self.table).times.get(&path).copied(),
            false => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_forgotten() {
        let collected = Collected::default();
        let path = |number: usize| {
            let mut bytes = [0; 20];
            bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
            (CacheId(1), HashPart::from_bytes(bytes))
        };
        assert_eq!(collected.at(path(0)), None);
        for number in 0..COUNT_MAX + 2 {
            collected.add(path(number), i64::try_from(number).unwrap());
        }
        collected.add(path(5), 7);
        assert_eq!(collected.at(path(1)), None);
        assert_eq!(collected.at(path(2)), Some(2));
        assert_eq!(collected.at(path(5)), Some(7));
    }
}
