//! Directory trees for tests, and readers of their NARs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use proptest::prelude::*;
use samovar_store::Tree;
use testkit::nar::Node;

pub(crate) fn nar(tree: &Tree, buffer_len: usize) -> Vec<u8> {
    let mut reader = tree.nar().unwrap();
    let mut nar = Vec::new();
    let mut buffer = vec![0; buffer_len];
    loop {
        let len = reader.fill(&mut buffer).unwrap();
        nar.extend_from_slice(&buffer[..len]);
        if len == 0 {
            assert_eq!(reader.position(), nar.len() as u64);
            return nar;
        }
    }
}

pub(crate) fn listing(tree: &Tree) -> String {
    std::io::read_to_string(tree.listing()).unwrap()
}

/// Creates the tree of the example in the format's description.
pub(crate) fn example(dir: &Path) {
    fs::create_dir_all(dir.join("bin")).unwrap();
    fs::create_dir(dir.join("empty")).unwrap();
    fs::write(dir.join("a.txt"), "hello\n").unwrap();
    fs::write(dir.join("bin/run"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(dir.join("bin/run"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("a.txt", dir.join("link")).unwrap();
    fs::write(dir.join("zero"), "").unwrap();
}

/// Creates a chain of 5,000 directories `d` in `dir`. Each also has a link, which sorts after its
/// directory `d`.
pub(crate) fn make_deep(dir: &Path) {
    let store = rustix::fs::open(
        dir,
        rustix::fs::OFlags::DIRECTORY,
        rustix::fs::Mode::empty(),
    );
    let mut parent = store.unwrap();
    for _ in 0..5000 {
        rustix::fs::mkdirat(&parent, "d", 0o755.into()).unwrap();
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::RDONLY;
        parent = rustix::fs::openat(&parent, "d", flags, rustix::fs::Mode::empty()).unwrap();
        rustix::fs::symlinkat("x", &parent, "z").unwrap();
    }
}

/// Counts the open descriptors, which include those of other tests in this process.
pub(crate) fn open_count() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Counts the open descriptors below `root`. The tree must not be too deep for path names.
pub(crate) fn open_count_below(root: &Path) -> usize {
    let files = fs::read_dir("/proc/self/fd").unwrap();
    // A descriptor that was closed meanwhile has no link.
    let names = files.filter_map(|file| fs::read_link(file.unwrap().path()).ok());
    names.filter(|name| name.starts_with(root)).count()
}

/// Removes a tree so deep that the standard library's `remove_dir_all` would overflow its stack.
pub(crate) fn remove_deep(dir: &Path) {
    let status = std::process::Command::new("rm")
        .arg("-rf")
        .arg(dir.join("d"))
        .status();
    assert!(status.unwrap().success());
}

/// Creates a directory of 100,000 files.
pub(crate) fn make_wide(root: &Path) {
    fs::create_dir(root).unwrap();
    fs::write(root.join("0"), "content").unwrap();
    for number in 1..100_000 {
        fs::hard_link(root.join("0"), root.join(number.to_string()))
            .or_else(|_too_many| fs::write(root.join(number.to_string()), "content"))
            .unwrap();
    }
}

/// Generates trees of files, symbolic links and directories.
pub(crate) fn node() -> impl Strategy<Value = Node> {
    let leaf = prop_oneof![
        (prop::collection::vec(any::<u8>(), 0..40_000), any::<bool>()).prop_map(
            |(content, executable)| Node::File {
                content,
                executable
            }
        ),
        "[a-z/.]{1,30}".prop_map(Node::link),
    ];
    leaf.prop_recursive(4, 60, 10, |inner| {
        let name =
            "[a-zA-Z0-9. _-]{1,12}".prop_filter("an entry", |name| name != "." && name != "..");
        prop::collection::vec((name, inner), 0..10).prop_map(Node::dir)
    })
}

/// No regression files are written, because failing cases are printed in full.
pub(crate) fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(24)
    }
}
