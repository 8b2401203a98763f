//! Walks over several trees at once.

use crate::entries::{Entries, Kind};

/// Iterates over the paths of `N` trees in the order of a NAR. For each path that at least one tree
/// has, yields the index of the entry in each tree. The first path is the root.
#[derive(Debug, Clone)]
pub struct Walk<'a, const N: usize> {
    trees: [&'a Entries; N],
    /// Index of the next entry of each tree.
    next: [usize; N],
    /// For each open directory, its `end` in each tree; 0 if the tree has no directory there.
    open: Vec<[usize; N]>,
    is_started: bool,
}

impl<'a, const N: usize> Walk<'a, N> {
    /// Starts a walk over these trees.
    #[must_use]
    pub fn new(trees: [&'a Entries; N]) -> Self {
        Self {
            trees,
            next: [0; N],
            open: Vec::new(),
            is_started: false,
        }
    }

    /// Returns the trees that have the least of the next names, or `None` at the end of the
    /// innermost open directory.
    fn least(&self, ends: &[usize; N]) -> Option<[bool; N]> {
        let name = |tree: usize| {
            let is_inside = self.next[tree] < ends[tree];
            let entry = self.trees[tree].get(self.next[tree]);
            entry.filter(|_| is_inside).map(|entry| &*entry.name)
        };
        let least = (0..N).filter_map(name).min()?;
        Some(std::array::from_fn(|tree| name(tree) == Some(least)))
    }
}

impl<const N: usize> Iterator for Walk<'_, N> {
    type Item = [Option<usize>; N];

    fn next(&mut self) -> Option<Self::Item> {
        let present = loop {
            let Some(ends) = self.open.last() else {
                if std::mem::replace(&mut self.is_started, true) {
                    return None;
                }
                break [true; N];
            };
            match self.least(ends) {
                Some(present) => break present,
                None => self.open.pop(),
            };
        };
        let item: [Option<usize>; N] =
            std::array::from_fn(|tree| present[tree].then_some(self.next[tree]));
        let ends = std::array::from_fn(|tree| {
            self.next[tree] += usize::from(present[tree]);
            let entry = item[tree].and_then(|index| self.trees[tree].get(index));
            match entry.map(|entry| &entry.kind) {
                Some(Kind::Directory { end }) => *end,
                _ => 0,
            }
        });
        if ends != [0; N] {
            self.open.push(ends);
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::test_tree::{Tree, edited, tree};

    proptest! {
        #[test]
        fn a_walk_has_each_path_of_each_tree_once(a in tree(), b in tree(), c in edited(tree())) {
            let trees = [a, b, c.0, c.1];
            let entries = trees.each_ref().map(Tree::entries);
            let mut paths = Vec::new();
            let mut seen = [0; 4];
            for item in Walk::new(entries.each_ref()) {
                let mut path = None;
                for tree in 0..4 {
                    let Some(index) = item[tree] else { continue };
                    prop_assert_eq!(index, seen[tree]);
                    seen[tree] += 1;
                    let found = entries[tree].path(index);
                    prop_assert_eq!(path.get_or_insert(found.clone()), &found);
                }
                paths.push(path.unwrap());
            }
            let all: BTreeSet<_> = trees.iter().flat_map(|tree| tree.0.keys().cloned()).collect();
            let all: Vec<_> = all.iter().map(|path| path.join(&b'/')).collect();
            prop_assert_eq!(paths, all);
        }
    }
}
