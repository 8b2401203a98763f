//! [`Table`]: which paths have files of which build IDs.

use std::hash::{BuildHasher as _, RandomState};

use samovar_nix::HashPart;

use crate::route::build_id::BuildId;

/// Maximum number of build IDs in a table; each takes 16 bytes. Further ones are not found.
const COUNT_MAX: usize = 2_000_000;

/// Maximum number of build IDs of one path. Further ones are not found. The largest outputs of
/// nixpkgs have some thousands.
pub(super) const OF_PATH_MAX: usize = 1 << 16;

/// Maximum number of paths that are returned for one build ID.
const FOUND_MAX: usize = 16;

/// The build IDs of paths. It has hashes of the build IDs, so it may return a path that does not
/// have the build ID: the caller looks for the file.
#[derive(Debug, Default)]
pub(super) struct Table {
    hasher: RandomState,
    /// The number and hash part of each path that was read, also of those without build IDs, in the
    /// order of numbers.
    paths: Vec<(i64, HashPart)>,
    /// The hash of each build ID, with the index of its path. Sorted by [`sort`](Self::sort).
    entries: Vec<(u64, u32)>,
}

impl Table {
    /// Adds a path with its build IDs. Call [`sort`](Self::sort) after the last one.
    pub(super) fn add(&mut self, number: i64, hash_part: HashPart, build_ids: &[BuildId]) {
        let Ok(index) = u32::try_from(self.paths.len()) else {
            return;
        };
        self.paths.push((number, hash_part));
        let room = COUNT_MAX.saturating_sub(self.entries.len());
        let build_ids = build_ids.iter().take(room.min(OF_PATH_MAX));
        let hashes = build_ids.map(|id| (self.hasher.hash_one(id), index));
        self.entries.extend(hashes);
    }

    /// Sorts the build IDs, so that they are found.
    pub(super) fn sort(&mut self) {
        self.entries.sort_unstable();
        self.entries.dedup();
    }

    /// Returns the paths that were read.
    pub(super) fn paths(&self) -> &[(i64, HashPart)] {
        &self.paths
    }

    /// Removes the paths that `is_kept` does not accept.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&(i64, HashPart)) -> bool) {
        let mut kept = 0;
        let indexes: Vec<Option<u32>> = self
            .paths
            .iter()
            .map(|path| {
                let index = is_kept(path).then_some(kept);
                kept += u32::from(index.is_some());
                index
            })
            .collect();
        self.paths.retain(is_kept);
        self.entries = self
            .entries
            .iter()
            .filter_map(|(hash, index)| Some((*hash, (*indexes.get(*index as usize)?)?)))
            .collect();
    }

    /// Returns the paths that may have files of this build ID, those that were added last first.
    pub(super) fn find(&self, id: &BuildId) -> Vec<HashPart> {
        let hash = self.hasher.hash_one(id);
        let start = self.entries.partition_point(|(other, _)| *other < hash);
        let end = self.entries.partition_point(|(other, _)| *other <= hash);
        let mut found = Vec::new();
        for (_, index) in self.entries[start..end].iter().rev().take(FOUND_MAX) {
            let (_, hash_part) = self.paths[*index as usize];
            if !found.contains(&hash_part) {
                found.push(hash_part);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> BuildId {
        BuildId::parse(format!("{number:016x}").as_bytes()).unwrap()
    }

    fn path(number: u8) -> HashPart {
        HashPart::from_bytes([number; 20])
    }

    #[test]
    fn paths_are_found_by_their_build_ids_the_newest_first() {
        let mut table = Table::default();
        for number in 0..10_u8 {
            let ids = [id(u64::from(number)), id(100), id(100)];
            table.add(i64::from(number), path(number), &ids);
            table.sort();
        }
        assert_eq!(table.find(&id(3)), [path(3)]);
        assert_eq!(table.find(&id(10)), []);
        assert_eq!(table.find(&id(100)).len(), 10);
        assert_eq!(table.find(&id(100))[..2], [path(9), path(8)]);
        table.retain(|(number, _)| number % 2 == 1);
        assert_eq!(table.find(&id(3)), [path(3)]);
        assert_eq!(table.find(&id(4)), []);
        assert_eq!(table.find(&id(100))[..2], [path(9), path(7)]);
        assert_eq!(table.paths().len(), 5);
    }

    #[test]
    fn the_table_is_bounded() {
        let mut table = Table::default();
        let ids: Vec<_> = (0..OF_PATH_MAX as u64 + 1).map(id).collect();
        for number in 0..40_u8 {
            table.add(i64::from(number), path(number), &ids);
        }
        table.sort();
        assert_eq!(table.entries.len(), COUNT_MAX);
        assert_eq!(table.find(&ids[0]).len(), FOUND_MAX);
        assert_eq!(table.find(&ids[OF_PATH_MAX]), []);
    }
}
