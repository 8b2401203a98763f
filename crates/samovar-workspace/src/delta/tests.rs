use proptest::prelude::*;

use super::*;
use crate::entries::{Builder, Mtime};
use crate::manifest::Manifest;
use crate::test_tree::{Tree, digest, edited, tree};

/// Applies a delta. `contents` returns the contents of a file of the new tree.
fn apply<'a>(delta: &Delta, base: &[u8], contents: impl Fn(usize) -> &'a [u8]) -> Vec<u8> {
    let mut nar = Vec::new();
    let mut copied = 0;
    for op in &delta.ops {
        let start = nar.len();
        match op {
            Op::Copy { offset, len } => {
                let offset = usize::try_from(*offset).unwrap();
                let len = usize::try_from(*len).unwrap();
                nar.extend_from_slice(&base[offset..offset + len]);
                copied += len as u64;
            }
            Op::Bytes(range) => nar.extend_from_slice(&delta.bytes[range.clone()]),
            Op::File(index) => nar.extend_from_slice(contents(*index)),
        }
        assert!(nar.len() > start, "{op:?} is empty");
    }
    assert_eq!(delta.literal_len(), nar.len() as u64 - copied);
    nar
}

fn no_file(index: usize) -> &'static [u8] {
    panic!("file {index} is not copied")
}

fn file(tree: &mut Builder, name: &str, contents: &[u8]) {
    let (size, digest) = (contents.len() as u64, Some(digest(contents)));
    let time = Mtime::default();
    tree.file(name.as_bytes(), 0o644, time, size, digest)
        .unwrap();
}

/// Returns a tree with a directory for each list of names. Contents are the names.
fn directories(directories: &[(&str, &[&str])]) -> Entries {
    let mut tree = Builder::new(0o755, Mtime::default());
    for (name, files) in directories {
        tree.enter(name.as_bytes(), 0o755, Mtime::default())
            .unwrap();
        for name in *files {
            file(&mut tree, name, name.as_bytes());
        }
        tree.leave().unwrap();
    }
    tree.leave().unwrap();
    tree.finish().unwrap()
}

fn copies(delta: &Delta) -> usize {
    let is_copy = |op: &&Op| matches!(op, Op::Copy { .. });
    delta.ops.iter().filter(is_copy).count()
}

#[test]
fn the_same_tree_is_one_copy() {
    for tree in [
        directories(&[]),
        directories(&[("a", &["x", "y"]), ("b", &["x"])]),
    ] {
        let delta = Delta::of_trees(&tree, &tree);
        let len = tree.nar_size();
        assert_eq!(delta.ops, [Op::Copy { offset: 0, len }]);
        assert_eq!(delta.literal_len(), 0);
    }
}

#[test]
fn modes_and_times_outside_the_nar_do_not_matter() {
    let tree = |mode, seconds| {
        let time = Mtime {
            seconds,
            nanoseconds: 0,
        };
        let mut tree = Builder::new(mode, time);
        tree.file(b"x", mode, time, 5, Some([1; 32])).unwrap();
        tree.leave().unwrap();
        tree.finish().unwrap()
    };
    assert_eq!(
        copies(&Delta::of_trees(&tree(0o700, 1), &tree(0o755, 2))),
        1
    );
    assert_eq!(
        copies(&Delta::of_trees(&tree(0o700, 1), &tree(0o600, 1))),
        2
    );
}

#[test]
fn a_changed_file_is_literal_with_its_length() {
    let base = directories(&[("a", &["x", "y", "z"])]);
    let new = {
        let mut tree = Builder::new(0o755, Mtime::default());
        tree.enter(b"a", 0o755, Mtime::default()).unwrap();
        file(&mut tree, "x", b"x");
        file(&mut tree, "y", b"changed");
        file(&mut tree, "z", b"z");
        tree.leave().unwrap();
        tree.leave().unwrap();
        tree.finish().unwrap()
    };
    let delta = Delta::of_trees(&base, &new);
    assert!(matches!(
        delta.ops[..],
        [
            Op::Copy { offset: 0, .. },
            Op::Bytes(_),
            Op::File(3),
            Op::Copy { .. }
        ]
    ));
    // One byte of the length differs, the others are zeros: the length is 8 bytes.
    assert!(delta.literal_len() <= 7 + 8, "{delta:?}");
}

#[test]
fn a_removed_directory_is_two_copies() {
    let base = directories(&[("a", &["1", "2"]), ("b", &["3", "4"]), ("c", &["5", "6"])]);
    let new = directories(&[("a", &["1", "2"]), ("c", &["5", "6"])]);
    let delta = Delta::of_trees(&base, &new);
    assert_eq!(copies(&delta), 2);
    assert!(delta.literal_len() < 16, "{delta:?}");
}

#[test]
fn a_renamed_directory_is_copied_with_the_framing_between_its_files() {
    let base = directories(&[("a", &["1", "2"]), ("b", &["3", "4", "5"]), ("c", &["6"])]);
    let new = directories(&[("a", &["1", "2"]), ("c", &["6"]), ("d", &["3", "4", "5"])]);
    let delta = Delta::of_trees(&base, &new);
    assert_eq!(copies(&delta), 4, "{delta:?}");
    assert!(!delta.ops.iter().any(|op| matches!(op, Op::File(_))));
}

#[test]
fn of_equal_contents_the_file_after_the_last_match_is_copied() {
    let (twice, once) = (&["1", "2", "3"][..], &["2"][..]);
    let base = directories(&[("a", twice), ("b", twice), ("c", once)]);
    let new = directories(&[("b", twice), ("c", once)]);
    let delta = Delta::of_trees(&base, &new);
    assert_eq!(copies(&delta), 2, "{delta:?}");
}

#[test]
fn a_file_without_a_digest_is_literal() {
    let tree = {
        let mut tree = Builder::new(0o755, Mtime::default());
        tree.file(b"x", 0o644, Mtime::default(), 5, None).unwrap();
        tree.leave().unwrap();
        tree.finish().unwrap()
    };
    assert!(Delta::of_trees(&tree, &tree).ops.contains(&Op::File(1)));
}

#[test]
fn contents_of_another_size_are_not_copied() {
    let tree = |size| {
        let mut tree = Builder::new(0o755, Mtime::default());
        tree.file(b"x", 0o644, Mtime::default(), size, Some([1; 32]))
            .unwrap();
        tree.leave().unwrap();
        tree.finish().unwrap()
    };
    assert!(
        Delta::of_trees(&tree(5), &tree(6))
            .ops
            .contains(&Op::File(1))
    );
}

#[test]
fn changed_links_among_many_are_literal_alone() {
    let tree = |changed: &str| {
        let mut tree = Builder::new(0o755, Mtime::default());
        for number in 0..2000 {
            let target = match number % 500 {
                7 => changed.to_owned(),
                _ => format!("/target/{number}"),
            };
            let name = format!("{number:05}");
            tree.symlink(name.as_bytes(), Mtime::default(), target.as_bytes())
                .unwrap();
        }
        tree.leave().unwrap();
        tree.finish().unwrap()
    };
    let (base, new) = (tree("/old"), tree("/new/target"));
    let delta = Delta::of_trees(&base, &new);
    let nar = |entries: &Entries| {
        let mut nar = Vec::new();
        assert_eq!(entries.framing().next_file(&mut nar), Ok(None));
        nar
    };
    assert_eq!(apply(&delta, &nar(&base), no_file), nar(&new));
    assert!(delta.literal_len() < 400, "{}", delta.literal_len());
}

#[test]
fn files_added_among_many_links_are_literal_alone() {
    let tree = |has_files: bool| {
        let mut tree = Builder::new(0o755, Mtime::default());
        for number in 0..2000 {
            let name = format!("{number:05}");
            tree.symlink(name.as_bytes(), Mtime::default(), b"/target")
                .unwrap();
            if has_files && number % 100 == 50 {
                file(&mut tree, &format!("{number:05}-new"), name.as_bytes());
            }
            if number > 1990 {
                file(&mut tree, &format!("{number:05}-old"), b"old");
            }
        }
        tree.leave().unwrap();
        tree.finish().unwrap()
    };
    let delta = Delta::of_trees(&tree(false), &tree(true));
    assert!(delta.literal_len() < 20 * 250, "{}", delta.literal_len());
}

#[test]
fn a_text_is_copied_by_lines() {
    let line = |number: usize| format!("f 644 1700000000 {number} {:0>43} name\n", number * 7919);
    let lines = |numbers: &[usize]| -> Vec<u8> {
        numbers
            .iter()
            .flat_map(|number| line(*number).into_bytes())
            .collect()
    };
    let all: Vec<usize> = (0..1000).collect();
    let base = lines(&all);
    let same = Delta::of_texts(&base, &base);
    assert_eq!(copies(&same), 1);
    assert_eq!(same.literal_len(), 0);

    let mut edited = all.clone();
    edited[500] = 5000;
    edited.remove(200);
    let new = lines(&edited);
    let delta = Delta::of_texts(&base, &new);
    assert_eq!(apply(&delta, &base, no_file), new);
    assert_eq!(copies(&delta), 3);
    assert!(delta.literal_len() < 60, "{delta:?}");

    let new = lines(&[&all[700..], &all[..300]].concat());
    let delta = Delta::of_texts(&base, &new);
    assert_eq!(apply(&delta, &base, no_file), new);
    assert_eq!((copies(&delta), delta.literal_len()), (2, 0));
}

#[test]
fn lines_that_occur_twice_are_copied_from_the_same_place() {
    let block: String = (0..500)
        .map(|number| format!("f 644 0 {number} x\n"))
        .collect();
    let base = format!("{block}{block}end 1000\n");
    let new = base.replacen("f 644 0 250 x", "f 600 0 250 y", 1);
    let delta = Delta::of_texts(base.as_bytes(), new.as_bytes());
    assert_eq!(apply(&delta, base.as_bytes(), no_file), new.as_bytes());
    assert_eq!(copies(&delta), 2);
}

fn manifest(tree: &Tree) -> String {
    let path = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5-app";
    let hash = b"1xga7qa3wjdkhc71mbz9wm36q1nl7z2c95sl9529vindmjnrdn0z";
    Manifest {
        tree: samovar_nix::StorePath::from_base_name(path).unwrap(),
        nar_hash: samovar_nix::NarHash::parse_nixbase32(hash).unwrap(),
        entries: tree.entries(),
    }
    .text()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn the_operations_of_an_edited_tree_build_its_nar((base, new) in edited(tree())) {
        let delta = Delta::of_trees(&base.entries(), &new.entries());
        prop_assert_eq!(apply(&delta, &base.nar(), |index| new.contents(index)), new.nar());
    }

    #[test]
    fn the_operations_of_any_trees_build_the_nar(base in tree(), new in tree()) {
        let delta = Delta::of_trees(&base.entries(), &new.entries());
        prop_assert_eq!(apply(&delta, &base.nar(), |index| new.contents(index)), new.nar());
    }

    #[test]
    fn contents_that_the_base_has_are_copied((base, new) in edited(tree())) {
        let delta = Delta::of_trees(&base.entries(), &new.entries());
        for op in &delta.ops {
            let Op::File(index) = op else { continue };
            let contents = new.contents(*index);
            let mut others = (0..base.0.len()).map(|index| contents_of(&base, index));
            let is_in_base = others.any(|other| other == Some(contents));
            prop_assert!(!is_in_base);
        }
    }

    #[test]
    fn the_operations_of_a_manifest_build_it((base, new) in edited(tree())) {
        let (base, new) = (manifest(&base), manifest(&new));
        let delta = Delta::of_texts(base.as_bytes(), new.as_bytes());
        prop_assert_eq!(apply(&delta, base.as_bytes(), no_file), new.as_bytes());
    }

    #[test]
    fn the_operations_of_any_bytes_build_them(
        base in "[ab\n]{0,400}",
        new in "[ab\n]{0,400}",
        at in 0..400_usize,
    ) {
        let delta = Delta::of_texts(base.as_bytes(), new.as_bytes());
        prop_assert_eq!(apply(&delta, base.as_bytes(), no_file), new.as_bytes());
        let new = [&base[at.min(base.len())..], &new, &base].concat();
        let delta = Delta::of_texts(base.as_bytes(), new.as_bytes());
        prop_assert_eq!(apply(&delta, base.as_bytes(), no_file), new.as_bytes());
    }
}

fn contents_of(tree: &Tree, index: usize) -> Option<&[u8]> {
    let node = tree.0.values().nth(index)?;
    matches!(node.data, crate::test_tree::Data::File(_)).then(|| tree.contents(index))
}
