//! Random trees and edits of them, for tests.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::entries::{Builder, Entries, Kind, Mtime};

/// The names of a path. They are ordered as in a NAR.
pub(crate) type Path = Vec<Vec<u8>>;

/// A tree by path. The root has the empty path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tree(pub(crate) BTreeMap<Path, Node>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) mode: u16,
    pub(crate) mtime: i64,
    pub(crate) data: Data,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Data {
    Directory,
    /// At most 31 bytes.
    File(Vec<u8>),
    Symlink(Vec<u8>),
}

/// A change of a tree. Numbers select entries and names, modulo their count.
#[derive(Debug, Clone)]
pub(crate) enum Edit {
    /// Replaces the node, but not a directory that has entries.
    Replace(usize, Node),
    /// Adds a node to a directory.
    Add(usize, usize, Node),
    Remove(usize),
    /// Moves an entry with all below it to a directory.
    Move(usize, usize, usize),
    /// Copies an entry with all below it to a directory.
    Copy(usize, usize, usize),
    Mode(usize, u16),
    Touch(usize, i64),
}

const NAMES: [&[u8]; 7] = [b"a", b"a-", b"a.b", b"b", b"c", b"\xc3\xa4", b"z z"];
const DEPTH_MAX: usize = 6;

impl Node {
    fn is_directory(&self) -> bool {
        self.data == Data::Directory
    }
}

/// Returns a digest that differs for different contents.
pub(crate) fn digest(contents: &[u8]) -> [u8; 32] {
    let mut digest = [0; 32];
    digest[..contents.len()].copy_from_slice(contents);
    digest[31] = u8::try_from(contents.len()).unwrap();
    digest
}

impl Tree {
    pub(crate) fn new(root: Node) -> Self {
        Self(BTreeMap::from([(Path::new(), root)]))
    }

    pub(crate) fn entries(&self) -> Entries {
        let time = |seconds| Mtime {
            seconds,
            nanoseconds: 0,
        };
        let mut nodes = self.0.iter();
        let root = nodes.next().unwrap().1;
        let mut builder = Builder::new(root.mode, time(root.mtime));
        let mut depth = 1;
        for (path, node) in nodes {
            while depth > path.len() {
                builder.leave().unwrap();
                depth -= 1;
            }
            let (name, mode, mtime) = (path.last().unwrap(), node.mode, time(node.mtime));
            match &node.data {
                Data::Directory => {
                    builder.enter(name, mode, mtime).unwrap();
                    depth += 1;
                }
                Data::File(contents) => {
                    let size = contents.len() as u64;
                    let digest = Some(digest(contents));
                    builder.file(name, mode, mtime, size, digest).unwrap();
                }
                Data::Symlink(target) => builder.symlink(name, mtime, target).unwrap(),
            }
        }
        while !builder.leave().unwrap() {}
        builder.finish().unwrap()
    }

    /// Returns the contents of the file with this index.
    pub(crate) fn contents(&self, index: usize) -> &[u8] {
        match &self.0.values().nth(index).unwrap().data {
            Data::File(contents) => contents,
            other => panic!("{other:?} at {index} is not a file"),
        }
    }

    pub(crate) fn nar(&self) -> Vec<u8> {
        let entries = self.entries();
        let mut framing = entries.framing();
        let mut nar = Vec::new();
        while let Some(index) = framing.next_file(&mut nar).unwrap() {
            nar.extend_from_slice(self.contents(index));
            assert!(matches!(entries.list()[index].kind, Kind::File { .. }));
        }
        nar
    }

    fn path(&self, number: usize) -> Path {
        self.0.keys().nth(number % self.0.len()).unwrap().clone()
    }

    fn below(&self, path: &Path) -> Vec<(Path, Node)> {
        let below = self.0.iter().filter(|(other, _)| other.starts_with(path));
        below
            .map(|(path, node)| (path.clone(), node.clone()))
            .collect()
    }

    pub(crate) fn remove(&mut self, path: &Path) {
        self.0.retain(|other, _| !other.starts_with(path));
    }

    fn new_path(&self, directory: usize, name: usize) -> Option<Path> {
        let mut path = self.path(directory);
        let can_have_entries = self.0[&path].is_directory() && path.len() < DEPTH_MAX;
        path.push(NAMES[name % NAMES.len()].to_vec());
        (can_have_entries && !self.0.contains_key(&path)).then_some(path)
    }

    fn edit(&self, edits: &[Edit]) -> Self {
        let mut tree = self.clone();
        for edit in edits {
            tree.apply(edit);
        }
        tree
    }

    fn apply(&mut self, edit: &Edit) {
        match edit {
            Edit::Replace(at, node) => {
                let path = self.path(*at);
                if self.below(&path).len() == 1 && !path.is_empty() {
                    self.0.insert(path, node.clone());
                }
            }
            Edit::Add(directory, name, node) => {
                if let Some(path) = self.new_path(*directory, *name) {
                    self.0.insert(path, node.clone());
                }
            }
            Edit::Remove(at) => {
                let path = self.path(*at);
                if !path.is_empty() {
                    self.remove(&path);
                }
            }
            Edit::Move(from, to, name) | Edit::Copy(from, to, name) => {
                let (from, to) = (self.path(*from), self.new_path(*to, *name));
                let Some(to) = to.filter(|to| !from.is_empty() && !to.starts_with(&from)) else {
                    return;
                };
                let copies = self.below(&from);
                if matches!(edit, Edit::Move(..)) {
                    self.remove(&from);
                }
                for (path, node) in copies {
                    let path = [&to[..], &path[from.len()..]].concat();
                    self.0.insert(path, node);
                }
            }
            Edit::Mode(at, mode) => {
                let path = self.path(*at);
                let node = self.0.get_mut(&path).unwrap();
                if !matches!(node.data, Data::Symlink(_)) {
                    node.mode = *mode;
                }
            }
            Edit::Touch(at, mtime) => {
                let path = self.path(*at);
                self.0.get_mut(&path).unwrap().mtime = *mtime;
            }
        }
    }
}

/// Splits a path as [`Entries::path`] writes it.
pub(crate) fn names(path: &[u8]) -> Path {
    match path {
        b"" => Path::new(),
        _ => path.split(|byte| *byte == b'/').map(Into::into).collect(),
    }
}

/// Returns a tree with these paths. A path that ends in `/` is a directory, `PATH -> TARGET` is a
/// link, and `PATH=CONTENTS` is a file.
pub(crate) fn paths(paths: &[&str]) -> Tree {
    let mut tree = Tree::new(Node {
        mode: 0o755,
        mtime: 0,
        data: Data::Directory,
    });
    for text in paths {
        let (path, data) = match (text.strip_suffix('/'), text.split_once('=')) {
            (Some(path), _) => (path, Data::Directory),
            (_, Some((path, contents))) => (path, Data::File(contents.into())),
            _ => {
                let (path, target) = text.split_once(" -> ").unwrap();
                (path, Data::Symlink(target.into()))
            }
        };
        let is_link = matches!(data, Data::Symlink(_));
        let mode = if is_link { 0o777 } else { 0o755 };
        let node = Node {
            mode,
            mtime: 0,
            data,
        };
        tree.0.insert(names(path.as_bytes()), node);
    }
    tree
}

fn node() -> impl Strategy<Value = Node> {
    let contents = prop_oneof![
        Just(Vec::new()),
        (0..4_u8, 0..32_usize).prop_map(|(byte, len)| vec![byte; len]),
        proptest::collection::vec(any::<u8>(), 0..32),
    ];
    let data = prop_oneof![
        2 => Just(Data::Directory),
        4 => contents.prop_map(Data::File),
        1 => proptest::sample::select(vec![&b"a"[..], b"../b"])
            .prop_map(|target| Data::Symlink(target.to_vec())),
    ];
    (data, proptest::sample::select(vec![0o644, 0o755]), 0..3_i64).prop_map(
        |(data, mode, mtime)| {
            let mode = match data {
                Data::Symlink(_) => 0o777,
                _ => mode,
            };
            Node { mode, mtime, data }
        },
    )
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = || any::<usize>();
    prop_oneof![
        2 => (at(), node()).prop_map(|(at, node)| Edit::Replace(at, node)),
        2 => (at(), at(), node()).prop_map(|(at, name, node)| Edit::Add(at, name, node)),
        1 => at().prop_map(Edit::Remove),
        1 => (at(), at(), at()).prop_map(|(from, to, name)| Edit::Move(from, to, name)),
        1 => (at(), at(), at()).prop_map(|(from, to, name)| Edit::Copy(from, to, name)),
        1 => (at(), proptest::sample::select(vec![0o600, 0o644, 0o755]))
            .prop_map(|(at, mode)| Edit::Mode(at, mode)),
        1 => (at(), 0..3_i64).prop_map(|(at, mtime)| Edit::Touch(at, mtime)),
    ]
}

/// Returns random trees.
pub(crate) fn tree() -> impl Strategy<Value = Tree> {
    let add = (any::<usize>(), any::<usize>(), node());
    proptest::collection::vec(add, 0..30).prop_map(|nodes| {
        let mut tree = Tree::new(Node {
            mode: 0o755,
            mtime: 0,
            data: Data::Directory,
        });
        for (directory, name, node) in nodes {
            tree.apply(&Edit::Add(directory, name, node));
        }
        tree
    })
}

/// Returns the trees with edited copies of them.
pub(crate) fn edited(trees: impl Strategy<Value = Tree>) -> impl Strategy<Value = (Tree, Tree)> {
    (trees, edits()).prop_map(|(tree, edits)| {
        let changed = tree.edit(&edits);
        (tree, changed)
    })
}

/// Returns trees, each with two edited copies.
pub(crate) fn edited_twice() -> impl Strategy<Value = (Tree, Tree, Tree)> {
    (tree(), edits(), edits()).prop_map(|(tree, ours, theirs)| {
        let (ours, theirs) = (tree.edit(&ours), tree.edit(&theirs));
        (tree, ours, theirs)
    })
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    proptest::collection::vec(edit(), 0..8)
}
