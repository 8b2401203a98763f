//! A tree is read completely, or reading fails with the path of the file that changed.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode};
use samovar_store::Tree;
use samovar_workspace::pack::{hash, hash_steady};
use samovar_workspace::scan::Options;
use samovar_workspace::{
    Files, Index, Kind, Packer, ReadError, STATE_DIRECTORY, Scanned, file_nar, read_tree,
};
use sha2::{Digest, Sha256};
use testkit::nar::Node;

fn nar_of_store(root: &Path) -> Vec<u8> {
    let mut nar = Vec::new();
    let mut reader = Tree::of_files(root.to_owned()).nar().unwrap();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match reader.read(&mut buffer).unwrap() {
            0 => return nar,
            count => nar.extend_from_slice(&buffer[..count]),
        }
    }
}

fn pack(scanned: &Arc<Scanned>, threads: usize) -> Result<Vec<u8>, ReadError> {
    let mut packer = Packer::start(Arc::clone(scanned), threads)?;
    let mut nar = Vec::new();
    match packer.read_to_end(&mut nar) {
        Ok(_) => Ok(nar),
        Err(error) => Err(error.downcast().unwrap()),
    }
}

fn digests(scanned: &Scanned) -> BTreeMap<PathBuf, [u8; 32]> {
    let list = scanned.entries.list().iter().enumerate();
    let files = list.filter_map(|(index, entry)| match entry.kind {
        Kind::File { digest, .. } => Some((scanned.path(index), digest.unwrap())),
        _ => None,
    });
    files.collect()
}

/// Reads a tree in all ways, and compares the results with each other and with the files.
fn check(root: &Path) -> Vec<u8> {
    let nar = nar_of_store(root);
    for threads in [1, 3] {
        let (scanned, nar_hash) = read_tree(root, None, true, threads).unwrap();
        assert_eq!(scanned.entries.nar_size(), nar.len() as u64);
        assert_eq!(nar_hash.unwrap().as_bytes()[..], Sha256::digest(&nar)[..]);
        let found = digests(&scanned);
        for (path, digest) in &found {
            assert_eq!(digest[..], Sha256::digest(fs::read(path).unwrap())[..]);
        }
        let (without_nar, none) = read_tree(root, None, false, threads).unwrap();
        assert_eq!(none, None);
        assert_eq!(digests(&without_nar), found);
        assert!(pack(&Arc::new(scanned), threads).unwrap() == nar);
    }
    nar
}

#[test]
fn every_kind_of_name_and_file_is_packed() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    let mut deep = Node::dir([("bottom", Node::file("x"))]);
    for _ in 0..40 {
        deep = Node::dir([("d", deep), ("e", Node::program("#!"))]);
    }
    let names: [&[u8]; 6] = [
        b"a\nb",
        b"\xff\xfe",
        &[b'n'; 255],
        b" ",
        b"%41",
        "ä".as_bytes(),
    ];
    let odd = Node::dir(names.map(|name| (name, Node::file(name))));
    let tree: Node = Node::dir([
        ("deep", deep),
        ("empty", Node::dir::<&str>([])),
        ("huge", Node::file(vec![7; (9 << 20) + 1])),
        ("link", Node::link(*b"a\n\xff")),
        ("odd", odd),
        ("piece", Node::file(vec![8; 256 << 10])),
        ("zero", Node::file("")),
    ]);
    tree.write_tree(&root).unwrap();
    fs::hard_link(root.join("zero"), root.join("zero again")).unwrap();
    let nar = check(&root);
    if let Ok(output) = Command::new("nix-store").arg("--dump").arg(&root).output()
        && output.status.success()
    {
        assert!(output.stdout == nar);
    }
}

#[test]
fn an_empty_tree_is_packed() {
    let dir = tempfile::tempdir().unwrap();
    check(dir.path());
}

#[test]
fn state_directories_are_left_out_at_any_depth() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join(STATE_DIRECTORY);
    fs::create_dir_all(state.join("a/b")).unwrap();
    fs::write(state.join("a/b/file"), "x").unwrap();
    fs::create_dir_all(dir.path().join("sub").join(STATE_DIRECTORY)).unwrap();
    let scanned = Scanned::scan(dir.path()).unwrap();
    let paths = (0..scanned.entries.list().len()).map(|index| scanned.entries.path(index));
    assert_eq!(paths.collect::<Vec<_>>(), [&b""[..], b"sub"]);
}

#[test]
fn special_files_are_skipped_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c", "d", "e", "f"] {
        rustix::fs::mkfifoat(CWD, dir.path().join(name), Mode::RUSR).unwrap();
    }
    let scanned = Scanned::scan(dir.path()).unwrap();
    assert_eq!(scanned.entries.list().len(), 1);
    let special = ["a", "b", "c", "d", "e", "f"].map(PathBuf::from);
    assert_eq!(scanned.skipped.special, special);
    assert!(scanned.skipped.mounts.is_empty());
}

#[test]
fn a_path_that_nix_refuses_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut path = dir.path().canonicalize().unwrap();
    for _ in 0..63 {
        path.push("d");
    }
    fs::create_dir_all(&path).unwrap();
    check(dir.path());
    fs::write(path.join("file"), "").unwrap();
    let error = Scanned::scan(dir.path()).unwrap_err();
    assert!(
        matches!(&error, ReadError::Entry { path: at, .. } if *at == path.join("file")),
        "{error}"
    );
}

#[test]
fn an_unreadable_directory_and_a_root_that_is_none_are_named() {
    let dir = tempfile::tempdir().unwrap();
    for (name, reason) in [("none", "No such file"), ("file", "not a directory")] {
        let path = dir.path().join(name);
        if name == "file" {
            fs::write(&path, "").unwrap();
        }
        let error = Scanned::scan(&path).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains(name), "{error}");
    }
    let locked = dir.path().join("locked");
    fs::create_dir(&locked).unwrap();
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read_dir(&locked).is_ok() {
        // Root may read every directory.
        return;
    }
    let error = Scanned::scan(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("Permission denied") && error.contains("locked"),
        "{error}"
    );
}

/// Scans a tree, changes something in `dir`, and checks that all ways of reading notice it.
#[track_caller]
fn check_change(change: impl Fn(&Path)) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap().join("root");
    let sub = Node::dir([("file", Node::program(vec![b'x'; 1 << 20]))]);
    let tree: Node = Node::dir([("a", Node::file("a")), ("dir", sub)]);
    tree.write_tree(&root).unwrap();
    let file = root.join("dir/file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    wait_for_tick(&file, dir.path());
    let scanned = Scanned::scan(&root).unwrap();
    change(&file);
    let is_named = |error: &ReadError| {
        let ReadError::Changed(path) = error else {
            panic!("{error}");
        };
        assert!(path.starts_with(root.join("dir")), "{error}");
    };
    for needs_nar_hash in [false, true] {
        let mut scanned = scanned.clone();
        is_named(&hash(&mut scanned, needs_nar_hash, 2, &|_| {}).unwrap_err());
    }
    let scanned = Arc::new(scanned);
    is_named(&pack(&scanned, 2).unwrap_err());
    let index = (0..).find(|index| scanned.path(*index) == file).unwrap();
    let mut files = Files::open_root(&scanned).unwrap();
    is_named(&files.open(index).unwrap_err());
}

/// Waits until a change gets another time stamp than the last change of `file`. The kernel takes
/// the stamps from a clock that advances in ticks.
fn wait_for_tick(file: &Path, probes: &Path) {
    let stamp = |path: &Path| {
        let metadata = fs::metadata(path).unwrap();
        (metadata.ctime(), metadata.ctime_nsec())
    };
    let last = stamp(file);
    let probe = probes.join("probe");
    loop {
        fs::write(&probe, "x").unwrap();
        if stamp(&probe) > last {
            return;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_file_that_grows_or_shrinks_is_refused() {
    check_change(|file| {
        File::options()
            .append(true)
            .open(file)
            .unwrap()
            .write_all(b"x")
            .unwrap()
    });
    check_change(|file| {
        File::options()
            .write(true)
            .open(file)
            .unwrap()
            .set_len(7)
            .unwrap()
    });
}

#[test]
fn a_file_that_is_rewritten_is_refused() {
    check_change(|file| fs::write(file, vec![b'y'; 1 << 20]).unwrap());
}

#[test]
fn a_file_that_vanishes_is_refused() {
    check_change(|file| fs::remove_file(file).unwrap());
}

#[test]
fn a_file_that_becomes_a_fifo_a_link_or_a_directory_is_refused() {
    let replace = |file: &Path| fs::rename(file, file.with_file_name("moved")).unwrap();
    check_change(|file| {
        replace(file);
        rustix::fs::mkfifoat(CWD, file, Mode::RUSR).unwrap();
    });
    check_change(|file| {
        replace(file);
        symlink("moved", file).unwrap();
    });
    check_change(|file| {
        replace(file);
        fs::create_dir(file).unwrap();
    });
    check_change(|file| {
        replace(file);
        rustix::fs::mknodat(CWD, file, FileType::Socket, Mode::RUSR, 0).unwrap();
    });
}

#[test]
fn a_directory_that_becomes_a_link_to_it_is_refused() {
    check_change(|file| {
        let directory = file.parent().unwrap();
        let moved = directory.with_file_name("moved");
        fs::rename(directory, &moved).unwrap();
        symlink(&moved, directory).unwrap();
    });
}

#[test]
fn a_root_that_is_replaced_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    let scanned = Scanned::scan(&root).unwrap();
    fs::rename(&root, dir.path().join("moved")).unwrap();
    fs::create_dir(&root).unwrap();
    assert!(matches!(
        Files::open_root(&scanned),
        Err(ReadError::Changed(_))
    ));
}

#[test]
fn a_tree_that_changed_once_is_scanned_again() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        fs::write(dir.path().join(name), "old").unwrap();
    }
    let mut scanned = Scanned::scan(dir.path()).unwrap();
    fs::write(dir.path().join("b"), "newer").unwrap();
    fs::write(dir.path().join("c"), "new").unwrap();
    let rescan = |options| Scanned::scan_with(dir.path(), options);
    let nar_hash = hash_steady(&mut scanned, true, 2, &|_| {}, &rescan);
    let nar_hash = nar_hash.unwrap().unwrap();
    let nar = nar_of_store(dir.path());
    assert_eq!(nar_hash.as_bytes()[..], Sha256::digest(&nar)[..]);
    assert_eq!(digests(&scanned).len(), 3);
    assert!(pack(&Arc::new(scanned), 2).unwrap() == nar);
}

/// A file is renamed from a directory that was not scanned yet into one that was: the first scan
/// has it nowhere.
#[test]
fn a_tree_that_changed_between_two_scans_is_read_as_it_was_at_one_moment() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    for name in ["a", "z"] {
        fs::create_dir(root.join(name)).unwrap();
    }
    fs::write(root.join("z/file"), "x").unwrap();
    let scan_count = Cell::new(0);
    let rescan = |options| {
        let scanned = Scanned::scan_with(&root, options);
        scan_count.set(scan_count.get() + 1);
        // After the first two scans.
        match scan_count.get() {
            1 => fs::rename(root.join("z/file"), root.join("a/file")).unwrap(),
            2 => fs::rename(root.join("a/file"), root.join("z/file")).unwrap(),
            _ => {}
        }
        scanned
    };
    let mut scanned = rescan(Options::default()).unwrap();
    hash_steady(&mut scanned, false, 2, &|_| {}, &rescan).unwrap();
    let index = scanned.entries.find(b"z/file");
    assert!(index.is_some() && scanned.entries.find(b"a/file").is_none());
    assert!(scan_count.get() >= 4, "{scan_count:?}");
    // A tree that always changes is refused, with the path of a change.
    let rescan = |options| {
        fs::write(root.join("a/new"), "x").unwrap();
        fs::remove_file(root.join("a/new")).unwrap();
        Scanned::scan_with(&root, options)
    };
    let found = hash_steady(&mut scanned, false, 2, &|_| {}, &rescan);
    assert!(matches!(found, Err(ReadError::Changed(_))), "{found:?}");
}

#[test]
fn all_bytes_that_are_read_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = [0, 1, 600, 3_000_000];
    for size in sizes {
        fs::write(dir.path().join(size.to_string()), vec![1; size]).unwrap();
    }
    let scanned = Scanned::scan(dir.path()).unwrap();
    let files_len = sizes.iter().sum::<usize>() as u64;
    for (needs_nar_hash, expected) in [(false, files_len), (true, scanned.entries.nar_size())] {
        let read_len = AtomicU64::new(0);
        let report = |len| {
            read_len.fetch_add(len, Ordering::Relaxed);
        };
        hash(&mut scanned.clone(), needs_nar_hash, 2, &report).unwrap();
        assert_eq!(read_len.into_inner(), expected);
    }
}

#[test]
fn many_links_are_packed_in_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let target = "t".repeat(4000);
    for number in 0..300 {
        symlink(&target, dir.path().join(number.to_string())).unwrap();
    }
    check(dir.path());
}

#[test]
fn a_packer_may_be_dropped_at_any_time() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), vec![1; 20 << 20]).unwrap();
    let scanned = Arc::new(Scanned::scan(dir.path()).unwrap());
    for count in [0, 1, 1 << 20] {
        let mut packer = Packer::start(Arc::clone(&scanned), 3).unwrap();
        packer.read_exact(&mut vec![0; count]).unwrap();
    }
}

#[test]
fn reading_works_with_64_descriptors() {
    const VARIABLE: &str = "SAMOVAR_TEST_LIMITED";
    if std::env::var_os(VARIABLE).is_none() {
        let test = std::env::current_exe().unwrap();
        let status = Command::new("sh")
            .args([
                "-c",
                "ulimit -n 64 && exec \"$0\" --exact reading_works_with_64_descriptors",
            ])
            .arg(test)
            .env(VARIABLE, "1")
            .status();
        assert!(status.unwrap().success());
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut tree: Node = Node::dir([("file", Node::file("x"))]);
    for _ in 0..60 {
        tree = Node::dir([("a", Node::file("a")), ("d", tree), ("z", Node::file("z"))]);
    }
    let root = dir.path().join("root");
    tree.write_tree(&root).unwrap();
    let (scanned, _) = read_tree(&root, None, true, 8).unwrap();
    assert!(pack(&Arc::new(scanned), 8).unwrap() == nar_of_store(&root));
}

#[test]
fn the_nar_of_a_file_is_that_of_nix() {
    let node: Node = Node::file("hello\n");
    assert_eq!(file_nar(b"hello\n"), node.nar());
    let empty: Node = Node::file("");
    assert_eq!(file_nar(b""), empty.nar());
}

/// Contents can change without the metadata if a disk decays.
#[test]
fn a_file_that_differs_from_its_digest_is_not_packed() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    let tree: Node = Node::dir([("a", Node::file("a")), ("b", Node::file("b"))]);
    tree.write_tree(&root).unwrap();
    for threads in [1, 3] {
        let (mut scanned, nar_hash) = read_tree(&root, None, true, threads).unwrap();
        assert_eq!(
            hash(&mut scanned, true, threads, &|_| {}).unwrap(),
            nar_hash
        );
        let digest = Sha256::digest("rotten").into();
        scanned.entries.set_digest(2, digest);
        match hash(&mut scanned, true, threads, &|_| {}) {
            Err(ReadError::Damaged(path)) => assert_eq!(path, root.join("b")),
            other => panic!("{other:?}"),
        }
        // Without the NAR, only files without a digest are read.
        assert_eq!(hash(&mut scanned, false, threads, &|_| {}).unwrap(), None);
    }
}

/// Makes an index that trusts all files, whatever their age.
fn settled_index(scanned: &Scanned) -> Index {
    let mut scanned = scanned.clone();
    scanned.settled.seconds += 100;
    Index::of(&scanned)
}

#[test]
fn an_unchanged_file_keeps_its_digest() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    let sub = || Node::dir([("x", Node::file("x")), ("y", Node::file("y"))]);
    let tree: Node = Node::dir([
        ("a", sub()),
        ("b", sub()),
        ("c", sub()),
        ("d", Node::file("d")),
    ]);
    tree.write_tree(&root).unwrap();
    let (scanned, _) = read_tree(&root, None, false, 2).unwrap();
    let index = settled_index(&scanned);
    let state = dir.path();
    index.write(state).unwrap();
    assert_eq!(
        Index::read(state).unwrap().unwrap().encode(),
        index.encode()
    );
    let mode = fs::metadata(state.join("index")).unwrap().mode();
    assert_eq!(mode & 0o077, 0, "names of private files");
    wait_for_tick(&root.join("d"), dir.path());
    fs::remove_file(root.join("a/x")).unwrap();
    fs::write(root.join("a/x"), "X").unwrap();
    fs::rename(root.join("b"), root.join("bb")).unwrap();
    fs::write(root.join("c/new"), "new").unwrap();
    fs::remove_file(root.join("c/x")).unwrap();
    fs::set_permissions(root.join("d"), fs::Permissions::from_mode(0o600)).unwrap();
    let mut scanned = Scanned::scan(&root).unwrap();
    let missing = index.apply(&mut scanned);
    let missing: Vec<_> = missing
        .iter()
        .map(|index| scanned.entries.path(*index))
        .collect();
    assert_eq!(missing, [&b"a/x"[..], b"bb/x", b"bb/y", b"c/new", b"d"]);
    let (with_index, _) = read_tree(&root, Some(&index), false, 2).unwrap();
    assert_eq!(
        digests(&with_index),
        digests(&read_tree(&root, None, false, 2).unwrap().0)
    );
}

fn node() -> impl Strategy<Value = Node> {
    let content = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..64),
        (0..600_000_usize).prop_map(|len| vec![b'.'; len]),
    ];
    let file = (content, any::<bool>()).prop_map(|(content, executable)| Node::File {
        content,
        executable,
    });
    let target = prop::collection::vec(1..=255_u8, 1..20);
    let leaf = prop_oneof![4 => file, 1 => target.prop_map(Node::Link)];
    let name = prop::collection::vec(any::<u8>(), 1..12).prop_map(|name| {
        let name: Vec<u8> = name
            .into_iter()
            .filter(|byte| !matches!(byte, 0 | b'/'))
            .collect();
        [b"_".to_vec(), name].concat()
    });
    let directory = move |inner| prop::collection::btree_map(name.clone(), inner, 0..8);
    let inner = leaf.prop_recursive(5, 40, 8, move |inner| directory(inner).prop_map(Node::Dir));
    prop::collection::btree_map("[a-z.]{3,9}", inner, 0..8).prop_map(Node::dir)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_tree_is_packed(tree in node()) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        tree.write_tree(&root).unwrap();
        prop_assert!(check(&root) == tree.nar());
    }
}
