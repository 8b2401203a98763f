//! The numbers that describe a tree, accumulated while it is walked.
//!
//! Pure: no input, output or clock. Memory grows with the depth of the tree, not with its number of
//! files.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::sizes::{Frames, Sizes};

/// Directories that programs can generate again, and the files from which programs generate them.
/// One of these files must be beside the directory, if there are any. Directories with a file
/// [`CACHE_TAG`] can be generated again, too.
const REGENERABLE: [(&[u8], &[&str]); 6] = [
    (b".angular", &["angular.json"]),
    (b".cache", &[]),
    (b".venv", &["pyproject.toml", "requirements.txt", "Pipfile"]),
    (b"__pycache__", &[]),
    (b"node_modules", &["package.json"]),
    (b"target", &["Cargo.toml", "pom.xml"]),
];

/// Name of the file that marks a directory of a cache (Cache Directory Tagging Specification).
const CACHE_TAG: &[u8] = b"CACHEDIR.TAG";

/// Length of the signature with which such a file begins, in bytes. The file is not read.
const CACHE_TAG_LEN: u64 = 43;

/// If a child has at least this share of the files of a directory, in percent, the child is listed
/// instead of the directory.
const CHILD_SHARE: u64 = 90;

/// Maximum length of a reported path, in bytes. A tree can be deeper than any path may be long, and
/// copies of such paths would take time quadratic in the depth.
const PATH_LEN_MAX: usize = 4096;

/// The numbers of a tree.
#[derive(Debug)]
pub struct Facts {
    /// The sizes of all regular files. A file with several names counts once.
    pub sizes: Sizes,
    /// Disk space of all files and directories, in bytes.
    pub allocated: u64,
    /// Number of directories, including the root.
    pub directories: u64,
    /// Number of symbolic links.
    pub symlinks: u64,
    /// Number of files that their owner may execute.
    pub executables: u64,
    /// Number of names of files beyond the first one of each.
    pub hard_links: u64,
    /// Number of sockets, FIFOs and devices.
    pub specials: u64,
    /// Number of directories that are mount points and were not entered.
    pub mounts: u64,
    /// Number of files in directories that can be generated again.
    pub regenerable: u64,
    /// The directory with the most entries: their number, and its path.
    pub largest: (u64, Vec<u8>),
    nar_len: u64,
    levels: Vec<Level>,
    path: Vec<u8>,
    top: BinaryHeap<Reverse<Ranked>>,
    top_count: usize,
}

/// A directory in the list of those with the most files.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ranked {
    /// Number of files in the directory and below.
    pub files: u64,
    /// Sum of their sizes, in bytes.
    pub bytes: u64,
    /// Path below the root of the tree.
    pub path: Vec<u8>,
    /// Whether a program can generate the directory again.
    pub is_regenerable: bool,
}

/// A directory between the root and the current position.
#[derive(Debug, Default)]
struct Level {
    /// Length of the path of the parent.
    parent_len: usize,
    entries: u64,
    files: u64,
    bytes: u64,
    /// Number of files of the fullest child.
    child_files: u64,
    /// Number of files in directories below that can be generated again.
    regenerable: u64,
    is_regenerable: bool,
    /// Whether the directory is below one that can be generated again.
    is_below_regenerable: bool,
}

impl Facts {
    /// Starts at the root of a tree, whose disk space is `allocated`. `top_count`: number of
    /// directories in the list of those with the most files.
    pub(super) fn new(frames: Frames, top_count: usize, allocated: u64) -> Self {
        Self {
            sizes: Sizes::new(frames),
            allocated,
            directories: 1,
            symlinks: 0,
            executables: 0,
            hard_links: 0,
            specials: 0,
            mounts: 0,
            regenerable: 0,
            largest: (0, Vec::new()),
            nar_len: string_len(b"nix-archive-1".len() as u64) + DIRECTORY_LEN,
            levels: vec![Level::default()],
            path: Vec::new(),
            top: BinaryHeap::new(),
            top_count,
        }
    }

    /// Counts a regular file in the current directory. `is_known`: whether it was counted under
    /// another name.
    pub(super) fn file(&mut self, name: &[u8], file: File, is_known: bool) {
        self.entry(name, file_len(file.size, file.is_executable));
        if is_known {
            self.hard_links += 1;
            return;
        }
        self.sizes.add(file.size);
        self.allocated = self.allocated.saturating_add(file.allocated);
        self.executables += u64::from(file.is_executable);
        if let Some(level) = self.levels.last_mut() {
            level.files += 1;
            level.bytes = level.bytes.saturating_add(file.size);
            level.is_regenerable |= name == CACHE_TAG && file.size >= CACHE_TAG_LEN;
        }
    }

    /// Counts a symbolic link in the current directory. `target_len`: length of its target.
    pub(super) fn symlink(&mut self, name: &[u8], target_len: u64) {
        self.entry(name, symlink_len(target_len));
        self.symlinks += 1;
    }

    /// Counts a socket, FIFO or device in the current directory.
    pub(super) fn special(&mut self) {
        self.specials += 1;
    }

    /// Counts a mount point in the current directory.
    pub(super) fn mount(&mut self) {
        self.mounts += 1;
    }

    /// Counts a directory in the current one, and enters it. `has_beside`: whether a regular file
    /// of this name is beside the directory.
    pub(super) fn enter(&mut self, name: &[u8], allocated: u64, has_beside: impl Fn(&str) -> bool) {
        self.entry(name, DIRECTORY_LEN);
        self.directories += 1;
        self.allocated = self.allocated.saturating_add(allocated);
        let parent = self.levels.last();
        let is_below = parent.is_some_and(|it| it.is_regenerable || it.is_below_regenerable);
        self.levels.push(Level {
            parent_len: self.path.len(),
            is_regenerable: REGENERABLE.iter().any(|(regenerable, sources)| {
                let is_certain = || sources.is_empty() || sources.iter().any(|it| has_beside(it));
                *regenerable == name && is_certain()
            }),
            is_below_regenerable: is_below,
            ..Level::default()
        });
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
    }

    /// Returns to the parent of the current directory, or ends the tree.
    pub(super) fn leave(&mut self) {
        let Some(level) = self.levels.pop() else {
            return;
        };
        if level.entries > self.largest.0 {
            self.largest = (level.entries, self.path_of(b""));
        }
        let regenerable = match level.is_regenerable {
            true => level.files,
            false => level.regenerable,
        };
        if !self.levels.is_empty() {
            self.rank(&level);
        }
        // A tag is found after the directories whose names sort before it.
        if level.is_regenerable {
            let above = self.path_of(b"");
            let is_below = |path: &[u8]| {
                let rest = path.strip_prefix(above.as_slice());
                rest.is_some_and(|rest| rest.first() == Some(&b'/'))
            };
            self.top.retain(|Reverse(ranked)| !is_below(&ranked.path));
        }
        self.path.truncate(level.parent_len);
        let Some(parent) = self.levels.last_mut() else {
            self.regenerable = regenerable;
            return;
        };
        parent.regenerable += regenerable;
        parent.files += level.files;
        parent.bytes = parent.bytes.saturating_add(level.bytes);
        parent.child_files = parent.child_files.max(level.files);
    }

    /// Returns the size of the tree as a NAR, in bytes. Sockets, FIFOs, devices, mount points and
    /// unreadable entries are left out.
    pub fn nar_len(&self) -> u64 {
        self.nar_len
    }

    /// Returns the directories with the most files, the fullest first. A directory that can be
    /// generated again stands for all directories below it.
    pub fn top(&self) -> Vec<Ranked> {
        let ranked = self.top.iter().map(|Reverse(ranked)| ranked.clone());
        let mut ranked: Vec<Ranked> = ranked.collect();
        ranked.sort_unstable_by(|left, right| {
            let by_files = right.files.cmp(&left.files);
            by_files.then_with(|| left.path.cmp(&right.path))
        });
        ranked
    }

    /// Returns the path of an entry of the current directory, relative to the root. The start of a
    /// path longer than 4096 bytes is left out.
    pub fn path_of(&self, name: &[u8]) -> Vec<u8> {
        let (start, mark): (usize, &[u8]) = match self.path.len().checked_sub(PATH_LEN_MAX) {
            Some(start) if start > 0 => (start, b"..."),
            _ => (0, b""),
        };
        let path = self.path.get(start..).unwrap_or_default();
        let slash: &[u8] = match path.is_empty() || name.is_empty() {
            true => b"",
            false => b"/",
        };
        [mark, path, slash, name].concat()
    }

    fn entry(&mut self, name: &[u8], node_len: u64) {
        let len = entry_len(name).saturating_add(node_len);
        self.nar_len = self.nar_len.saturating_add(len);
        if let Some(level) = self.levels.last_mut() {
            level.entries += 1;
        }
    }

    fn rank(&mut self, level: &Level) {
        let in_child = u128::from(level.child_files) * 100;
        let is_explained = in_child >= u128::from(level.files) * u128::from(CHILD_SHARE);
        let is_candidate = level.is_regenerable || !is_explained;
        if level.files == 0 || level.is_below_regenerable || !is_candidate {
            return;
        }
        let least = self.top.peek().map_or(0, |Reverse(ranked)| ranked.files);
        if self.top.len() >= self.top_count && level.files <= least {
            return;
        }
        self.top.push(Reverse(Ranked {
            files: level.files,
            bytes: level.bytes,
            path: self.path_of(b""),
            is_regenerable: level.is_regenerable,
        }));
        if self.top.len() > self.top_count {
            self.top.pop();
        }
    }
}

/// The metadata of a regular file that is counted.
#[derive(Debug, Clone, Copy)]
pub(super) struct File {
    /// Length of the contents, in bytes.
    pub(super) size: u64,
    /// Disk space, in bytes.
    pub(super) allocated: u64,
    pub(super) is_executable: bool,
}

/// Returns the length of a string in a NAR: its length in 8 bytes, and its bytes, padded.
const fn string_len(len: u64) -> u64 {
    len.saturating_add(7) / 8 * 8 + 8
}

/// Length in a NAR of one of the words `(`, `)`, `type`, `entry`, `name`, `node`, `regular` and
/// others: all that have up to eight bytes.
const WORD_LEN: u64 = 16;

/// Length of `( type directory )`.
const DIRECTORY_LEN: u64 = 3 * WORD_LEN + string_len(9);

/// Returns the length of `( type regular contents … )`, with `executable` and an empty string for a
/// program.
fn file_len(size: u64, is_executable: bool) -> u64 {
    let mark = match is_executable {
        true => string_len(10) + string_len(0),
        false => 0,
    };
    (5 * WORD_LEN + mark).saturating_add(string_len(size))
}

/// Returns the length of `( type symlink target … )`.
fn symlink_len(target_len: u64) -> u64 {
    (5 * WORD_LEN).saturating_add(string_len(target_len))
}

/// Returns the length of `entry ( name … node … )`, without the node.
fn entry_len(name: &[u8]) -> u64 {
    5 * WORD_LEN + string_len(name.len() as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use testkit::nar::Node;

    use super::*;

    fn count(facts: &mut Facts, node: &Node) {
        let Node::Dir(entries) = node else {
            panic!("not a directory");
        };
        for (name, node) in entries {
            match node {
                Node::File {
                    content,
                    executable,
                } => {
                    let file = File {
                        size: content.len() as u64,
                        allocated: 4096,
                        is_executable: *executable,
                    };
                    facts.file(name, file, false);
                }
                Node::Link(target) => facts.symlink(name, target.len() as u64),
                Node::Dir(_) => {
                    facts.enter(name, 4096, |name| entries.contains_key(name.as_bytes()));
                    count(facts, node);
                    facts.leave();
                }
            }
        }
    }

    fn facts(root: &Node) -> Facts {
        let mut facts = Facts::new(Frames::at_mtu(1500), 3, 4096);
        count(&mut facts, root);
        facts.leave();
        facts
    }

    fn files(count: usize) -> Node {
        Node::dir((0..count).map(|number| (format!("{number:03}"), Node::file("12345"))))
    }

    #[test]
    fn everything_is_counted() {
        let facts = facts(&Node::dir([
            ("bin", Node::dir([("run", Node::program("#!/bin/sh\n"))])),
            ("empty", Node::file("")),
            ("link", Node::link("bin/run")),
            ("many", files(5)),
        ]));
        assert_eq!((facts.sizes.files(), facts.directories), (7, 3));
        assert_eq!((facts.symlinks, facts.executables), (1, 1));
        assert_eq!((facts.sizes.empty(), facts.sizes.bytes()), (1, 35));
        assert_eq!(facts.largest, (5, b"many".to_vec()));
        assert_eq!(facts.allocated, 10 * 4096);
    }

    #[test]
    fn the_list_names_each_crowd_of_files_once() {
        let app = Node::dir([
            (
                "node_modules",
                Node::dir([("a", files(40)), ("b", files(20))]),
            ),
            ("package.json", Node::file("{}")),
        ]);
        let facts = facts(&Node::dir([
            ("dev", Node::dir([("app", app)])),
            ("mail", Node::dir([("cur", files(30)), ("new", files(25))])),
            ("one", files(1)),
            ("target", {
                let tag = Node::file("x".repeat(43));
                let tag = [("CACHEDIR.TAG", tag), ("debug", files(9))];
                Node::dir(tag)
            }),
        ]));
        let top: Vec<(u64, String, bool)> = facts
            .top()
            .into_iter()
            .map(|it| {
                let path = String::from_utf8(it.path).unwrap();
                (it.files, path, it.is_regenerable)
            })
            .collect();
        let expected = [
            (60, "dev/app/node_modules", true),
            (55, "mail", false),
            (30, "mail/cur", false),
        ];
        assert_eq!(
            top,
            expected.map(|(files, path, is)| (files, path.to_owned(), is))
        );
        assert_eq!(facts.regenerable, 60 + 10);
    }

    /// Returns whether a directory of this name, beside a file `beside` and with a tag of `tag_len`
    /// bytes, counts as one that can be generated again.
    fn is_regenerable(name: &str, beside: &str, tag_len: usize) -> bool {
        let tag = ("CACHEDIR.TAG", Node::file("x".repeat(tag_len)));
        let facts = facts(&Node::dir([
            (beside, Node::file("")),
            (name, Node::dir([tag])),
        ]));
        facts.regenerable > 0
    }

    #[test]
    fn a_name_alone_does_not_prove_that_a_directory_can_be_generated_again() {
        for (name, beside, expected) in [
            ("node_modules", "package.json", true),
            ("node_modules", "README", false),
            ("target", "Cargo.toml", true),
            ("target", "pom.xml", true),
            ("target", "package.json", false),
            (".venv", "requirements.txt", true),
            (".venv", "README", false),
            ("__pycache__", "README", true),
            ("src", "Cargo.toml", false),
        ] {
            assert_eq!(is_regenerable(name, beside, 0), expected, "{name} {beside}");
        }
        assert!(is_regenerable("any", "README", 43));
        assert!(!is_regenerable("any", "README", 42));
    }

    #[test]
    fn files_below_two_directories_that_can_be_generated_again_count_once() {
        let tag = ("CACHEDIR.TAG", Node::file("x".repeat(43)));
        let cache = Node::dir([("__pycache__", Node::dir([("a", Node::file("a"))]))]);
        // The tag is found after the directory beside it.
        let facts = facts(&Node::dir([(
            "any",
            Node::dir([("A", cache), ("b", Node::file("")), tag]),
        )]));
        assert_eq!(facts.regenerable, 3);
        let top: Vec<_> = facts.top().into_iter().map(|it| it.path).collect();
        assert_eq!(top, [b"any"]);
    }

    #[test]
    fn a_file_with_two_names_counts_once() {
        let mut facts = Facts::new(Frames::at_mtu(1500), 3, 0);
        let file = File {
            size: 100,
            allocated: 4096,
            is_executable: true,
        };
        facts.file(b"a", file, false);
        facts.file(b"b", file, true);
        assert_eq!((facts.sizes.files(), facts.hard_links), (1, 1));
        assert_eq!((facts.executables, facts.allocated), (1, 4096));
    }

    #[test]
    fn very_deep_trees_have_short_paths() {
        let mut facts = Facts::new(Frames::at_mtu(1500), 3, 0);
        let depth = 100_000;
        for _ in 0..depth {
            facts.enter(b"directory", 0, |_| false);
            facts.symlink(b"link", 1);
        }
        assert!(facts.path_of(b"x").len() < 2 * PATH_LEN_MAX);
        for _ in 0..=depth {
            facts.leave();
        }
        facts.leave();
        assert_eq!(facts.directories, depth + 1);
    }

    fn tree() -> impl Strategy<Value = Node> {
        let leaf = prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..40).prop_map(Node::file),
            proptest::collection::vec(any::<u8>(), 0..40).prop_map(Node::program),
            proptest::collection::vec(1..=255_u8, 1..30).prop_map(Node::link),
        ];
        let node = leaf.prop_recursive(4, 40, 6, |inner| {
            let name = proptest::collection::vec(b'a'..=b'z', 1..20);
            proptest::collection::btree_map(name, inner, 0..6).prop_map(Node::Dir)
        });
        node.prop_map(|node| Node::dir([("root", node)]))
    }

    proptest! {
        #[test]
        fn the_length_of_the_nar_is_exact(root in tree()) {
            prop_assert_eq!(facts(&root).nar_len(), root.nar().len() as u64);
        }
    }
}
