//! [`View`]: the entries of a tree as a file system sees them, by inode number and by name.

use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use samovar_workspace::{Entries, Entry, Kind, Mtime};

/// Length of a block of the NAR, in bytes: the unit in which it is fetched and recorded.
pub(super) const BLOCK_LEN: u64 = 1 << 20;

/// The entries of a tree, with an index of each directory. The inode number of an entry is its
/// index + 1, so it never changes.
#[derive(Debug)]
pub(super) struct View {
    entries: Entries,
    /// Entries of all directories, by directory, with ascending names.
    children: Vec<u32>,
    /// For each entry, the start of its entries in `children`; and the end of the last one.
    starts: Vec<u32>,
    /// Number of directories in each directory.
    directories: Vec<u32>,
    file_count: usize,
}

impl View {
    /// Returns `None` for 2^32 entries or more.
    pub(super) fn new(entries: Entries) -> Option<Self> {
        let list = entries.list();
        u32::try_from(list.len()).ok()?;
        let mut starts = vec![0_u32; list.len() + 1];
        let mut directories = vec![0_u32; list.len()];
        let mut file_count = 0;
        for entry in list.iter().skip(1) {
            *starts.get_mut(entry.parent + 1)? += 1;
            match entry.kind {
                Kind::Directory { .. } => *directories.get_mut(entry.parent)? += 1,
                Kind::File { .. } => file_count += 1,
                Kind::Symlink { .. } => {}
            }
        }
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        // The names of a NAR ascend, so each directory is sorted.
        let mut next = starts.clone();
        let mut children = vec![0; list.len() - 1];
        for (index, entry) in list.iter().enumerate().skip(1) {
            let at = next.get_mut(entry.parent)?;
            *children.get_mut(*at as usize)? = u32::try_from(index).ok()?;
            *at += 1;
        }
        Some(Self {
            entries,
            children,
            starts,
            directories,
            file_count,
        })
    }

    /// Returns the entries, in the order of the NAR.
    pub(super) fn entries(&self) -> &Entries {
        &self.entries
    }

    /// Returns the number of regular files.
    pub(super) fn file_count(&self) -> usize {
        self.file_count
    }

    /// Returns the index of the entry with this inode number, and the entry.
    pub(super) fn by_inode(&self, inode: u64) -> Option<(usize, &Entry)> {
        let index = usize::try_from(inode.checked_sub(1)?).ok()?;
        Some((index, self.entries.get(index)?))
    }

    /// Returns the indices of the entries of a directory. Returns none for other entries.
    pub(super) fn children(&self, directory: usize) -> &[u32] {
        let at = |index: usize| self.starts.get(index).map(|start| *start as usize);
        let range = at(directory).zip(at(directory + 1));
        let range = range.and_then(|(start, end)| self.children.get(start..end));
        range.unwrap_or_default()
    }

    /// Returns the index of the entry with this name in a directory.
    pub(super) fn lookup(&self, directory: usize, name: &[u8]) -> Option<usize> {
        let children = self.children(directory);
        let name_of = |index: u32| self.entries.get(index as usize).map(|entry| &*entry.name);
        let found = children.binary_search_by(|index| name_of(*index).cmp(&Some(name)));
        Some(*children.get(found.ok()?)? as usize)
    }

    /// Returns the number of links to an entry.
    pub(super) fn link_count(&self, index: usize) -> u32 {
        match self.entries.get(index).map(|entry| &entry.kind) {
            Some(Kind::Directory { .. }) => 2 + self.directories.get(index).copied().unwrap_or(0),
            _ => 1,
        }
    }

    /// Returns the blocks with the contents of a file. They are empty for other entries.
    pub(super) fn blocks(&self, index: usize) -> Range<usize> {
        match self.entries.get(index).map(|entry| &entry.kind) {
            Some(Kind::File { size, offset, .. }) => blocks_of(&(*offset..offset + size)),
            _ => 0..0,
        }
    }
}

/// Returns the number of blocks of a NAR.
pub(super) fn block_count(nar_size: u64) -> usize {
    index(nar_size.div_ceil(BLOCK_LEN))
}

/// Returns the blocks that have these bytes of the NAR.
pub(super) fn blocks_of(bytes: &Range<u64>) -> Range<usize> {
    if bytes.is_empty() {
        return 0..0;
    }
    index(bytes.start / BLOCK_LEN)..index(bytes.end.div_ceil(BLOCK_LEN))
}

/// Returns the bytes of the NAR that are in these blocks.
pub(super) fn bytes_of(blocks: &Range<usize>, nar_size: u64) -> Range<u64> {
    let at = |block: usize| (block as u64 * BLOCK_LEN).min(nar_size);
    at(blocks.start)..at(blocks.end)
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Converts a time of modification. Times that the system cannot represent become 1970.
pub(super) fn system_time(mtime: Mtime) -> SystemTime {
    let seconds = Duration::from_secs(mtime.seconds.unsigned_abs());
    let base = match mtime.seconds < 0 {
        true => UNIX_EPOCH.checked_sub(seconds),
        false => UNIX_EPOCH.checked_add(seconds),
    };
    let time =
        base.and_then(|base| base.checked_add(Duration::from_nanos(mtime.nanoseconds.into())));
    time.unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use samovar_workspace::entries::Builder;

    use super::*;

    /// `a/x`, `a/y/`, `b` of 3 MiB, `c -> b`.
    fn example() -> View {
        let time = Mtime::default();
        let mut tree = Builder::new(0o755, time);
        tree.enter(b"a", 0o700, time).unwrap();
        tree.file(b"x", 0o755, time, 3, None).unwrap();
        tree.enter(b"y", 0o755, time).unwrap();
        tree.leave().unwrap();
        tree.leave().unwrap();
        tree.file(b"b", 0o644, time, 3 << 20, None).unwrap();
        tree.symlink(b"c", time, b"b").unwrap();
        tree.leave().unwrap();
        View::new(tree.finish().unwrap()).unwrap()
    }

    #[test]
    fn entries_are_found_by_name() {
        let view = example();
        assert_eq!(view.children(0), [1, 4, 5]);
        assert_eq!(view.children(1), [2, 3]);
        for leaf in [2, 3, 4, 5, 6, 99] {
            assert!(view.children(leaf).is_empty());
        }
        assert_eq!(view.lookup(0, b"a"), Some(1));
        assert_eq!(view.lookup(0, b"c"), Some(5));
        assert_eq!(view.lookup(1, b"y"), Some(3));
        assert_eq!(view.lookup(1, b"a"), None);
        assert_eq!(view.lookup(4, b"a"), None);
        assert_eq!(view.file_count(), 2);
    }

    #[test]
    fn inode_numbers_begin_with_1() {
        let view = example();
        assert_eq!(view.by_inode(0), None);
        assert_eq!(view.by_inode(1).unwrap().0, 0);
        assert_eq!(&*view.by_inode(6).unwrap().1.name, b"c");
        assert_eq!(view.by_inode(7), None);
        assert_eq!(view.by_inode(u64::MAX), None);
    }

    #[test]
    fn links_of_directories_are_counted() {
        let view = example();
        assert_eq!(view.link_count(0), 3);
        assert_eq!(view.link_count(1), 3);
        assert_eq!(view.link_count(3), 2);
        assert_eq!(view.link_count(4), 1);
    }

    #[test]
    fn blocks_cover_the_contents() {
        let view = example();
        assert_eq!(view.blocks(1), 0..0);
        assert_eq!(view.blocks(2), 0..1);
        // The file does not begin at the start of a block.
        assert_eq!(view.blocks(4), 0..4);
        assert_eq!(blocks_of(&(0..BLOCK_LEN)), 0..1);
        assert_eq!(blocks_of(&(BLOCK_LEN..BLOCK_LEN + 1)), 1..2);
        assert_eq!(blocks_of(&(5..5)), 0..0);
        assert_eq!(block_count(BLOCK_LEN + 1), 2);
        assert_eq!(bytes_of(&(1..2), BLOCK_LEN + 1), BLOCK_LEN..BLOCK_LEN + 1);
    }

    #[test]
    fn times_before_1970_are_kept() {
        let time = system_time(Mtime::parse("-2.250000000").unwrap());
        let before = UNIX_EPOCH.duration_since(time).unwrap();
        assert_eq!(before, Duration::from_millis(1750));
        let huge = system_time(Mtime::parse("9223372036854775807").unwrap());
        assert!(huge >= UNIX_EPOCH);
    }

    proptest! {
        #[test]
        fn every_name_is_found(names in prop::collection::btree_set("[a-z]{1,3}", 0..50)) {
            let time = Mtime::default();
            let mut tree = Builder::new(0o755, time);
            for name in &names {
                tree.file(name.as_bytes(), 0o644, time, 0, None).unwrap();
            }
            tree.leave().unwrap();
            let view = View::new(tree.finish().unwrap()).unwrap();
            for (at, name) in names.iter().enumerate() {
                prop_assert_eq!(view.lookup(0, name.as_bytes()), Some(at + 1));
            }
            prop_assert_eq!(view.lookup(0, b"A"), None);
            prop_assert_eq!(view.lookup(0, b"zzzz"), None);
        }
    }
}
