use proptest::prelude::*;

use super::*;
use crate::entries::Builder;
use crate::test_tree::{Data, Node, Path, Tree, edited, edited_twice, names, paths, tree};

pub(super) const LABEL: &str = "host-2026-11-23";

pub(super) fn actions(base: &Tree, ours: &Tree, theirs: &Tree) -> Vec<Action> {
    merge(&base.entries(), &ours.entries(), &theirs.entries(), LABEL)
}

/// Makes the changes in our tree. Panics if an action is not possible or would lose something.
pub(super) fn apply(actions: &[Action], ours: &Tree, theirs: &Tree) -> Tree {
    let (our_paths, their_paths) = (tree_paths(ours), tree_paths(theirs));
    let node_of = |index: usize| theirs.0[&their_paths[index]].clone();
    let mut tree = ours.clone();
    for Action { path, kind } in actions {
        let path = names(path);
        match kind {
            ActionKind::Remove { ours } => {
                assert_eq!(our_paths[*ours], path);
                let below = tree
                    .0
                    .keys()
                    .filter(|other| other.starts_with(&path))
                    .count();
                assert_eq!(below, 1, "{path:?} is not empty");
                tree.0.remove(&path);
            }
            ActionKind::Create { theirs } | ActionKind::Conflict { theirs, .. } => {
                let parent = &tree.0[&path[..path.len() - 1]];
                assert_eq!(parent.data, Data::Directory);
                let old = tree.0.insert(path, node_of(*theirs));
                assert_eq!(old, None);
            }
            ActionKind::Replace { ours, theirs, mode } => {
                assert_eq!(our_paths[*ours], path);
                let mut new = node_of(*theirs);
                if !matches!(new.data, Data::Symlink(_)) {
                    new.mode = *mode;
                }
                assert_ne!(new.data, Data::Directory);
                let old = tree.0.insert(path, new);
                assert_ne!(old.unwrap().data, Data::Directory);
            }
            ActionKind::Metadata { mode, mtime } => {
                let node = tree.0.get_mut(&path).unwrap();
                node.mode = *mode;
                node.mtime = mtime.seconds;
            }
        }
    }
    tree
}

fn tree_paths(tree: &Tree) -> Vec<Path> {
    tree.0.keys().cloned().collect()
}

/// Asserts the paths of a merged tree.
#[track_caller]
fn assert_merged(base: &[&str], ours: &[&str], theirs: &[&str], expected: &[&str]) {
    let (base, ours, theirs) = (paths(base), paths(ours), paths(theirs));
    let merged = apply(&actions(&base, &ours, &theirs), &ours, &theirs);
    assert_eq!(merged, paths(expected));
}

#[test]
fn a_change_of_one_side_is_taken() {
    assert_merged(&["x=1"], &["x=1"], &["x=2"], &["x=2"]);
    assert_merged(&["x=1"], &["x=1"], &["x -> 2"], &["x -> 2"]);
    assert_merged(&["x=1"], &["x=1"], &["x/", "x/y=1"], &["x/", "x/y=1"]);
    assert_merged(&["x=1"], &["x=2"], &["x=1"], &["x=2"]);
}

#[test]
fn a_removal_by_one_side_is_taken() {
    assert_merged(&["x=1"], &["x=1"], &[], &[]);
    assert_merged(&["x=1"], &[], &["x=1"], &[]);
    assert_merged(&["x=1"], &[], &[], &[]);
}

#[test]
fn an_addition_by_one_side_is_taken() {
    assert_merged(&[], &[], &["x=1"], &["x=1"]);
    assert_merged(&[], &["x=1"], &[], &["x=1"]);
    assert_merged(&[], &["x=1"], &["y/", "y/z=1"], &["x=1", "y/", "y/z=1"]);
}

#[test]
fn the_same_change_of_both_sides_is_no_conflict() {
    assert_merged(&["x=1"], &["x=2"], &["x=2"], &["x=2"]);
    assert_merged(&[], &["x=2"], &["x=2"], &["x=2"]);
    assert_merged(&["x/", "x/y=1"], &["x -> 2"], &["x -> 2"], &["x -> 2"]);
}

#[test]
fn different_changes_are_both_kept() {
    let copy = |data: &str| format!("x.conflict-{LABEL}{data}");
    assert_merged(&["x=1"], &["x=2"], &["x=3"], &["x=2", &copy("=3")]);
    assert_merged(&[], &["x=2"], &["x -> 3"], &["x=2", &copy(" -> 3")]);
    assert_merged(&["x=1"], &["x -> 2"], &["x=3"], &["x -> 2", &copy("=3")]);
    let theirs = ["x/", "x/y/", "x/y/z=3"];
    let expected = ["x=2", &copy("/"), &copy("/y/"), &copy("/y/z=3")];
    assert_merged(&["x=1"], &["x=2"], &theirs, &expected);
    assert_merged(
        &[],
        &["x/", "x/y=2"],
        &["x=3"],
        &["x/", "x/y=2", &copy("=3")],
    );
}

#[test]
fn a_change_wins_against_a_removal() {
    assert_merged(&["x=1"], &[], &["x=2"], &["x=2"]);
    assert_merged(&["x=1"], &[], &["x/", "x/y=2"], &["x/", "x/y=2"]);
    assert_merged(&["x=1"], &["x=2"], &[], &["x=2"]);
    assert_merged(&["x=1"], &["x/", "x/y=2"], &[], &["x/", "x/y=2"]);
}

#[test]
fn directories_of_both_sides_are_merged() {
    assert_merged(
        &[],
        &["x/", "x/y=1"],
        &["x/", "x/z=2"],
        &["x/", "x/y=1", "x/z=2"],
    );
    let (ours, theirs) = (["x/", "x/y=1"], ["x/", "x/z=2"]);
    assert_merged(&["x=0"], &ours, &theirs, &["x/", "x/y=1", "x/z=2"]);
    let base = ["x/", "x/a=1", "x/b=1", "x/c=1"];
    let (ours, theirs) = (["x/", "x/a=2", "x/b=1"], ["x/", "x/a=1", "x/b=2", "x/c=1"]);
    assert_merged(&base, &ours, &theirs, &["x/", "x/a=2", "x/b=2"]);
}

#[test]
fn a_directory_that_theirs_removed_stays_with_our_entries_alone() {
    let base = ["x/", "x/y=1"];
    assert_merged(&base, &base, &[], &[]);
    assert_merged(&base, &["x/", "x/y=1", "x/z=2"], &[], &["x/", "x/z=2"]);
    assert_merged(&base, &["x/", "x/y=2"], &[], &["x/", "x/y=2"]);
    assert_merged(&base, &["x/", "x/y=1", "x/z/"], &[], &["x/", "x/z/"]);
}

#[test]
fn a_directory_that_theirs_replaced_is_a_conflict_if_it_has_our_entries() {
    let base = ["x/", "x/y=1"];
    assert_merged(&base, &base, &["x=3"], &["x=3"]);
    let ours = ["x/", "x/y=1", "x/z=2"];
    let copy = format!("x.conflict-{LABEL}=3");
    assert_merged(&base, &ours, &["x=3"], &["x/", "x/y=1", "x/z=2", &copy]);
}

#[test]
fn a_directory_that_ours_removed_is_created_for_their_entries_alone() {
    let base = ["x/", "x/y=1"];
    assert_merged(&base, &[], &base, &[]);
    assert_merged(&base, &[], &["x/", "x/y=1", "x/z=2"], &["x/", "x/z=2"]);
    assert_merged(&base, &[], &["x/", "x/y=2"], &["x/", "x/y=2"]);
}

#[test]
fn a_directory_that_ours_replaced_is_a_conflict_if_it_has_their_entries() {
    let base = ["x/", "x/y=1"];
    assert_merged(&base, &["x=2"], &base, &["x=2"]);
    let theirs = ["x/", "x/y=1", "x/z=3"];
    let copies = ["/", "/y=1", "/z=3"].map(|data| format!("x.conflict-{LABEL}{data}"));
    let expected = ["x=2", &copies[0], &copies[1], &copies[2]];
    assert_merged(&base, &["x=2"], &theirs, &expected);
}

/// Merges a file `x` with these contents, modes and times.
fn merged_file(versions: [Option<(&str, u16, i64)>; 3]) -> Option<(String, u16, i64)> {
    let trees = versions.map(|version| {
        let mut tree = paths(&[]);
        if let Some((contents, mode, mtime)) = version {
            let data = Data::File(contents.into());
            tree.0.insert(names(b"x"), Node { mode, mtime, data });
        }
        tree
    });
    let [base, ours, theirs] = &trees;
    let merged = apply(&actions(base, ours, theirs), ours, theirs);
    let node = merged.0.get(&names(b"x"))?;
    let Data::File(contents) = &node.data else {
        panic!("{node:?} is no file");
    };
    let contents = String::from_utf8(contents.clone()).unwrap();
    Some((contents, node.mode, node.mtime))
}

#[test]
fn modes_and_times_are_merged() {
    for (versions, expected) in [
        // Mode: theirs if ours is that of the base.
        ([("a", 1, 0), ("a", 1, 0), ("a", 2, 0)], ("a", 2, 0)),
        ([("a", 1, 0), ("a", 2, 0), ("a", 1, 0)], ("a", 2, 0)),
        ([("a", 1, 0), ("a", 2, 0), ("a", 3, 0)], ("a", 2, 0)),
        // Mode and contents of different sides.
        ([("a", 1, 0), ("b", 1, 5), ("a", 2, 0)], ("b", 2, 5)),
        ([("a", 1, 0), ("a", 2, 0), ("b", 1, 5)], ("b", 2, 5)),
        // Time: theirs if ours is that of the base.
        ([("a", 1, 0), ("a", 1, 0), ("a", 1, 5)], ("a", 1, 5)),
        ([("a", 1, 0), ("a", 1, 6), ("a", 1, 0)], ("a", 1, 6)),
        ([("a", 1, 0), ("a", 1, 6), ("a", 1, 5)], ("a", 1, 6)),
        // Time: that of the contents.
        ([("a", 1, 0), ("a", 1, 6), ("b", 1, 5)], ("b", 1, 5)),
        ([("a", 1, 0), ("b", 1, 6), ("a", 1, 5)], ("b", 1, 6)),
        ([("a", 1, 0), ("b", 1, 6), ("b", 1, 5)], ("b", 1, 6)),
    ] {
        let (contents, mode, mtime) = expected;
        let expected = Some((contents.to_owned(), mode, mtime));
        assert_eq!(merged_file(versions.map(Some)), expected, "{versions:?}");
    }
}

#[test]
fn a_changed_mode_wins_against_a_removal_and_a_changed_time_does_not() {
    let a = |mode, mtime| Some(("a", mode, mtime));
    let expected = |mode| Some(("a".to_owned(), mode, 0));
    assert_eq!(merged_file([a(1, 0), a(2, 0), None]), expected(2));
    assert_eq!(merged_file([a(1, 0), None, a(2, 0)]), expected(2));
    assert_eq!(merged_file([a(1, 0), a(1, 5), None]), None);
    assert_eq!(merged_file([a(1, 0), None, a(1, 5)]), None);
}

#[test]
fn directories_that_change_get_their_metadata_after_their_entries() {
    let base = paths(&["x/", "x/y=1"]);
    let theirs = paths(&["x/", "x/new/", "x/new/z=1", "x/y=1"]);
    let actions = actions(&base, &base, &theirs);
    let is_metadata = |action: &Action| matches!(action.kind, ActionKind::Metadata { .. });
    let text = |action: &Action| {
        let path = String::from_utf8(action.path.clone()).unwrap();
        format!(
            "{}{path}",
            if is_metadata(action) {
                "metadata of "
            } else {
                ""
            }
        )
    };
    let texts: Vec<String> = actions.iter().map(text).collect();
    let expected = ["x/new", "x/new/z", "metadata of x/new", "metadata of x"];
    assert_eq!(texts, expected);
}

#[test]
fn a_file_of_ours_without_a_digest_is_never_replaced() {
    let tree = |size, digest| {
        let mut tree = Builder::new(0o755, Mtime::default());
        tree.file(b"x", 0o644, Mtime::default(), size, digest)
            .unwrap();
        tree.leave().unwrap();
        tree.finish().unwrap()
    };
    let base = tree(5, Some([1; 32]));
    let ours = tree(5, None);
    assert_eq!(merge(&base, &ours, &base, LABEL), []);
    let actions = merge(&base, &ours, &tree(5, Some([2; 32])), LABEL);
    assert!(matches!(
        actions[0].kind,
        ActionKind::Conflict { ours: 1, theirs: 1 }
    ));
}

/// Returns the names of conflict copies of files with these names in the root.
fn copies(files: &[&[u8]], others: &[&[u8]], label: &str) -> Vec<Vec<u8>> {
    let tree = |contents: &str| {
        let mut tree = paths(&[]);
        for name in files.iter().chain(others) {
            let is_other = others.contains(name);
            let contents = if is_other { "same" } else { contents };
            let data = Data::File(contents.into());
            let (mode, mtime) = (0o644, 0);
            tree.0
                .insert(vec![name.to_vec()], Node { mode, mtime, data });
        }
        tree.entries()
    };
    let actions = merge(&paths(&[]).entries(), &tree("ours"), &tree("theirs"), label);
    let conflicts = actions
        .into_iter()
        .filter(|action| matches!(action.kind, ActionKind::Conflict { .. }));
    conflicts.map(|action| action.path).collect()
}

#[test]
fn names_of_conflict_copies_are_free() {
    let others: [&[u8]; 2] = [b"x.conflict-h", b"x.conflict-h-2"];
    assert_eq!(copies(&[b"x"], &others, "h"), [b"x.conflict-h-3"]);
}

#[test]
fn names_of_conflict_copies_are_shortened() {
    let long = [b'x'; 255];
    let other = [&[b'x'; 254][..], b"y"].concat();
    let found = copies(&[&long, &other], &[], "h");
    assert_eq!(found[0], [&long[..244], b".conflict-h"].concat()[..]);
    assert_eq!(found[1], [&long[..242], b".conflict-h-2"].concat()[..]);

    let umlauts = "\u{e4}".repeat(127);
    let found = copies(&[umlauts.as_bytes()], &[], "ho");
    assert_eq!(
        found[0],
        format!("{}.conflict-ho", "\u{e4}".repeat(121)).as_bytes()
    );
    let invalid = [0x80; 255];
    let found = copies(&[&invalid], &[], "h");
    assert_eq!(found[0], [&invalid[..244], b".conflict-h"].concat()[..]);
}

#[test]
fn any_label_gives_a_valid_name() {
    assert_eq!(copies(&[b"x"], &[], "a/b\0c"), [b"x.conflict-a-b-c"]);
    let long = "\u{20ac}".repeat(200);
    let found = copies(&[&[b'x'; 255]], &[], &long);
    assert_eq!(found[0].len(), 255);
    assert!(String::from_utf8(found[0].clone()).is_ok());
}

/// Returns whether both trees have the same data at this path.
fn is_same_at(path: &Path, a: &Tree, b: &Tree) -> bool {
    let data = |tree: &Tree| tree.0.get(path).map(|node| node.data.clone());
    data(a) == data(b)
}

pub(super) fn assert_properties(
    base: &Tree,
    ours: &Tree,
    theirs: &Tree,
) -> Result<(), TestCaseError> {
    let actions = actions(base, ours, theirs);
    let merged = apply(&actions, ours, theirs);
    for (path, node) in &ours.0 {
        prop_assert!(
            is_same_at(path, ours, base) || is_same_at(path, ours, &merged),
            "{path:?} of ours is lost"
        );
        let kept = merged.0.get(path);
        let has_changed_mode = base.0.get(path).is_some_and(|base| base.mode != node.mode);
        if has_changed_mode && is_same_at(path, ours, base) && is_same_at(path, ours, theirs) {
            prop_assert_eq!(kept.map(|kept| kept.mode), Some(node.mode));
        }
    }
    // The conflict copies, by their path in their tree.
    let their_paths = tree_paths(theirs);
    let conflicts: Vec<(Path, Path)> = actions
        .iter()
        .filter_map(|action| match action.kind {
            ActionKind::Conflict { theirs, .. } | ActionKind::Create { theirs } => {
                Some((their_paths[theirs].clone(), names(&action.path)))
            }
            _ => None,
        })
        .collect();
    for (path, node) in &theirs.0 {
        let is_copied = conflicts.iter().any(|(from, to)| {
            path.starts_with(from) && {
                let copy = [&to[..], &path[from.len()..]].concat();
                merged.0.get(&copy) == Some(node)
            }
        });
        prop_assert!(
            is_copied || is_same_at(path, theirs, base) || is_same_at(path, theirs, &merged),
            "{path:?} of theirs is lost"
        );
    }
    // A tree: each entry is in a directory.
    for path in merged.0.keys().filter(|path| !path.is_empty()) {
        prop_assert_eq!(&merged.0[&path[..path.len() - 1]].data, &Data::Directory);
    }
    Ok(())
}

proptest! {
    #[test]
    fn nothing_is_lost((base, ours, theirs) in edited_twice()) {
        assert_properties(&base, &ours, &theirs)?;
    }

    #[test]
    fn nothing_of_unrelated_trees_is_lost(base in tree(), ours in tree(), theirs in tree()) {
        assert_properties(&base, &ours, &theirs)?;
    }

    #[test]
    fn a_side_without_changes_gives_the_other_side((base, changed) in edited(tree())) {
        let forward = actions(&base, &base, &changed);
        prop_assert_eq!(apply(&forward, &base, &changed), changed.clone());
        prop_assert_eq!(actions(&base, &changed, &base), []);
    }

    #[test]
    fn a_merge_that_was_cut_off_can_be_repeated(
        (base, ours, theirs) in edited_twice(),
        at in any::<proptest::sample::Index>(),
    ) {
        let all = actions(&base, &ours, &theirs);
        let is_conflict = |action: &Action| matches!(action.kind, ActionKind::Conflict { .. });
        prop_assume!(!all.iter().any(is_conflict));
        let merged = apply(&all, &ours, &theirs);
        prop_assert_eq!(actions(&base, &merged, &theirs), []);
        let part = apply(&all[..at.index(all.len() + 1)], &ours, &theirs);
        let again = apply(&actions(&base, &part, &theirs), &part, &theirs);
        prop_assert_eq!(again, merged);
    }

    #[test]
    fn equal_sides_need_no_action((base, changed) in edited(tree())) {
        prop_assert_eq!(actions(&base, &changed, &changed), []);
    }
}
