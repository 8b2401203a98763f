//! The merge of repositories such as `.git`, and of the work trees around them.
//!
//! # Rules
//!
//! The units in a directory (see [`repository`](crate::repository)) have one decision:
//!
//! | ours | theirs | the unit afterwards |
//! |---|---|---|
//! | unchanged | any | theirs as a whole, or removed |
//! | changed | unchanged | ours as a whole, or removed |
//! | changed | removed | ours as a whole, with its work tree |
//! | removed | changed | theirs as a whole, with its work tree |
//! | changed | changed | ours, and theirs as a conflict copy |
//!
//! * A side has changed a unit if any entry in it differs both from the base and from the other
//!   side. So what a pull that was killed has left does not count as a change. Indexes of git with
//!   the same [fingerprint](crate::GitIndex::fingerprint) are the same.
//! * If both sides have changed a unit, our work tree stays as it is, too: otherwise files of their
//!   work tree would look like changes of our work tree, and our next commit would contain these
//!   files. Files of their work tree that their repository has are not copied. Other files become
//!   conflict copies if git tracks them on either side; otherwise they are merged by path.
//! * A git repository with another name than `.git` has a decision of its own.
//! * A work tree with a file or link `.git` belongs to the unit that `.git` [names](links): a
//!   submodule, a work tree of `git worktree`, or a repository with another name.

use std::collections::{BTreeMap, HashSet};

use super::{Node, is_directory, is_same};
use crate::GitIndex;
use crate::entries::{Entries, Entry, Kind, Mtime};
use crate::repository::{Contents, GIT, Unit, digest, is_git, mark};

mod links;
#[cfg(test)]
mod tests;

/// How the decision about a path is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// By the table of paths.
    Path,
    /// Ours stays, or stays absent.
    Ours,
    /// Theirs is taken, or ours removed. `is_last`: after the others, because it refers to them.
    Theirs { is_last: bool },
    /// Ours stays, and theirs is copied with all entries below.
    Copy,
    /// Ours stays. Theirs is taken where ours has nothing, else copied.
    Beside,
}

/// The number of the directory that has units, and the number of the unit if it is a conflict copy,
/// or has another name than those of repositories.
type Key = (usize, Option<usize>);

/// The units of one directory.
#[derive(Debug, Default)]
struct Group {
    /// Numbers of the units' nodes.
    tops: Vec<usize>,
    /// Numbers of all nodes, the tops included.
    members: Vec<usize>,
}

/// Sets the rules of the nodes of repositories and of their work trees. Returns the files of their
/// tree that are in doubt because `contents` does not have them.
pub(super) fn apply<'a>(
    nodes: &mut [Node<'a>],
    trees: [&'a Entries; 2],
    contents: &'a Contents,
) -> Vec<usize> {
    let groups = groups(nodes);
    let mut conflicts = BTreeMap::new();
    for (key, group) in &groups {
        if group.decide(nodes, key.0, contents) {
            conflicts.insert(*key, group);
        }
    }
    if conflicts.is_empty() {
        return Vec::new();
    }
    let paths = paths(nodes, trees, &groups);
    let mut trees = WorkTrees::new(nodes, trees, contents, &conflicts, paths);
    trees.apply();
    trees.doubtful
}

/// Returns the path of the work tree whose file or symbolic link `.git` names this repository.
#[must_use]
pub fn work_tree(entries: &Entries, unit: usize, contents: &Contents) -> Option<Vec<u8>> {
    let path = entries.path(unit);
    let own_name = &*entries.get(unit)?.name;
    let all = entries.list().iter().enumerate();
    let mut links = all.filter(|(_, entry)| *entry.name == *GIT);
    links.find_map(|(index, entry)| {
        let link = match &entry.kind {
            Kind::File { .. } => contents.text(entries, index)?.as_bytes(),
            Kind::Symlink { target } => target,
            Kind::Directory { .. } => return None,
        };
        let directory = entries.path(index);
        let directory = directory.strip_suffix(GIT)?;
        // Other names belong to additional work trees and submodules.
        let mut names = link.trim_ascii_end().rsplit(|byte| *byte == b'/');
        let last = names.find(|name| !name.is_empty())?;
        let last = last.strip_prefix(b"gitdir: ").unwrap_or(last);
        let is_its = last == own_name;
        let found = is_its.then(|| links::named(link, directory, [(path.clone(), ())]));
        let directory = directory.strip_suffix(b"/").unwrap_or(directory);
        found.flatten().map(|()| directory.to_vec())
    })
}

/// Returns for each node whether it is a git repository on any side.
fn git_directories(nodes: &[Node<'_>]) -> Vec<bool> {
    let mut marks = vec![[0; 3]; nodes.len()];
    for node in nodes.iter().skip(1) {
        let sides = [node.base, node.ours(), node.theirs()];
        for (marks, entry) in marks[node.parent].iter_mut().zip(sides) {
            *marks |= entry.map_or(0, mark);
        }
    }
    let is_any = |marks: &[u8; 3]| marks.iter().any(|marks| is_git(*marks));
    // The root is the whole tree.
    let found = marks.iter().enumerate();
    found
        .map(|(number, marks)| number > 0 && is_any(marks))
        .collect()
}

/// Returns the paths of the units.
fn paths(
    nodes: &[Node<'_>],
    [ours, theirs]: [&Entries; 2],
    groups: &BTreeMap<Key, Group>,
) -> Vec<(Vec<u8>, Key)> {
    let tops = groups
        .iter()
        .flat_map(|(key, group)| group.tops.iter().map(|top| (*key, *top)));
    let path = |top: usize| match (nodes[top].ours, nodes[top].theirs) {
        (Some((index, _)), _) => Some(ours.path(index)),
        (None, Some((index, _))) => Some(theirs.path(index)),
        (None, None) => None,
    };
    tops.filter_map(|(key, top)| Some((path(top)?, key)))
        .collect()
}

/// Returns the units.
fn groups(nodes: &[Node<'_>]) -> BTreeMap<Key, Group> {
    let mut groups: BTreeMap<_, Group> = BTreeMap::new();
    let is_git = git_directories(nodes);
    // The group of each node.
    let mut keys: Vec<Option<Key>> = vec![None; nodes.len()];
    for (number, node) in nodes.iter().enumerate().skip(1) {
        keys[number] = keys[node.parent];
        let is_top = keys[number].is_none();
        if is_top && node.has_directory() {
            keys[number] = Unit::of(node.name()).map(|unit| match unit {
                Unit::Repository => (node.parent, None),
                Unit::Copy => (node.parent, Some(number)),
            });
            if keys[number].is_none() && is_git[number] {
                keys[number] = Some((node.parent, Some(number)));
            }
        }
        if let Some(key) = keys[number] {
            let group = groups.entry(key).or_default();
            group.members.push(number);
            if is_top {
                group.tops.push(number);
            }
        }
    }
    groups
}

impl Node<'_> {
    fn name(&self) -> &[u8] {
        let entry = self.ours().or(self.theirs()).or(self.base);
        entry.map(|entry| &*entry.name).unwrap_or_default()
    }

    /// Returns whether any tree has a directory here.
    fn has_directory(&self) -> bool {
        is_directory(self.base) || is_directory(self.ours()) || is_directory(self.theirs())
    }
}

impl Group {
    /// Sets the rules of the nodes. Returns whether both sides have changed the units.
    fn decide(&self, nodes: &mut [Node<'_>], directory: usize, contents: &Contents) -> bool {
        let has_changes = |is_ours: bool| {
            self.members.iter().any(|number| {
                let node = &nodes[*number];
                let (side, other) = match is_ours {
                    true => (node.ours(), node.theirs()),
                    false => (node.theirs(), node.ours()),
                };
                !contents.is_same(side, node.base) && !contents.is_same(side, other)
            })
        };
        let mut tops = self.tops.iter().map(|top| &nodes[*top]);
        let is_ours_there = tops.any(|top| top.ours.is_some());
        let mut tops = self.tops.iter().map(|top| &nodes[*top]);
        let is_theirs_there = tops.any(|top| top.theirs.is_some());
        match (has_changes(true), has_changes(false)) {
            (false, _) => self.take(nodes),
            (true, false) => self.keep(nodes),
            (true, true) if !is_theirs_there => {
                self.keep(nodes);
                if nodes[directory].theirs.is_none() {
                    forget_base(nodes, directory);
                }
            }
            (true, true) if !is_ours_there => {
                self.take(nodes);
                if nodes[directory].ours.is_none() {
                    forget_base(nodes, directory);
                }
            }
            (true, true) => {
                self.copy(nodes, contents);
                return true;
            }
        }
        false
    }

    fn keep(&self, nodes: &mut [Node<'_>]) {
        for number in &self.members {
            nodes[*number].rule = Rule::Ours;
        }
    }

    fn take(&self, nodes: &mut [Node<'_>]) {
        // Whether a node is an object, which refers to nothing outside of the objects.
        let mut objects = BTreeMap::new();
        for number in &self.members {
            let node = &nodes[*number];
            let is_object = objects.get(&node.parent).copied().unwrap_or_default()
                || is_directory(node.theirs()) && node.name() == b"objects";
            objects.insert(*number, is_object);
            let is_last = !node.has_directory() && !is_object;
            nodes[*number].rule = Rule::Theirs { is_last };
        }
    }

    fn copy(&self, nodes: &mut [Node<'_>], contents: &Contents) {
        self.keep(nodes);
        // A unit of the same group that is the same on both sides needs no copy.
        let mut tops = BTreeMap::new();
        for number in &self.members {
            let node = &nodes[*number];
            let top = tops.get(&node.parent).copied().unwrap_or(*number);
            tops.insert(*number, top);
            let is_copied = nodes[top].theirs.is_some();
            if is_copied && !contents.is_same(node.ours(), node.theirs()) {
                nodes[top].rule = Rule::Copy;
            }
        }
    }
}

/// Lets a directory that one side has removed be taken as a whole from the other side.
fn forget_base(nodes: &mut [Node<'_>], directory: usize) {
    nodes[directory].base = None;
    // The entries below a directory follow it.
    let below = nodes.iter_mut().skip(directory + 1);
    for node in below.take_while(|node| node.parent >= directory) {
        node.base = None;
    }
}

/// The directories around repositories that both sides have changed.
struct WorkTrees<'a, 'n> {
    nodes: &'n mut [Node<'a>],
    trees: [&'a Entries; 2],
    contents: &'a Contents,
    /// Paths of all units.
    paths: Vec<(Vec<u8>, Key)>,
    /// What those know that are in conflict.
    known: BTreeMap<Key, Tracked<'a>>,
    /// Files of their tree whose contents decide, and are not known.
    doubtful: Vec<usize>,
}

/// What the repositories of a group know about its work trees.
struct Tracked<'a> {
    /// Indexes of both sides. `None`: any file may be tracked.
    indexes: Option<[Option<&'a GitIndex>; 2]>,
    /// Time of their index.
    written_at: Mtime,
    /// Their indexes of submodules and additional work trees, and the times of these indexes.
    others: Vec<(&'a GitIndex, Mtime)>,
    has_worktrees: bool,
    /// SHA-256 of the contents that their repository has in a file with this name, as Git LFS
    /// stores them.
    large: HashSet<[u8; 32]>,
}

/// The work tree that a directory is.
#[derive(Debug, Clone, Copy)]
struct Owner {
    /// Number of the directory of the work tree.
    root: usize,
    /// The repository, if it is in conflict.
    group: Option<Key>,
    /// Whether `.git` is a file, which names the repository.
    is_linked: bool,
}

impl<'a, 'n> WorkTrees<'a, 'n> {
    fn new(
        nodes: &'n mut [Node<'a>],
        trees: [&'a Entries; 2],
        contents: &'a Contents,
        conflicts: &BTreeMap<Key, &Group>,
        paths: Vec<(Vec<u8>, Key)>,
    ) -> Self {
        let known = conflicts
            .iter()
            .map(|(key, group)| (*key, Tracked::new(nodes, group, contents)));
        let known = known.collect();
        Self {
            nodes,
            trees,
            contents,
            paths,
            known,
            doubtful: Vec::new(),
        }
    }

    fn apply(&mut self) {
        // The number of the file or link that names the repository.
        let mut roots: BTreeMap<usize, Option<usize>> = BTreeMap::new();
        for (number, node) in self.nodes.iter().enumerate().skip(1) {
            if Unit::of(node.name()) == Some(Unit::Repository) && node.rule == Rule::Path {
                roots.insert(node.parent, Some(number));
            } else if Unit::of(node.name()) == Some(Unit::Repository) {
                roots.entry(node.parent).or_insert(None);
            }
        }
        let mut owners: Vec<Option<Owner>> = vec![None; self.nodes.len()];
        for number in 0..self.nodes.len() {
            let above = owners[self.nodes[number].parent];
            if let Some(rule) = self.rule(number, above) {
                self.nodes[number].rule = rule;
            }
            // The owner of the entries of a directory.
            owners[number] = match roots.get(&number) {
                Some(link) => Some(self.owner(number, *link, above)),
                None => above,
            };
        }
    }

    /// Returns the owner of a directory. `link`: the number of the file or link in it that names
    /// the repository.
    fn owner(&self, root: usize, link: Option<usize>, above: Option<Owner>) -> Owner {
        let mut with_worktrees = self
            .known
            .iter()
            .filter(|(key, known)| key.1.is_none() && known.has_worktrees);
        let named = link.map(|link| self.named(link));
        let group = match (named, above) {
            (None, _) => Some((root, None)),
            (Some(Some(named)), _) => Some(named),
            (Some(None), Some(above)) => above.group,
            (Some(None), None) => with_worktrees.next().map(|(key, _)| *key),
        };
        Owner {
            root,
            group: group.filter(|key| self.known.contains_key(key)),
            is_linked: link.is_some(),
        }
    }

    /// Returns the unit that a file or link names.
    fn named(&self, link: usize) -> Option<Key> {
        let node = &self.nodes[link];
        let (tree, (_, entry)) = match (node.ours, node.theirs) {
            (Some(ours), _) => (0, ours),
            (None, Some(theirs)) => (1, theirs),
            (None, None) => return None,
        };
        let text = self.contents.link(entry)?;
        let directory = self.trees[tree].path(entry.parent);
        links::named(text, &directory, self.paths.iter().cloned())
    }

    /// Returns the rule for a node in a work tree.
    fn rule(&mut self, number: usize, owner: Option<Owner>) -> Option<Rule> {
        let owner = owner?;
        let tracked = self.known.get(&owner.group?)?;
        let node = self
            .nodes
            .get(number)
            .filter(|node| node.rule == Rule::Path)?;
        if Unit::of(node.name()) == Some(Unit::Copy) {
            return None;
        }
        let path = |tree: usize, index: usize, root: &Node<'_>| {
            let root = [root.ours, root.theirs][tree].map(|(root, _)| root);
            let len = self.trees[tree].path(root.unwrap_or_default()).len();
            let path = self.trees[tree].path(index);
            path[len + usize::from(len > 0)..].to_vec()
        };
        let root = &self.nodes[owner.root];
        let relative = match (node.ours, node.theirs) {
            (Some((index, _)), _) => path(0, index, root),
            (None, Some((index, _))) => path(1, index, root),
            _ => return Some(Rule::Ours),
        };
        let is_in_theirs = node.theirs.is_some_and(|(index, theirs)| {
            let is_known = is_same(node.base, Some(theirs)) || is_same(node.ours(), Some(theirs));
            let has = tracked.has(owner, &relative, theirs, self.contents);
            if has.is_none() && !is_known {
                self.doubtful.push(index);
            }
            has.unwrap_or(is_known)
        });
        let is_untracked = !owner.is_linked && tracked.ignores(&relative);
        Some(if is_in_theirs || owner.is_linked && relative == GIT {
            Rule::Ours
        } else if is_untracked && !node.has_directory() {
            Rule::Path
        } else {
            Rule::Beside
        })
    }
}

impl<'a> Tracked<'a> {
    fn new(nodes: &[Node<'a>], group: &Group, contents: &'a Contents) -> Self {
        let is_git = |number: &usize| nodes[*number].name() == GIT;
        let git = group.tops.iter().copied().find(is_git);
        let indexes = group
            .members
            .iter()
            .filter(|number| nodes[**number].name() == b"index");
        let mut main = None;
        let mut others = Vec::new();
        for number in indexes {
            let node = &nodes[*number];
            let theirs = node.theirs();
            let written_at = theirs.map(|entry| entry.mtime).unwrap_or_default();
            if Some(node.parent) == git {
                main = Some((node, written_at));
            } else if let Some(index) = theirs.and_then(|entry| contents.index(entry)) {
                others.push((index, written_at));
            }
        }
        // A repository without an index has no files. One that cannot be read may have any.
        let index = |entry: Option<&Entry>| match entry {
            None => Some(None),
            Some(entry) => contents.index(entry).map(Some),
        };
        let (node, written_at) = main.unzip();
        let indexes = match (
            index(node.and_then(Node::ours)),
            index(node.and_then(Node::theirs)),
        ) {
            // The other systems have lists of their own.
            (Some(ours), Some(theirs)) if group.tops.iter().all(is_git) => Some([ours, theirs]),
            _ => None,
        };
        let is_worktrees = |number: &usize| {
            nodes[*number].name() == b"worktrees" && Some(nodes[*number].parent) == git
        };
        Self {
            indexes,
            written_at: written_at.unwrap_or_default(),
            others,
            has_worktrees: group.members.iter().any(is_worktrees),
            large: group
                .members
                .iter()
                .filter_map(|number| large(&nodes[*number]))
                .collect(),
        }
    }

    /// Returns whether their repository certainly has this version of a file or link. Returns
    /// `None` if that depends on contents that are not known.
    ///
    /// A program that sets the time of a file, such as `cp --preserve`, can hide a change from the
    /// index, so the contents are compared. Those that a filter of git has changed are in doubt.
    fn has(&self, owner: Owner, path: &[u8], entry: &Entry, contents: &Contents) -> Option<bool> {
        let size = match &entry.kind {
            Kind::Directory { .. } => return Some(false),
            Kind::File { size, .. } => *size,
            Kind::Symlink { target } => target.len() as u64,
        };
        let main = self.indexes.and_then(|[_, theirs]| theirs);
        let main = main.map(|index| (index, self.written_at));
        let indexes = main
            .iter()
            .filter(|_| !owner.is_linked)
            .chain(self.others.iter().filter(|_| owner.is_linked));
        let blobs = indexes
            .filter_map(|(index, written_at)| index.blob(path, size, entry.mtime, *written_at));
        let is_large = digest(entry).is_some_and(|digest| self.large.contains(&digest));
        let mut has = Some(false);
        for blob in blobs {
            match contents.is_blob(entry, &blob) {
                _ if is_large => return Some(true),
                Some(true) => return Some(true),
                Some(false) => {}
                None => has = None,
            }
        }
        has
    }

    /// Returns whether neither repository knows a file.
    fn ignores(&self, path: &[u8]) -> bool {
        self.indexes.is_some_and(|indexes| {
            let mut indexes = indexes.into_iter().flatten();
            !indexes.any(|index| index.has(path))
        })
    }
}

/// Returns the SHA-256 of their file, if it is its name.
fn large(node: &Node<'_>) -> Option<[u8; 32]> {
    let entry = node.theirs().filter(|entry| entry.name.len() == 64)?;
    let digest = digest(entry)?;
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    (hex.as_bytes() == &*entry.name).then_some(digest)
}
