//! Three-way merges of trees.
//!
//! # Rules
//!
//! The base is the last common state of both sides. `A`, `B` and `C` stand for different contents,
//! targets or types of an entry, `dir` for a directory, `-` for no entry.
//!
//! | base | ours | theirs | our directory afterwards |
//! |---|---|---|---|
//! | `A` | `A` | `B` | `B`: theirs replaces ours |
//! | `A` | `A` | `-` | `-`: the entry is removed |
//! | `A` | `B` | `A` | `B` |
//! | `A` | `-` | `A` | `-` |
//! | `A` or `-` | `B` | `B` | `B`: both made the same change |
//! | `A` or `-` | `B` | `C` | `B`, and `C` as a conflict copy |
//! | `A` | `-` | `B` | `B`: the change wins against the removal |
//! | `A` | `B` | `-` | `B`: the change wins against the removal |
//! | `-` | `-` | `A` | `A` |
//! | `-` | `A` | `-` | `A` |
//! | any | `dir` | `dir` | `dir`: its entries are merged |
//! | `dir` | `dir` | `-` | `-`; or, if any of our entries stay, `dir` with these entries |
//! | `dir` | `dir` | `A` | `A`; or, if any of our entries stays, `dir` as it is and `A` as a conflict copy |
//! | `dir` | `-` | `dir` | `-`, or `dir` with the entries that theirs has added or changed |
//! | `dir` | `A` | `dir` | `A`, and a conflict copy of `dir` if theirs has added or changed entries in it |
//!
//! * **Conflict copy**: theirs, with all entries below it, as `NAME.conflict-LABEL`, a name that
//!   neither side has. The caller chooses the label: host and date.
//! * **Mode**: theirs, unless ours has another mode than the base. A changed mode wins against a
//!   removal. Different modes of both sides are no conflict.
//! * **Time**: from the side whose contents are taken. If neither side changed the contents:
//!   theirs, unless ours has another time than the base. A changed time does not count as a change.
//! * Files whose digest is not known count as changed.
//! * **Repositories** such as `.git` are merged as a whole, by the rules of `repositories`.

use std::collections::{HashMap, HashSet};

use crate::entries::{Entries, Entry, Kind, Mtime};
use crate::repository::Contents;
use crate::walk::Walk;

mod begun;
mod repositories;
#[cfg(test)]
mod tests;

pub use begun::advanced;
use repositories::Rule;
pub use repositories::work_tree;

/// Length of the longest name of a file, in bytes.
const NAME_MAX: usize = 255;

/// Length of the longest label that is used in full, in bytes.
const LABEL_MAX: usize = 128;

/// A change of our directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Action {
    /// Path relative to the root, with `/` between the names; empty for the root.
    pub path: Vec<u8>,
    /// Kind of the change.
    pub kind: ActionKind,
}

/// Kind of a change of our directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActionKind {
    /// Removes a file, a link, or a directory that is empty by then.
    Remove {
        /// Index of the entry in our tree.
        ours: usize,
    },
    /// Creates an entry where nothing is, in a directory that exists. A directory is created
    /// empty; a [`Metadata`](Self::Metadata) sets its mode and time later.
    Create {
        /// Index of the entry in their tree.
        theirs: usize,
    },
    /// Replaces a file or link by a file or link.
    Replace {
        /// Index of the entry in our tree.
        ours: usize,
        /// Index of the entry in their tree.
        theirs: usize,
        /// Mode of the new file.
        mode: u16,
    },
    /// Like [`Create`](Self::Create), for the first entry of a conflict copy. The entries of a
    /// directory follow as `Create`.
    Conflict {
        /// Index of the entry in our tree that keeps its name.
        ours: usize,
        /// Index of the entry in their tree.
        theirs: usize,
    },
    /// Sets mode and time.
    Metadata {
        /// Permission bits. To be ignored for links.
        mode: u16,
        /// Time of the last modification.
        mtime: Mtime,
    },
}

/// Returns the changes that merge `theirs` into our directory, which has the entries `ours`. The
/// label becomes part of the names of conflict copies.
///
/// The changes must be made in this order: removals, deepest entries first; new entries and
/// contents, directories before their entries, and in repositories the objects before their names;
/// removals in repositories; modes and times of directories, deepest first. There
/// is a [`Metadata`](ActionKind::Metadata) for each directory in which entries are created, removed
/// or replaced, so a directory that is read-only may be writable until then.
#[must_use]
pub fn merge(base: &Entries, ours: &Entries, theirs: &Entries, label: &str) -> Vec<Action> {
    merge_with(base, ours, theirs, label, &Contents::default())
}

/// Returns the files of their tree that a merge needs as well: their index does not show for
/// certain that their repository has the contents. `contents` has what
/// [`wanted`](crate::repository::wanted) names.
#[must_use]
pub fn doubtful(
    base: &Entries,
    ours: &Entries,
    theirs: &Entries,
    contents: &Contents,
) -> Vec<usize> {
    let mut nodes = nodes(base, ours, theirs);
    repositories::apply(&mut nodes, [ours, theirs], contents)
}

/// Like [`merge`], with the contents of the files that [`wanted`](crate::repository::wanted) and
/// [`doubtful`] name. Files in doubt whose contents are missing become conflict copies.
#[must_use]
pub fn merge_with(
    base: &Entries,
    ours: &Entries,
    theirs: &Entries,
    label: &str,
    contents: &Contents,
) -> Vec<Action> {
    let mut nodes = nodes(base, ours, theirs);
    let _doubtful = repositories::apply(&mut nodes, [ours, theirs], contents);
    let mut merge = Merge {
        ours,
        theirs,
        nodes,
        label: clean(label),
        names: HashMap::new(),
        actions: Vec::new(),
    };
    merge.decide();
    merge.removals(false);
    let mut copied = merge.contents(false);
    copied.extend(merge.contents(true));
    merge.removals(true);
    merge.actions.extend(copied.into_iter().rev());
    merge.directories();
    merge.actions
}

/// What happens at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    /// Ours stays, or stays absent.
    Keep,
    /// Ours is removed.
    Remove,
    /// Theirs is created, or replaces ours.
    Take,
    /// Ours stays, and theirs is copied.
    Conflict,
    /// Nothing happens here: the path is excluded, or a directory above is in conflict.
    Skip,
}

/// A path that one of the trees has.
struct Node<'a> {
    base: Option<&'a Entry>,
    ours: Option<(usize, &'a Entry)>,
    theirs: Option<(usize, &'a Entry)>,
    /// Number of the directory's node.
    parent: usize,
    rule: Rule,
    decision: Decision,
    /// Whether one of our entries in the directory stays.
    keeps_ours: bool,
    /// Whether one of their entries in the directory is created.
    takes_theirs: bool,
    /// Whether entries of the directory are created, removed or replaced.
    is_changed: bool,
}

/// Returns the paths of all trees in the order of a NAR.
fn nodes<'a>(base: &'a Entries, ours: &'a Entries, theirs: &'a Entries) -> Vec<Node<'a>> {
    let mut nodes: Vec<Node<'a>> = Vec::new();
    // Number of the last node at each depth.
    let mut at_depth = Vec::new();
    for [in_base, in_ours, in_theirs] in Walk::new([base, ours, theirs]) {
        let find = |entries: &'a Entries, index: Option<usize>| {
            index.and_then(|index| Some((index, entries.get(index)?)))
        };
        let node = Node {
            base: find(base, in_base).map(|(_, entry)| entry),
            ours: find(ours, in_ours),
            theirs: find(theirs, in_theirs),
            parent: 0,
            rule: Rule::Path,
            decision: Decision::Keep,
            keeps_ours: false,
            takes_theirs: false,
            is_changed: false,
        };
        let entry = node.base.or(node.ours()).or(node.theirs());
        let depth = entry.map_or(0, |entry| entry.depth);
        at_depth.truncate(depth);
        let parent = at_depth.last().copied().unwrap_or_default();
        at_depth.push(nodes.len());
        nodes.push(Node { parent, ..node });
    }
    nodes
}

impl<'a> Node<'a> {
    fn ours(&self) -> Option<&'a Entry> {
        self.ours.map(|(_, entry)| entry)
    }

    fn theirs(&self) -> Option<&'a Entry> {
        self.theirs.map(|(_, entry)| entry)
    }

    /// Returns what happens here. The entries below must be decided.
    fn decide(&self) -> Decision {
        match (self.rule, self.ours(), self.theirs()) {
            (Rule::Path, ..) => self.decide_path(),
            (Rule::Ours, ..) | (Rule::Theirs { .. }, None, None) => Decision::Keep,
            (Rule::Theirs { .. }, Some(_), None) => Decision::Remove,
            (Rule::Theirs { .. }, Some(ours), Some(theirs)) if ours.has_same_data(theirs) => {
                Decision::Keep
            }
            (Rule::Theirs { .. }, _, Some(_)) => Decision::Take,
            (Rule::Copy, ..) => Decision::Conflict,
            (Rule::Beside, ..) => self.decide_beside(),
        }
    }

    /// Decides about a file that the repositories of both sides may know, while these are in
    /// conflict: ours is not changed.
    fn decide_beside(&self) -> Decision {
        let (base, ours, theirs) = (self.base, self.ours(), self.theirs());
        let is_empty = self.theirs.is_some_and(|(index, entry)| match entry.kind {
            Kind::Directory { end } => end == index + 1,
            _ => false,
        });
        let is_needed = self.takes_theirs || is_empty && !is_directory(base);
        match (ours, theirs) {
            (Some(_), Some(_)) if is_directory(theirs) && is_directory(ours) => Decision::Keep,
            (_, Some(_)) if is_directory(theirs) && !is_needed => Decision::Keep,
            (Some(_), None) if is_directory(ours) => self.decide_path(),
            (_, None) => Decision::Keep,
            (_, Some(_))
                if !is_directory(theirs) && (is_same(base, theirs) || is_same(ours, theirs)) =>
            {
                Decision::Keep
            }
            (None, Some(_)) => Decision::Take,
            (Some(_), Some(_)) => Decision::Conflict,
        }
    }

    /// Applies the table of the module.
    fn decide_path(&self) -> Decision {
        let (base, ours, theirs) = (self.base, self.ours(), self.theirs());
        match (is_directory(ours), is_directory(theirs)) {
            (true, true) => Decision::Keep,
            (true, false) if is_directory(base) => match theirs {
                None if self.keeps_ours || !has_same_mode(base, ours) => Decision::Keep,
                None => Decision::Remove,
                Some(_) if self.keeps_ours => Decision::Conflict,
                Some(_) => Decision::Take,
            },
            (false, true) if is_directory(base) => match ours {
                None if self.takes_theirs || !has_same_mode(base, theirs) => Decision::Take,
                Some(_) if self.takes_theirs => Decision::Conflict,
                _ => Decision::Keep,
            },
            _ if is_same(base, theirs) => match ours {
                None if !has_same_mode(base, theirs) => Decision::Take,
                _ => Decision::Keep,
            },
            _ if is_same(base, ours) => match theirs {
                None if !has_same_mode(base, ours) => Decision::Keep,
                None => Decision::Remove,
                Some(_) => Decision::Take,
            },
            _ if is_same(ours, theirs) => Decision::Keep,
            _ => match (ours, theirs) {
                (_, None) => Decision::Keep,
                (None, _) => Decision::Take,
                _ => Decision::Conflict,
            },
        }
    }

    /// Merges the modes, if all three entries have the same type.
    fn merged_mode(&self) -> Option<u16> {
        let (base, ours, theirs) = (self.base?, self.ours()?, self.theirs()?);
        let is_comparable = base.has_same_type(ours) && base.has_same_type(theirs);
        let is_changed = ours.mode != base.mode;
        is_comparable.then_some(if is_changed { ours.mode } else { theirs.mode })
    }

    /// Merges the times, if no side changed the contents.
    fn merged_mtime(&self) -> Option<Mtime> {
        let (base, ours, theirs) = (self.base?, self.ours()?, self.theirs()?);
        let is_comparable = base.has_same_data(ours) && base.has_same_data(theirs);
        let is_changed = ours.mtime != base.mtime;
        is_comparable.then_some(if is_changed { ours.mtime } else { theirs.mtime })
    }

    /// Returns mode and time of an entry of ours that stays.
    fn merged_metadata(&self, ours: &Entry) -> (u16, Mtime) {
        let mode = self.merged_mode().unwrap_or(ours.mode);
        (mode, self.merged_mtime().unwrap_or(ours.mtime))
    }
}

fn is_directory(entry: Option<&Entry>) -> bool {
    entry.is_some_and(|entry| matches!(entry.kind, Kind::Directory { .. }))
}

fn is_same(a: Option<&Entry>, b: Option<&Entry>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.has_same_data(b),
        (None, None) => true,
        _ => false,
    }
}

fn has_same_mode(a: Option<&Entry>, b: Option<&Entry>) -> bool {
    a.map(|entry| entry.mode) == b.map(|entry| entry.mode)
}

struct Merge<'a> {
    ours: &'a Entries,
    theirs: &'a Entries,
    nodes: Vec<Node<'a>>,
    /// End of the names of conflict copies.
    label: String,
    /// Names that conflict copies in a directory must not have, by the number of its node.
    names: HashMap<usize, HashSet<Vec<u8>>>,
    actions: Vec<Action>,
}

impl Merge<'_> {
    fn decide(&mut self) {
        for number in (0..self.nodes.len()).rev() {
            let node = &self.nodes[number];
            let decision = node.decide();
            let is_conflict = decision == Decision::Conflict;
            let keeps_ours = is_conflict || decision == Decision::Keep && node.ours.is_some();
            let takes_theirs = is_conflict || decision == Decision::Take;
            let parent = node.parent;
            let parent = &mut self.nodes[parent];
            parent.keeps_ours |= keeps_ours;
            parent.takes_theirs |= takes_theirs;
            self.nodes[number].decision = decision;
        }
        for number in 1..self.nodes.len() {
            let node = &self.nodes[number];
            let parent = self.nodes[node.parent].decision;
            let is_copied = matches!(parent, Decision::Conflict | Decision::Skip);
            if is_copied {
                self.nodes[number].decision = Decision::Skip;
            }
        }
    }

    /// Removes entries. `is_late`: those of repositories that are replaced, which are needed until
    /// the others are there.
    fn removals(&mut self, is_late: bool) {
        for number in (0..self.nodes.len()).rev() {
            let node = &self.nodes[number];
            let Some((ours, entry)) = node
                .ours
                .filter(|_| self.is_removed_late(number) == is_late)
            else {
                continue;
            };
            let is_removed = match node.decision {
                Decision::Remove => true,
                Decision::Take => is_directory(Some(entry)) || is_directory(node.theirs()),
                _ => false,
            };
            if is_removed {
                self.act(number, self.ours.path(ours), ActionKind::Remove { ours });
            }
        }
    }

    /// Returns whether an entry of a repository is removed after the new ones are there. Not if the
    /// repository is removed, or another type of entry takes the place of a directory above.
    fn is_removed_late(&self, number: usize) -> bool {
        let mut at = number;
        let mut decision = None;
        while let Rule::Theirs { .. } = self.nodes[at].rule {
            decision = Some(self.nodes[at].decision);
            if decision == Some(Decision::Take) {
                break;
            }
            at = self.nodes[at].parent;
        }
        decision == Some(Decision::Keep)
    }

    /// Creates and replaces entries. `is_late`: those of repositories that refer to others. Returns
    /// the metadata of the directories in conflict copies.
    fn contents(&mut self, is_late: bool) -> Vec<Action> {
        let mut copied = Vec::new();
        for number in 0..self.nodes.len() {
            let node = &self.nodes[number];
            if matches!(node.rule, Rule::Theirs { is_last: true }) != is_late {
                continue;
            }
            match (node.decision, node.ours, node.theirs) {
                (Decision::Take, ours, Some((theirs, entry))) => {
                    let path = self.theirs.path(theirs);
                    let mode = node.merged_mode().unwrap_or(entry.mode);
                    let is_replaced = ours.filter(|(_, entry)| {
                        !is_directory(Some(entry)) && !is_directory(node.theirs())
                    });
                    let kind = match is_replaced {
                        Some((ours, _)) => ActionKind::Replace { ours, theirs, mode },
                        None => ActionKind::Create { theirs },
                    };
                    self.act(number, path, kind);
                }
                (Decision::Conflict, ours, Some((theirs, entry))) => {
                    let name = self.conflict_name(node.parent, &entry.name);
                    let ours = ours.map(|(ours, _)| ours);
                    self.copy(number, ours, theirs, &name, &mut copied);
                }
                (Decision::Keep, Some((ours, entry)), _) if !is_directory(Some(entry)) => {
                    let (mode, mtime) = node.merged_metadata(entry);
                    if (mode, mtime) != (entry.mode, entry.mtime) {
                        let path = self.ours.path(ours);
                        let kind = ActionKind::Metadata { mode, mtime };
                        self.actions.push(Action { path, kind });
                    }
                }
                _ => {}
            }
        }
        copied
    }

    /// Creates a conflict copy of their entry. Adds the metadata of its directories.
    fn copy(
        &mut self,
        number: usize,
        ours: Option<usize>,
        theirs: usize,
        name: &[u8],
        metadata: &mut Vec<Action>,
    ) {
        let old_path = self.theirs.path(theirs);
        let list = self.theirs.list();
        let end = match list[theirs].kind {
            Kind::Directory { end } => end,
            _ => theirs + 1,
        };
        let mut new_path = old_path[..old_path.len() - list[theirs].name.len()].to_vec();
        new_path.extend_from_slice(name);
        for (index, entry) in list.iter().enumerate().take(end).skip(theirs) {
            let path = [&new_path, &self.theirs.path(index)[old_path.len()..]].concat();
            if is_directory(Some(entry)) {
                let (mode, mtime) = (entry.mode, entry.mtime);
                metadata.push(Action {
                    path: path.clone(),
                    kind: ActionKind::Metadata { mode, mtime },
                });
            }
            let kind = match ours.filter(|_| index == theirs) {
                Some(ours) => ActionKind::Conflict { ours, theirs },
                None => ActionKind::Create { theirs: index },
            };
            self.act(number, path, kind);
        }
    }

    /// Sets the metadata of directories.
    fn directories(&mut self) {
        for node in self.nodes.iter().rev() {
            let (index, tree, (mode, mtime)) = match (node.decision, node.ours, node.theirs) {
                (Decision::Take, _, Some((theirs, entry))) if is_directory(Some(entry)) => {
                    (theirs, self.theirs, (entry.mode, entry.mtime))
                }
                (Decision::Keep, Some((ours, entry)), _) if is_directory(Some(entry)) => {
                    let merged = node.merged_metadata(entry);
                    if merged == (entry.mode, entry.mtime) && !node.is_changed {
                        continue;
                    }
                    (ours, self.ours, merged)
                }
                _ => continue,
            };
            let path = tree.path(index);
            let kind = ActionKind::Metadata { mode, mtime };
            self.actions.push(Action { path, kind });
        }
    }

    /// Adds an action that changes the directory of a node.
    fn act(&mut self, number: usize, path: Vec<u8>, kind: ActionKind) {
        let parent = self.nodes[number].parent;
        self.nodes[parent].is_changed = true;
        self.actions.push(Action { path, kind });
    }

    /// Returns a name for a conflict copy that is free in the directory of this node.
    fn conflict_name(&mut self, directory: usize, name: &[u8]) -> Vec<u8> {
        let node = &self.nodes[directory];
        let names = self.names.entry(directory).or_insert_with(|| {
            let names = |tree: &Entries, index: Option<usize>| -> Vec<Vec<u8>> {
                let children = index.into_iter().flat_map(|index| tree.children(index));
                let entries = children.filter_map(|child| tree.get(child));
                entries.map(|entry| entry.name.to_vec()).collect()
            };
            let ours = names(self.ours, node.ours.map(|(index, _)| index));
            let theirs = names(self.theirs, node.theirs.map(|(index, _)| index));
            ours.into_iter().chain(theirs).collect()
        });
        let mut number = 1_usize;
        loop {
            let suffix = match number {
                1 => format!(".conflict-{}", self.label),
                _ => format!(".conflict-{}-{number}", self.label),
            };
            let mut candidate = shorten(name, NAME_MAX - suffix.len()).to_vec();
            candidate.extend_from_slice(suffix.as_bytes());
            if names.insert(candidate.clone()) {
                return candidate;
            }
            number += 1;
        }
    }
}

/// Returns the label without characters that a name may not have, and of limited length.
fn clean(label: &str) -> String {
    let mut label = label.replace(['/', '\0'], "-");
    label.truncate(label.floor_char_boundary(LABEL_MAX));
    label
}

/// Returns the beginning of a name, of at most `max` bytes. Does not split a character.
fn shorten(name: &[u8], max: usize) -> &[u8] {
    if name.len() <= max {
        return name;
    }
    let is_continuation = |byte: u8| byte & 0b1100_0000 == 0b1000_0000;
    // A character has at most three continuation bytes; other bytes are not UTF-8.
    let end = (max.saturating_sub(3)..=max)
        .rev()
        .find(|end| !is_continuation(name[*end]));
    &name[..end.unwrap_or(max)]
}
