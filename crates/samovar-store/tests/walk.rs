//! NARs and listings equal those of Nix, for any tree and any size of the buffer.

mod support;

use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use proptest::prelude::*;
use samovar_store::{Store, Tree, TreeError};
use support::NixStore;
use support::tree::{
    config, example, listing, make_deep, make_wide, nar, node, open_count, remove_deep,
};

/// Computes the length of the NAR without reading contents.
fn nar_size(tree: &Tree) -> u64 {
    let plan = tree.plan(16 << 20).expect("a plan");
    plan.nar_size()
}

#[test]
fn nars_equal_those_of_nix() {
    let store = NixStore::new();
    let source = store.join("vec-1.0");
    example(&source);
    let path = store.add(&source);
    let local = store.open();
    let tree = local.tree(&path).unwrap();
    let expected = store.dump(&path);
    assert_eq!(expected.len(), 1232);
    for buffer_len in [1, 7, 8, 100, 4096, 1 << 18] {
        assert_eq!(
            nar(&tree, buffer_len),
            expected,
            "with buffers of {buffer_len} bytes"
        );
    }
    assert_eq!(nar_size(&tree), 1232);
    let info = local.lookup(path.hash_part()).unwrap().unwrap();
    assert_eq!(info.nar_size, 1232);
    assert_eq!(info.path, path);
}

#[test]
fn a_listing_has_the_offsets_of_contents() {
    let dir = tempfile::tempdir().unwrap();
    example(&dir.path().join("x"));
    let tree = Tree::of_files(dir.path().join("x"));
    let listing = listing(&tree);
    for expected in [
        "\"narOffset\":232",
        "\"narOffset\":592",
        "\"narOffset\":1184",
    ] {
        assert!(listing.contains(expected), "{listing}");
    }
    assert!(
        listing.starts_with("{\"version\":1,\"root\":{"),
        "{listing}"
    );
    assert_eq!(nar(&tree, 4096)[232..238], *b"hello\n");
}

#[test]
fn roots_that_are_not_directories() {
    let store = NixStore::new();
    let file = store.add_text("file", "hello\n");
    let link = store.join("link");
    symlink("/nowhere", &link).unwrap();
    let link = store.add(&link);
    let local = store.open();
    for path in [file, link] {
        assert_eq!(nar(&local.tree(&path).unwrap(), 10), store.dump(&path));
    }
}

#[test]
fn odd_names_keep_their_order() {
    let store = NixStore::new();
    let source = store.join("odd");
    fs::create_dir(&source).unwrap();
    let long = [b'a'; 255];
    let names: [&[u8]; 14] = [
        b"\x01ctrl",
        b"-dash",
        b".hidden",
        b"Case",
        &long,
        b"back\\slash",
        b"case",
        b"latin1-\xe9",
        b"new\nline",
        b"quote\"",
        b"tab\t",
        b"utf8-\xc3\xa9",
        b"with space",
        b"a",
    ];
    for name in names {
        fs::write(source.join(std::ffi::OsStr::from_bytes(name)), name).unwrap();
    }
    let path = store.add(&source);
    let tree = store.open().tree(&path).unwrap();
    assert_eq!(nar(&tree, 1 << 16), store.dump(&path));
    assert!(listing(&tree).ends_with("}}}"));
}

#[test]
fn a_tree_of_5000_levels() {
    let dir = tempfile::tempdir().unwrap();
    make_deep(dir.path());
    let before = open_count();
    let tree = Tree::of_files(dir.path().join("d"));
    let mut reader = tree.nar().unwrap();
    let (mut buffer, mut open_count_max) = ([0; 4096], 0);
    while reader.fill(&mut buffer).unwrap() > 0 {
        open_count_max = open_count_max.max(open_count());
    }
    let listing = listing(&tree);
    assert_eq!(listing.matches("\"type\":\"directory\"").count(), 5000);
    assert_eq!(listing.matches("\"type\":\"symlink\"").count(), 5000);
    // Far fewer than levels. Other tests open files, too.
    assert!(
        open_count_max < before + 500,
        "{open_count_max} descriptors, {before} before"
    );
    assert_eq!(nar_size(&tree), nar(&tree, 1 << 18).len() as u64);
    remove_deep(dir.path());
}

#[test]
fn a_directory_of_100000_entries() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("x");
    make_wide(&root);
    let tree = Tree::of_files(root);
    assert_eq!(nar_size(&tree), nar(&tree, 1 << 18).len() as u64);
}

#[test]
fn a_range_starts_anywhere() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("x");
    example(&root);
    fs::write(root.join("big"), vec![b'x'; 100_000]).unwrap();
    let tree = Tree::of_files(root);
    let whole = nar(&tree, 4096);
    let end = whole.len();
    for offset in (0..1500).chain([50_000, 100_000, end - 1, end]) {
        let mut reader = tree.nar().unwrap();
        reader.skip_to(offset as u64).unwrap();
        assert_eq!(reader.position(), offset as u64);
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
        assert!(rest == whole[offset..], "from {offset}");
    }
    let mut reader = tree.nar().unwrap();
    let past_end = reader.skip_to(end as u64 + 1);
    assert!(matches!(past_end, Err(TreeError::NoSuchOffset)));
    let mut reader = tree.nar().unwrap();
    reader.skip_to(10).unwrap();
    assert!(matches!(reader.skip_to(9), Err(TreeError::NoSuchOffset)));
}

#[test]
fn skipping_twice_and_reading_between() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("x");
    example(&root);
    let tree = Tree::of_files(root);
    let whole = nar(&tree, 4096);
    let mut reader = tree.nar().unwrap();
    let mut piece = [0; 5];
    for offset in [3, 234, 240, 590, 595, 1000, 1200] {
        reader.skip_to(offset as u64).unwrap();
        reader.read_exact(&mut piece).unwrap();
        assert_eq!(piece, whole[offset..offset + 5]);
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_tree_any_buffer(
        node in node(),
        buffer_len in 1..70_000_usize,
        part in any::<prop::sample::Index>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("x");
        node.write_tree(&root).unwrap();
        let output = std::process::Command::new("nix-store").arg("--dump").arg(&root).output();
        let expected = output.unwrap().stdout;
        let tree = Tree::of_files(root);
        prop_assert!(nar(&tree, buffer_len) == expected);
        prop_assert_eq!(nar_size(&tree), expected.len() as u64);

        let offset = part.index(expected.len() + 1);
        let mut reader = tree.nar().unwrap();
        reader.skip_to(offset as u64).unwrap();
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
        prop_assert!(rest == expected[offset..]);
    }
}
