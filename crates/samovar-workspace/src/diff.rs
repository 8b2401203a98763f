//! Differences between two trees.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use crate::entries::{Entries, Entry, Kind};
use crate::walk::Walk;

#[cfg(test)]
mod tests;

/// A difference between two trees at one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Path relative to the root, with `/` between the names; empty for the root.
    pub path: Vec<u8>,
    /// Kind of the difference.
    pub kind: ChangeKind,
    /// Index in the base. `None` for [`ChangeKind::Added`].
    pub old: Option<usize>,
    /// Index in the new tree. `None` for [`ChangeKind::Removed`].
    pub new: Option<usize>,
}

/// Kind of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChangeKind {
    /// The base does not have the entry.
    Added,
    /// The new tree does not have the entry.
    Removed,
    /// The contents of a file or the target of a link differ. A file whose digest is not known
    /// counts as modified. Mode and time may differ too.
    Modified,
    /// A file, directory or link is replaced by another type of entry. The entries below a
    /// directory are changes of their own.
    TypeChanged,
    /// The mode differs, and perhaps the time, but not the contents.
    ModeChanged,
    /// Only the time of the last modification differs.
    Touched,
    /// A directory has another path. Contents, links and modes below it are the same, times may
    /// differ; the entries below it are no changes of their own. `old` has the previous path.
    Renamed,
}

/// Counts of changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Number of entries added.
    pub added: usize,
    /// Number of entries removed.
    pub removed: usize,
    /// Number of entries modified.
    pub modified: usize,
    /// Number of entries replaced by another type.
    pub type_changed: usize,
    /// Number of entries with another mode.
    pub mode_changed: usize,
    /// Number of entries with only another time.
    pub touched: usize,
    /// Number of directories renamed. The entries below them are not counted.
    pub renamed: usize,
    /// Length of the files removed and of the previous contents of the others, in bytes.
    pub old_bytes: u64,
    /// Length of the files added and of the new contents of the others, in bytes.
    pub new_bytes: u64,
}

impl Summary {
    /// Counts the changes between these trees.
    #[must_use]
    pub fn new(changes: &[Change], base: &Entries, new: &Entries) -> Self {
        let mut summary = Self::default();
        for change in changes {
            let count = match change.kind {
                ChangeKind::Added => &mut summary.added,
                ChangeKind::Removed => &mut summary.removed,
                ChangeKind::Modified => &mut summary.modified,
                ChangeKind::TypeChanged => &mut summary.type_changed,
                ChangeKind::ModeChanged => &mut summary.mode_changed,
                ChangeKind::Touched => &mut summary.touched,
                ChangeKind::Renamed => &mut summary.renamed,
            };
            *count += 1;
            if change.kind.changes_data() {
                summary.old_bytes += size(base, change.old);
                summary.new_bytes += size(new, change.new);
            }
        }
        summary
    }
}

impl ChangeKind {
    fn changes_data(self) -> bool {
        match self {
            Self::Added | Self::Removed | Self::Modified | Self::TypeChanged => true,
            Self::ModeChanged | Self::Touched | Self::Renamed => false,
        }
    }
}

fn size(entries: &Entries, index: Option<usize>) -> u64 {
    let entry = index.and_then(|index| entries.get(index));
    match entry.map(|entry| &entry.kind) {
        Some(Kind::File { size, .. }) => *size,
        _ => 0,
    }
}

/// Returns the differences between two trees in the order of a NAR.
///
/// A directory that is removed while a directory with the same entries is added is
/// [`Renamed`](ChangeKind::Renamed). Renames of single files are not detected.
#[must_use]
pub fn diff(base: &Entries, new: &Entries) -> Vec<Change> {
    let pairs = Walk::new([base, new]).filter_map(|[old, new_index]| {
        let old_entry = old.and_then(|old| base.get(old));
        let new_entry = new_index.and_then(|index| new.get(index));
        Some((compare(old_entry, new_entry)?, old, new_index))
    });
    let pairs: Vec<_> = pairs.collect();
    let renames = Renames::new(&pairs, base, new);
    let changes = pairs.into_iter().filter_map(|(kind, old, new_index)| {
        let (kind, old) = match (kind, old, new_index) {
            (ChangeKind::Removed, Some(old), _) if renames.has_old(old) => return None,
            (ChangeKind::Added, _, Some(index)) => match renames.new_range(index) {
                Some((start, old)) if start == index => (ChangeKind::Renamed, Some(old)),
                Some(_) => return None,
                None => (kind, None),
            },
            _ => (kind, old),
        };
        let path = match new_index {
            Some(index) => new.path(index),
            None => base.path(old?),
        };
        Some(Change {
            path,
            kind,
            old,
            new: new_index,
        })
    });
    changes.collect()
}

/// Returns the difference between entries with the same path, or `None` if they are the same.
fn compare(old: Option<&Entry>, new: Option<&Entry>) -> Option<ChangeKind> {
    let (old, new) = match (old, new) {
        (Some(old), Some(new)) => (old, new),
        (Some(_), None) => return Some(ChangeKind::Removed),
        (None, Some(_)) => return Some(ChangeKind::Added),
        (None, None) => return None,
    };
    if !old.has_same_type(new) {
        Some(ChangeKind::TypeChanged)
    } else if !old.has_same_data(new) {
        Some(ChangeKind::Modified)
    } else if old.mode != new.mode {
        Some(ChangeKind::ModeChanged)
    } else {
        (old.mtime != new.mtime).then_some(ChangeKind::Touched)
    }
}

/// Directories that were renamed. Each range has the indices of a directory and of all entries
/// below it.
#[derive(Debug, Default)]
struct Renames {
    /// Start and end of each range of the base.
    old: BTreeMap<usize, usize>,
    /// Start of each range of the new tree, with its end and the directory in the base.
    new: BTreeMap<usize, (usize, usize)>,
}

impl Renames {
    fn new(
        pairs: &[(ChangeKind, Option<usize>, Option<usize>)],
        base: &Entries,
        new: &Entries,
    ) -> Self {
        let removed = pairs.iter().filter(|pair| pair.0 == ChangeKind::Removed);
        let removed = removed.filter_map(|pair| directory(base, pair.1?));
        let added = pairs.iter().filter(|pair| pair.0 == ChangeKind::Added);
        let mut added = added.filter_map(|pair| directory(new, pair.2?)).peekable();
        let mut renames = Self::default();
        let mut removed = removed.peekable();
        if added.peek().is_none() || removed.peek().is_none() {
            return renames;
        }
        let hashes = hashes(base);
        // The last of the ranges with the same hash is the first in the tree.
        let mut by_hash: HashMap<u64, Vec<Range<usize>>> = HashMap::new();
        let removed: Vec<_> = removed.collect();
        for range in removed.into_iter().rev() {
            by_hash.entry(hashes[range.start]).or_default().push(range);
        }
        let hashes = self::hashes(new);
        for range in added {
            if renames.new_range(range.start).is_some() {
                continue;
            }
            let mut candidates = by_hash.get_mut(&hashes[range.start]);
            // A candidate that is refused cannot match another directory either.
            while let Some(old) = candidates.as_mut().and_then(|candidates| candidates.pop()) {
                let before = renames.old.range(..old.end).next_back();
                let is_free = before.is_none_or(|(_, end)| *end <= old.start);
                if is_free && is_same(base, &old, new, &range) {
                    renames.new.insert(range.start, (range.end, old.start));
                    renames.old.insert(old.start, old.end);
                    break;
                }
            }
        }
        renames
    }

    /// Returns whether an entry of the base belongs to a renamed directory.
    fn has_old(&self, index: usize) -> bool {
        let range = self.old.range(..=index).next_back();
        range.is_some_and(|(_, end)| index < *end)
    }

    /// Returns the renamed directory to which an entry of the new tree belongs: its index, and its
    /// index in the base.
    fn new_range(&self, index: usize) -> Option<(usize, usize)> {
        let range = self.new.range(..=index).next_back();
        let (start, (_, old)) = range.filter(|(_, (end, _))| index < *end)?;
        Some((*start, *old))
    }
}

/// Returns the range of a directory that is not empty.
fn directory(entries: &Entries, index: usize) -> Option<Range<usize>> {
    match entries.get(index)?.kind {
        Kind::Directory { end } if end > index + 1 => Some(index..end),
        _ => None,
    }
}

/// Returns a hash of each entry, with all entries below it, without names and times of its own.
fn hashes(entries: &Entries) -> Vec<u64> {
    let list = entries.list();
    let mut hashes = vec![0; list.len()];
    for (index, entry) in list.iter().enumerate().rev() {
        let mut hasher = DefaultHasher::new();
        // The hash of a directory's entries.
        hashes[index].hash(&mut hasher);
        entry.mode.hash(&mut hasher);
        match &entry.kind {
            Kind::Directory { .. } => {}
            Kind::File { size, digest, .. } => (size, digest).hash(&mut hasher),
            Kind::Symlink { target } => target.hash(&mut hasher),
        }
        hashes[index] = hasher.finish();
        if index > 0 {
            let mut hasher = DefaultHasher::new();
            (hashes[entry.parent], &entry.name, hashes[index]).hash(&mut hasher);
            hashes[entry.parent] = hasher.finish();
        }
    }
    hashes
}

/// Returns whether directories are the same except for their names and all times.
fn is_same(base: &Entries, old: &Range<usize>, new: &Entries, range: &Range<usize>) -> bool {
    let (old, new) = (&base.list()[old.clone()], &new.list()[range.clone()]);
    let depth = |list: &[Entry], entry: &Entry| entry.depth - list[0].depth;
    old.len() == new.len()
        && old.iter().zip(new).enumerate().all(|(at, (a, b))| {
            (at == 0 || a.name == b.name)
                && depth(old, a) == depth(new, b)
                && a.mode == b.mode
                && a.has_same_data(b)
        })
}
