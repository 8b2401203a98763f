//! Repositories of version control systems in a tree: which entries belong to them, and what these
//! contain.
//!
//! A *unit* is a directory such as `.git`. The files of a unit refer to each other, so files of one
//! side are useless together with files of another side. [`merge`](mod@crate::merge) takes a unit
//! as a whole. A git repository with another name, such as a bare one or one that a file `.git`
//! names, is recognized as a unit by its contents.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read};

use crate::entries::{Entries, Entry, Kind};
use crate::git_index::{GitIndex, ObjectName, blob_names};
use crate::walk::Walk;

#[cfg(test)]
mod tests;

/// Names of directories that are units.
const NAMES: [&[u8]; 4] = [GIT, b".hg", b".jj", b".svn"];

/// Name of a git repository in its work tree.
pub(crate) const GIT: &[u8] = b".git";

/// Part of the name of a conflict copy, after the name of the entry.
pub const COPY: &[u8] = b".conflict-";

/// Length of the longest file that a merge reads, in bytes. The index of a work tree with a million
/// files is shorter.
pub const READ_LEN_MAX: u64 = 256 << 20;

/// Length of the longest file that names a repository, in bytes: twice the maximum length of a
/// path.
const LINK_LEN_MAX: u64 = 8 << 10;

/// What a directory is by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// The repository of the directory that contains it.
    Repository,
    /// The conflict copy of a repository.
    Copy,
}

impl Unit {
    /// Returns what a directory with this name is.
    pub(crate) fn of(name: &[u8]) -> Option<Self> {
        let rest = NAMES.iter().find_map(|unit| name.strip_prefix(*unit))?;
        match rest {
            b"" => Some(Self::Repository),
            _ => rest.starts_with(COPY).then_some(Self::Copy),
        }
    }
}

/// Returns whether a directory with this name is a repository.
#[must_use]
pub fn is_repository(name: &[u8]) -> bool {
    Unit::of(name) == Some(Unit::Repository)
}

/// Returns whether a directory with this name is the conflict copy of a repository.
#[must_use]
pub fn is_copy(name: &[u8]) -> bool {
    Unit::of(name) == Some(Unit::Copy)
}

/// Entries of each git repository, by which git recognizes it.
const MARKS: [&[u8]; 3] = [b"HEAD", b"objects", b"refs"];

/// Returns the bit of an entry of which a git repository has all; 0 for other entries.
pub(crate) fn mark(entry: &Entry) -> u8 {
    let is_file = !matches!(entry.kind, Kind::Directory { .. });
    let at = MARKS.iter().position(|mark| *mark == &*entry.name);
    at.filter(|at| (*at == 0) == is_file)
        .map_or(0, |at| 1 << at)
}

/// Returns whether these [marks](mark) are the marks of a git repository.
pub(crate) const fn is_git(marks: u8) -> bool {
    marks == (1 << MARKS.len()) - 1
}

/// Returns whether an entry is a repository or the conflict copy of one.
fn is_unit(entries: &Entries, index: usize) -> bool {
    match entries.get(index) {
        Some(entry) if matches!(entry.kind, Kind::Directory { .. }) => {
            Unit::of(&entry.name).is_some() || is_git_repository(entries, index)
        }
        _ => false,
    }
}

/// Returns whether an entry other than the root is a directory with a git repository.
#[must_use]
pub fn is_git_repository(entries: &Entries, index: usize) -> bool {
    index > 0 && has_marks(entries, index)
}

/// Returns whether the whole tree is a git repository, such as a bare one.
#[must_use]
pub fn is_git_root(entries: &Entries) -> bool {
    has_marks(entries, 0)
}

fn has_marks(entries: &Entries, index: usize) -> bool {
    let is_directory = entries
        .get(index)
        .is_some_and(|entry| matches!(entry.kind, Kind::Directory { .. }));
    let children = || {
        entries
            .children(index)
            .filter_map(|child| entries.get(child))
    };
    is_directory && is_git(children().fold(0, |marks, child| marks | mark(child)))
}

/// Returns whether an entry is the conflict copy of a repository, whatever its name was.
#[must_use]
pub fn is_conflict_copy(entries: &Entries, index: usize) -> bool {
    let entry = entries.get(index);
    entry.is_some_and(|entry| is_copied(&entry.name)) && is_unit(entries, index)
}

/// Returns whether this is the name of the conflict copy of an entry.
fn is_copied(name: &[u8]) -> bool {
    name.windows(COPY.len()).any(|part| part == COPY)
}

/// Contents of files of repositories. Without the contents of a file, a merge takes any difference
/// in it for a change.
#[derive(Debug, Clone, Default)]
pub struct Contents {
    /// By the digest of the file.
    texts: HashMap<[u8; 32], Vec<u8>>,
    indexes: HashMap<[u8; 32], GitIndex>,
    /// Fingerprints of indexes, by the digest of the file.
    fingerprints: HashMap<[u8; 32], [u8; 32]>,
    /// Names that git gives to the contents, by the digest of the file.
    blobs: HashMap<[u8; 32], [ObjectName; 2]>,
}

impl Contents {
    /// Adds the contents of a file with this SHA-256.
    pub fn add(&mut self, digest: [u8; 32], bytes: Vec<u8>) {
        match GitIndex::parse(&bytes) {
            Some(index) => {
                self.fingerprints.insert(digest, index.fingerprint);
                self.indexes.insert(digest, index);
            }
            None => {
                self.texts.insert(digest, bytes);
            }
        }
    }

    /// Adds the [fingerprint](GitIndex::fingerprint) of an index with this SHA-256, whose contents
    /// are not known any more.
    pub fn add_fingerprint(&mut self, digest: [u8; 32], fingerprint: [u8; 32]) {
        self.fingerprints.insert(digest, fingerprint);
    }

    /// Adds the contents of a file of a work tree with this SHA-256 and length.
    ///
    /// # Errors
    ///
    /// The contents cannot be read.
    pub fn add_file(
        &mut self,
        digest: [u8; 32],
        len: u64,
        contents: &mut dyn Read,
    ) -> io::Result<()> {
        self.blobs.insert(digest, blob_names(len, contents)?);
        Ok(())
    }

    /// Returns whether git gives this name to the contents of a file or link. Returns `None` if
    /// the contents are not known.
    pub(crate) fn is_blob(&self, entry: &Entry, name: &ObjectName) -> Option<bool> {
        let names = match &entry.kind {
            Kind::Directory { .. } => return Some(false),
            Kind::File { digest, .. } => *self.blobs.get(digest.as_ref()?)?,
            Kind::Symlink { target } => blob_names(target.len() as u64, &mut &**target).ok()?,
        };
        Some(names.contains(name))
    }

    /// Returns the fingerprint of the index with this SHA-256.
    #[must_use]
    pub fn fingerprint(&self, digest: &[u8; 32]) -> Option<[u8; 32]> {
        self.fingerprints.get(digest).copied()
    }

    pub(crate) fn index(&self, entry: &Entry) -> Option<&GitIndex> {
        self.indexes.get(&digest(entry)?)
    }

    /// Returns whether entries of a repository are the same, apart from what git has noted in an
    /// index to be faster.
    pub(crate) fn is_same(&self, a: Option<&Entry>, b: Option<&Entry>) -> bool {
        let (Some(a), Some(b)) = (a, b) else {
            return a.is_none() && b.is_none();
        };
        let fingerprint = |entry| self.fingerprint(&digest(entry)?);
        a.has_same_data(b) || fingerprint(a).is_some_and(|a| fingerprint(b) == Some(a))
    }

    /// Returns the contents of a file, or the target of a link.
    pub(crate) fn link<'a>(&'a self, entry: &'a Entry) -> Option<&'a [u8]> {
        match &entry.kind {
            Kind::Symlink { target } => Some(target),
            _ => self.texts.get(&digest(entry)?).map(Vec::as_slice),
        }
    }

    pub(crate) fn text(&self, entries: &Entries, index: usize) -> Option<&str> {
        let bytes = self.texts.get(&digest(entries.get(index)?)?)?;
        std::str::from_utf8(bytes).ok()
    }
}

pub(crate) fn digest(entry: &Entry) -> Option<[u8; 32]> {
    match entry.kind {
        Kind::File { digest, .. } => digest,
        _ => None,
    }
}

/// What a merge of two trees has to read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wanted {
    /// Indices of files of our tree.
    pub ours: Vec<usize>,
    /// Indices of files of their tree.
    pub theirs: Vec<usize>,
}

/// Returns the files of which the merge of these trees needs the [`Contents`]: indexes and names of
/// commits in the repositories that differ from the base on both sides, and the files that name the
/// repositories of work trees.
#[must_use]
pub fn wanted(base: &Entries, ours: &Entries, theirs: &Entries) -> Wanted {
    // For each unit: its directory in our tree and in theirs, and which of them differs.
    let mut units: Vec<([Option<usize>; 2], [bool; 2])> = Vec::new();
    let mut links = Vec::new();
    // Depth of the innermost unit.
    let mut inside = None;
    for [in_base, in_ours, in_theirs] in Walk::new([base, ours, theirs]) {
        let old = in_base.and_then(|index| base.get(index));
        let our = in_ours.and_then(|index| ours.get(index));
        let their = in_theirs.and_then(|index| theirs.get(index));
        let Some(any) = our.or(their).or(old) else {
            continue;
        };
        inside = inside.filter(|depth| any.depth > *depth);
        if inside.is_none() {
            let is_in =
                |entries, index: Option<usize>| index.is_some_and(|index| is_unit(entries, index));
            if !(is_in(base, in_base) || is_in(ours, in_ours) || is_in(theirs, in_theirs)) {
                if *any.name == *GIT {
                    links.push([in_ours, in_theirs]);
                }
                continue;
            }
            inside = Some(any.depth);
            units.push(([in_ours, in_theirs], [false; 2]));
        }
        let none = Contents::default();
        if let Some((_, changed)) = units.last_mut() {
            changed[0] |= !none.is_same(old, our);
            changed[1] |= !none.is_same(old, their);
        }
    }
    let mut wanted = Wanted::default();
    for ([in_ours, in_theirs], changed) in units {
        if changed == [true; 2] {
            add_files(ours, in_ours, &mut wanted.ours);
            add_files(theirs, in_theirs, &mut wanted.theirs);
        }
    }
    if wanted == Wanted::default() {
        return wanted;
    }
    let is_link = |entries: &Entries, index: Option<usize>| {
        let entry = index.and_then(|index| entries.get(index));
        entry.is_some_and(|entry| match entry.kind {
            Kind::File { size, .. } => size <= LINK_LEN_MAX,
            _ => false,
        })
    };
    for [in_ours, in_theirs] in links {
        match (in_ours, in_theirs) {
            (Some(index), _) if is_link(ours, in_ours) => wanted.ours.push(index),
            (None, Some(index)) if is_link(theirs, in_theirs) => wanted.theirs.push(index),
            _ => {}
        }
    }
    wanted
}

/// Adds the files of a unit that describe its state.
fn add_files(entries: &Entries, unit: Option<usize>, files: &mut Vec<usize>) {
    for directory in unit
        .map(|unit| git_directories(entries, unit))
        .unwrap_or_default()
    {
        for child in entries.children(directory) {
            match entries.get(child).map(|entry| (&*entry.name, &entry.kind)) {
                Some((b"HEAD" | b"index" | b"packed-refs", Kind::File { .. })) => files.push(child),
                Some((b"refs", Kind::Directory { end })) => {
                    files.extend((child..*end).filter(|index| is_file(entries, *index)));
                }
                _ => {}
            }
        }
    }
    files.retain(|index| {
        matches!(entries.get(*index).map(|entry| &entry.kind),
        Some(Kind::File { size, .. }) if *size <= READ_LEN_MAX)
    });
}

fn is_file(entries: &Entries, index: usize) -> bool {
    matches!(
        entries.get(index).map(|entry| &entry.kind),
        Some(Kind::File { .. })
    )
}

/// Returns the directories of a unit that have a `HEAD`: its own, and those of submodules and
/// additional work trees.
fn git_directories(entries: &Entries, unit: usize) -> Vec<usize> {
    let Some(Kind::Directory { end }) = entries.get(unit).map(|entry| &entry.kind) else {
        return Vec::new();
    };
    let has_head = |directory: &usize| child(entries, *directory, b"HEAD").is_some();
    // Directories of names have a HEAD as well.
    let mut skipped_to = 0;
    let mut found = Vec::new();
    for index in unit..*end {
        let Some(entry) = entries.get(index).filter(|_| index >= skipped_to) else {
            continue;
        };
        match (&*entry.name, &entry.kind) {
            (b"logs" | b"refs" | b"objects" | b"hooks", Kind::Directory { end }) => {
                skipped_to = *end
            }
            (_, Kind::Directory { .. }) if has_head(&index) => found.push(index),
            _ => {}
        }
    }
    found
}

fn child(entries: &Entries, directory: usize, name: &[u8]) -> Option<usize> {
    let mut children = entries.children(directory);
    children.find(|index| {
        entries
            .get(*index)
            .is_some_and(|entry| *entry.name == *name)
    })
}

/// Returns the indices of the files of a tree that may be the index of a git repository.
#[must_use]
pub fn indexes(entries: &Entries) -> Vec<usize> {
    let mut found = Vec::new();
    let mut next = 0;
    while let Some(entry) = entries.get(next) {
        let unit = next;
        next += 1;
        let Kind::Directory { end } = entry.kind else {
            continue;
        };
        if is_unit(entries, unit) {
            next = end;
            let directories = git_directories(entries, unit).into_iter();
            found.extend(directories.filter_map(|directory| child(entries, directory, b"index")));
        }
    }
    found.retain(|index| is_file(entries, *index));
    found
}

/// Returns a file that a command of git or Mercurial has while it changes a repository.
#[must_use]
pub fn lock(entries: &Entries) -> Option<usize> {
    let mut unit = None;
    // End of a directory without locks.
    let mut skipped_to = 0;
    for (index, entry) in entries.list().iter().enumerate() {
        unit = unit.filter(|(end, _)| index < *end);
        let Some((_, name)) = unit else {
            match entry.kind {
                Kind::Directory { end } if Unit::of(&entry.name) == Some(Unit::Repository) => {
                    unit = Some((end, &*entry.name));
                }
                Kind::Directory { end } if is_unit(entries, index) && !is_copied(&entry.name) => {
                    unit = Some((end, GIT));
                }
                _ => {}
            }
            continue;
        };
        match (&*entry.name, &entry.kind) {
            _ if index < skipped_to => {}
            // Objects never change, and scripts may have any name.
            (b"objects" | b"hooks" | b"lfs" | b"annex", Kind::Directory { end }) => {
                skipped_to = *end
            }
            (_, Kind::Directory { .. }) => {}
            (b"wlock" | b"lock", _) if name == b".hg" => return Some(index),
            (file, _) if name == GIT && file.ends_with(b".lock") => return Some(index),
            _ => {}
        }
    }
    None
}

/// The commits that a git repository has names for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Names {
    /// Path of the repository relative to the unit; empty for the unit itself, such as
    /// `modules/NAME` for a submodule.
    pub path: Vec<u8>,
    /// Content of `HEAD`: the name of a branch, such as `refs/heads/main`, or a commit.
    pub head: String,
    /// Commits by name, such as `refs/heads/main`.
    pub commits: BTreeMap<String, String>,
}

impl Names {
    /// Whether there is a commit whose name begins with this text, such as `refs/heads/`.
    #[must_use]
    pub fn has_below(&self, prefix: &str) -> bool {
        let mut from = self.commits.range(prefix.to_owned()..);
        from.next()
            .is_some_and(|(name, _)| name.starts_with(prefix))
    }

    /// Returns the names of a unit of git and of its submodules.
    #[must_use]
    pub fn of_unit(entries: &Entries, unit: usize, contents: &Contents) -> Vec<Self> {
        let prefix = entries.path(unit).len() + 1;
        let directories = git_directories(entries, unit).into_iter();
        // An additional work tree has the objects of another directory.
        let directories = directories.filter(|at| child(entries, *at, b"objects").is_some());
        directories
            .filter_map(|directory| {
                let path = entries
                    .path(directory)
                    .get(prefix..)
                    .unwrap_or_default()
                    .to_vec();
                let head = contents
                    .text(entries, child(entries, directory, b"HEAD")?)?
                    .trim_end();
                Some(Self {
                    path,
                    head: head.strip_prefix("ref: ").unwrap_or(head).to_owned(),
                    commits: commits(entries, directory, contents),
                })
            })
            .collect()
    }

    /// Returns the commit of `HEAD`; `None` if the branch has none yet.
    #[must_use]
    pub fn head_commit(&self) -> Option<&str> {
        match self.head.starts_with("refs/") {
            true => self.commits.get(&self.head).map(String::as_str),
            false => Some(&*self.head).filter(|head| !head.is_empty()),
        }
    }
}

fn commits(entries: &Entries, directory: usize, contents: &Contents) -> BTreeMap<String, String> {
    let mut commits = BTreeMap::new();
    let packed = child(entries, directory, b"packed-refs");
    let packed = packed.and_then(|index| contents.text(entries, index));
    // The other lines are comments, and the commits of tags.
    let lines = packed.unwrap_or_default().lines();
    for line in lines.filter(|line| !line.starts_with(['#', '^'])) {
        if let Some((commit, name)) = line.split_once(' ') {
            commits.insert(name.to_owned(), commit.to_owned());
        }
    }
    let prefix = entries.path(directory).len() + 1;
    let Some(refs) = child(entries, directory, b"refs") else {
        return commits;
    };
    let Some(Kind::Directory { end }) = entries.get(refs).map(|entry| &entry.kind) else {
        return commits;
    };
    for index in refs..*end {
        let path = entries.path(index);
        let name = path.get(prefix..).map(String::from_utf8_lossy);
        // Other files refer to another name.
        let text = contents.text(entries, index).map(str::trim_end);
        let commit = text.filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if let (Some(name), Some(commit)) = (name, commit) {
            commits.insert(name.into_owned(), commit.to_owned());
        }
    }
    commits
}
