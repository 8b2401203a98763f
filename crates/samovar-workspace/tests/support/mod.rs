//! Trees on disk and in memory, and their manifests.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes,
    clippy::panic,
    clippy::unwrap_used,
    reason = "each file of tests uses a part; a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use samovar_nix::{NarHash, StorePath};
use samovar_workspace::entries::{Builder, Entries, Kind, Mtime};
use samovar_workspace::unpack::{Options, UnpackError, Unpacked, unpack};
use samovar_workspace::{Manifest, Root};
use sha2::{Digest, Sha256};

pub type Node = testkit::nar::Node<Vec<u8>>;

/// Options without `syncfs`, which would wait for everything else that writes to the disk.
pub const FAST: Options<'static> = Options {
    nar_hash: None,
    nar_size: None,
    nar_size_max: u64::MAX,
    entry_count_max: u64::MAX,
    thread_count: None,
    sync: false,
    progress: None,
};

/// Permissions and times of the entries in a test, by path.
pub type Attributes<'a> = &'a dyn Fn(&[u8], &Node) -> (u16, Mtime);

/// Creates a temporary directory in memory, if there is such a file system: writing many small
/// files to a disk would wait for everything else that uses the disk.
pub fn tempdir() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let dir = tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir());
    dir.unwrap()
}

pub fn unpack_plain(nar: &[u8], into: &Path) -> Result<Unpacked, UnpackError> {
    unpack(&mut &*nar, None, into, &FAST)
}

pub fn nar_hash(nar: &[u8]) -> NarHash {
    NarHash::from_bytes(Sha256::digest(nar).into())
}

/// Returns the manifest of a tree. The attributes must agree with the executable files.
pub fn manifest(tree: &Node, attributes: Attributes<'_>) -> Manifest {
    let (mode, mtime) = attributes(b"", tree);
    let mut builder = Builder::new(mode, mtime);
    add(&mut builder, b"", tree, attributes);
    assert!(builder.leave().unwrap(), "complete");
    Manifest {
        tree: StorePath::from_base_name("zs83x50c7jbs0hj70ivx7ykckxh2zzl5-app").unwrap(),
        nar_hash: nar_hash(&tree.nar()),
        entries: builder.finish().unwrap(),
    }
}

fn add(builder: &mut Builder, path: &[u8], directory: &Node, attributes: Attributes<'_>) {
    let Node::Dir(entries) = directory else {
        panic!("not a directory");
    };
    for (name, node) in entries {
        let path = match path {
            b"" => name.clone(),
            _ => [path, b"/", name].concat(),
        };
        let (mode, mtime) = attributes(&path, node);
        match node {
            Node::Dir(_) => {
                builder.enter(name, mode, mtime).unwrap();
                add(builder, &path, node, attributes);
                assert!(!builder.leave().unwrap(), "the root is open");
            }
            Node::Link(target) => builder.symlink(name, mtime, target).unwrap(),
            Node::File { content, .. } => {
                let digest = Sha256::digest(content).into();
                let size = content.len() as u64;
                builder.file(name, mode, mtime, size, Some(digest)).unwrap();
            }
        }
    }
}

/// Attributes that Nix would give, all with the same time.
pub fn usual(_path: &[u8], node: &Node) -> (u16, Mtime) {
    let mode = match node {
        Node::File {
            executable: false, ..
        } => 0o644,
        _ => 0o755,
    };
    (mode, time(1_700_000_000))
}

pub const fn time(seconds: i64) -> Mtime {
    Mtime {
        seconds,
        nanoseconds: 123_456_789,
    }
}

/// Reads a tree from the disk.
pub fn read(path: &Path) -> Node {
    let metadata = fs::symlink_metadata(path).unwrap();
    if metadata.is_symlink() {
        return Node::Link(fs::read_link(path).unwrap().into_os_string().into_vec());
    }
    if metadata.is_dir() {
        let entries = fs::read_dir(path).unwrap().map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_vec(), read(&entry.path()))
        });
        return Node::Dir(entries.collect::<BTreeMap<_, _>>());
    }
    Node::File {
        content: fs::read(path).unwrap(),
        executable: metadata.permissions().mode() & 0o100 != 0,
    }
}

/// Checks the mode and the time of every entry on the disk.
pub fn assert_attributes(root: &Path, entries: &Entries) {
    for (index, entry) in entries.list().iter().enumerate() {
        let path = root.join(std::ffi::OsStr::from_bytes(&entries.path(index)));
        let metadata = fs::symlink_metadata(&path).unwrap();
        let found = Mtime {
            seconds: metadata.mtime(),
            nanoseconds: u32::try_from(metadata.mtime_nsec()).unwrap(),
        };
        assert_eq!(found, entry.mtime, "{path:?}");
        if !matches!(entry.kind, Kind::Symlink { .. }) {
            let mode = metadata.permissions().mode() & 0o7777;
            assert_eq!(mode, u32::from(entry.mode), "{path:?}");
        }
    }
}

/// Returns the names in a directory.
pub fn names(directory: &Path) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_vec())
        .collect();
    names.sort();
    names
}

/// Removes a tree with read-only directories, so that a temporary directory can be removed.
pub fn remove(parent: &Path, name: &[u8]) {
    Root::open(parent).unwrap().remove_all(name).unwrap();
}
