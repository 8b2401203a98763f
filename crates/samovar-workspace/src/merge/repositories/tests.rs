use proptest::prelude::*;

use super::super::tests::{LABEL, actions, apply, assert_properties};
use super::super::{Action, ActionKind, advanced, merge_with};
use super::*;
use crate::git_index::tests::index_of;
use crate::test_tree::{self, Data, Path, Tree, digest, edited, edited_twice, names, paths, tree};

/// Contents of the index of a repository: other stat data than `refreshed`, the same entries.
const OLD: &str = "index";
const REFRESHED: &str = "refreshed";

fn refreshed() -> Contents {
    let mut contents = Contents::default();
    for text in [OLD, REFRESHED] {
        contents.add_fingerprint(digest(text.as_bytes()), [1; 32]);
    }
    contents
}

/// Sets the times of indexes after those of the files.
fn write_indexes_later(tree: &mut Tree) {
    for (path, node) in &mut tree.0 {
        node.mtime = i64::from(path.last().is_some_and(|name| name == b"index"));
    }
}

/// Asserts the paths of a merged tree.
#[track_caller]
fn assert_merged(
    contents: &Contents,
    base: &[&str],
    ours: &[&str],
    theirs: &[&str],
    expected: &[&str],
) {
    let (base, mut ours, mut theirs) = (paths(base), paths(ours), paths(theirs));
    for tree in [&mut ours, &mut theirs] {
        write_indexes_later(tree);
    }
    let trees = [base.entries(), ours.entries(), theirs.entries()];
    let actions = merge_with(&trees[0], &trees[1], &trees[2], LABEL, contents);
    let merged = apply(&actions, &ours, &theirs);
    let found: Vec<_> = merged
        .0
        .iter()
        .map(|(path, node)| (path, &node.data))
        .collect();
    let expected = paths(expected);
    let expected: Vec<_> = expected
        .0
        .iter()
        .map(|(path, node)| (path, &node.data))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn a_unit_that_one_side_has_changed_is_taken_as_a_whole() {
    let none = Contents::default();
    let base = ["g/", "g/.git/", "g/.git/HEAD=1", "g/.git/b=1", "g/f=1"];
    let changed = ["g/", "g/.git/", "g/.git/HEAD=2", "g/.git/c=2", "g/f=2"];
    assert_merged(&none, &base, &base, &changed, &changed);
    assert_merged(&none, &base, &changed, &base, &changed);
    assert_merged(&none, &base, &base, &["g/", "g/f=1"], &["g/", "g/f=1"]);
    assert_merged(&none, &base, &["g/", "g/f=1"], &base, &["g/", "g/f=1"]);
    let ours = [
        "g/",
        "g/.git/",
        "g/.git/HEAD=1",
        "g/.git/b=1",
        "g/f=1",
        "g/u=3",
    ];
    let merged = [
        "g/",
        "g/.git/",
        "g/.git/HEAD=2",
        "g/.git/c=2",
        "g/f=2",
        "g/u=3",
    ];
    assert_merged(&none, &base, &ours, &changed, &merged);
}

#[test]
fn a_change_of_a_unit_wins_against_its_removal() {
    let none = Contents::default();
    let base = ["g/", "g/.git/", "g/.git/HEAD=1", "g/.git/b=1", "g/f=1"];
    let changed = ["g/", "g/.git/", "g/.git/HEAD=2", "g/.git/b=1", "g/f=1"];
    // With the files of the work tree, which the other side has removed as well.
    assert_merged(&none, &base, &changed, &[], &changed);
    assert_merged(&none, &base, &[], &changed, &changed);
    assert_merged(&none, &base, &changed, &["g/"], &changed[..4]);
}

#[test]
fn a_refreshed_index_is_no_change() {
    let index = |text: &str| format!(".git/index={text}");
    let (old, new) = (index(OLD), index(REFRESHED));
    let base = [".git/", ".git/HEAD=1", &old, "f=1"];
    let ours = [".git/", ".git/HEAD=1", &new, "f=1"];
    let theirs = [".git/", ".git/HEAD=2", ".git/index=3", "f=2"];
    assert_merged(&refreshed(), &base, &ours, &theirs, &theirs);
    assert_merged(&refreshed(), &base, &theirs, &ours, &theirs);
    assert_merged(&refreshed(), &base, &ours, &["f=1"], &["f=1"]);
    // Without the contents, it counts as a change.
    let copy = |name: &str| format!(".git.conflict-{LABEL}/{name}");
    let copies = [copy(""), copy("HEAD=2"), copy("index=3")];
    let other = format!("f.conflict-{LABEL}=2");
    let mut both = copies.each_ref().map(String::as_str).to_vec();
    both.extend([".git/", ".git/HEAD=1", &new, "f=1", &other]);
    assert_merged(&Contents::default(), &base, &ours, &theirs, &both);
}

/// Returns the contents of indexes of both sides, `o` and `t`, which have these files with the
/// contents `3`.
fn tracked(ours: &[&'static str], theirs: &[&'static str]) -> Contents {
    let mut contents = Contents::default();
    contents.add(digest(b"o"), index_of(ours, "3"));
    contents.add(digest(b"t"), index_of(theirs, "3"));
    contents.add_file(digest(b"3"), 1, &mut &b"3"[..]).unwrap();
    contents
}

#[test]
fn units_that_both_sides_have_changed_are_both_kept() {
    let contents = tracked(&["f", "gone", "ours"], &["d/new", "f", "staged"]);
    let base = [
        ".git/",
        ".git/HEAD=1",
        ".git/index=b",
        "dirty=1",
        "f=1",
        "gone=1",
        "staged=1",
        "u=1",
    ];
    let ours = [
        ".git/",
        ".git/HEAD=2",
        ".git/index=o",
        "dirty=1",
        "f=1",
        "gone=1",
        "ours=2",
        "staged=1",
        "u=1",
    ];
    let theirs = [
        ".git/",
        ".git/HEAD=3",
        ".git/index=t",
        ".git/x=3",
        "d/",
        "d/new=3",
        "dirty=1",
        "f=3",
        "staged=33",
        "u=3",
        "v=3",
    ];
    let copy = |name: &str| format!(".git.conflict-{LABEL}/{name}");
    let copies = [copy(""), copy("HEAD=3"), copy("index=t"), copy("x=3")];
    // The files of their commits are not merged; a changed file that git does not know is.
    let other = format!("staged.conflict-{LABEL}=33");
    let mut expected = copies.each_ref().map(String::as_str).to_vec();
    expected.extend([
        ".git/",
        ".git/HEAD=2",
        ".git/index=o",
        "dirty=1",
        "f=1",
        "gone=1",
        "ours=2",
        "staged=1",
    ]);
    expected.extend([&other, "u=3", "v=3"]);
    assert_merged(&contents, &base, &ours, &theirs, &expected);
}

#[test]
fn a_file_with_other_contents_than_in_the_index_is_copied() {
    let contents = tracked(&["f"], &["f", "same"]);
    let base = [".git/", ".git/HEAD=1", ".git/index=b", "f=1", "same=2"];
    let ours = [".git/", ".git/HEAD=2", ".git/index=o", "f=1", "same=2"];
    let theirs = |text: &str| {
        let file = format!("f={text}");
        let texts = [".git/", ".git/HEAD=3", ".git/index=t", "same=2", &file];
        let mut tree = paths(&texts);
        write_indexes_later(&mut tree);
        tree.entries()
    };
    let (base, ours) = (paths(&base).entries(), paths(&ours).entries());
    let doubtful = |text: &str, contents: &Contents| {
        let theirs = theirs(text);
        let found = super::super::doubtful(&base, &ours, &theirs, contents);
        let paths: Vec<_> = found.iter().map(|index| theirs.path(*index)).collect();
        let actions = merge_with(&base, &ours, &theirs, LABEL, contents);
        let copy = format!("f.conflict-{LABEL}");
        let is_copied = actions.iter().any(|action| action.path == copy.as_bytes());
        (paths, is_copied)
    };
    assert_eq!(doubtful("3", &contents), (vec![], false));
    // Without the contents, it is copied.
    assert_eq!(doubtful("4", &contents), (vec![b"f".to_vec()], true));
    let mut known = contents;
    known.add_file(digest(b"4"), 1, &mut &b"4"[..]).unwrap();
    assert_eq!(doubtful("4", &known), (vec![], true));
}

#[test]
fn submodules_belong_to_the_unit_that_has_their_repositories() {
    let mut contents = tracked(&["f"], &["f"]);
    contents.add(digest(b"s"), index_of(&["x"], "3"));
    let base = [
        ".git/",
        ".git/HEAD=1",
        ".git/index=b",
        "f=1",
        "s/",
        "s/.git=l",
        "s/x=1",
    ];
    let ours = [
        ".git/",
        ".git/HEAD=2",
        ".git/index=o",
        "f=1",
        "s/",
        "s/.git=l",
        "s/x=1",
    ];
    let theirs = [
        ".git/",
        ".git/HEAD=3",
        ".git/index=t",
        ".git/modules/",
        ".git/modules/s/",
        ".git/modules/s/index=s",
        "f=1",
        "n/",
        "n/.git=l",
        "n/x=3",
        "s/",
        "s/.git=l",
        "s/x=3",
    ];
    let copy = |name: &str| format!(".git.conflict-{LABEL}/{name}");
    let copies = [
        "",
        "HEAD=3",
        "index=t",
        "modules/",
        "modules/s/",
        "modules/s/index=s",
    ]
    .map(copy);
    let mut expected = copies.each_ref().map(String::as_str).to_vec();
    expected.extend(ours);
    assert_merged(&contents, &base, &ours, &theirs, &expected);
}

#[test]
fn repositories_of_one_directory_come_from_one_side() {
    let base = [".git/", ".git/HEAD=1", ".jj/", ".jj/op=1"];
    let ours = [".git/", ".git/HEAD=2", ".jj/", ".jj/op=1"];
    let theirs = [".git/", ".git/HEAD=1", ".jj/", ".jj/op=3"];
    let copy = |name: &str| format!("{name}.conflict-{LABEL}");
    let (git, jj) = (copy(".git"), copy(".jj"));
    let expected = [
        &format!("{git}/"),
        &format!("{git}/HEAD=1"),
        ".git/",
        ".git/HEAD=2",
        &format!("{jj}/"),
        &format!("{jj}/op=3"),
        ".jj/",
        ".jj/op=1",
    ];
    assert_merged(&Contents::default(), &base, &ours, &theirs, &expected);
}

#[test]
fn objects_are_there_before_what_refers_to_them() {
    let base = paths(&[".git/", ".git/HEAD=1", ".git/objects/", ".git/objects/a=1"]);
    let theirs = paths(&[
        ".git/",
        ".git/HEAD=2",
        ".git/objects/",
        ".git/objects/b=2",
        ".git/refs/",
        ".git/refs/x=2",
    ]);
    let actions = actions(&base, &base, &theirs);
    let position = |path: &str, is_metadata: bool| {
        let is_it = |action: &Action| {
            let metadata = matches!(action.kind, ActionKind::Metadata { .. });
            action.path == path.as_bytes() && metadata == is_metadata
        };
        actions.iter().position(is_it).unwrap()
    };
    let order = [
        position(".git/objects/b", false),
        position(".git/HEAD", false),
        position(".git/refs/x", false),
        position(".git/objects/a", false),
        position(".git/objects", true),
    ];
    assert!(order.is_sorted(), "{order:?}");
}

/// Makes a tree one with repositories.
fn with_units(tree: &Tree) -> Tree {
    let rename = |name: &Vec<u8>| match &name[..] {
        b"a" => GIT.to_vec(),
        b"b" => b"index".to_vec(),
        _ => name.clone(),
    };
    let renamed = tree.0.iter().map(|(path, node)| {
        let path: Path = path.iter().map(rename).collect();
        (path, node.clone())
    });
    Tree(renamed.collect())
}

/// Returns the paths of the units of a tree, but not those in conflict copies.
fn units(tree: &Tree) -> Vec<Path> {
    let is_unit = |path: &&Path| {
        let mut above = path.iter().rev();
        above.next().is_some_and(|name| name == GIT)
            && !above.any(|name| name == GIT || name.ends_with(LABEL.as_bytes()))
    };
    tree.0.keys().filter(is_unit).cloned().collect()
}

/// Returns the entries at a path and below, without modes and times.
fn below(tree: &Tree, path: &Path) -> Vec<(Path, Data)> {
    let below = tree.0.iter().filter(|(other, _)| other.starts_with(path));
    below
        .map(|(path, node)| (path.clone(), node.data.clone()))
        .collect()
}

fn is_copy(action: &Action, theirs: &Entries) -> bool {
    match action.kind {
        ActionKind::Create { theirs: index } => theirs.path(index) != action.path,
        ActionKind::Conflict { .. } => true,
        _ => false,
    }
}

proptest! {
    #[test]
    fn nothing_is_lost_and_units_stay_whole((base, ours, theirs) in edited_twice()) {
        let [base, ours, theirs] = [base, ours, theirs].map(|tree| with_units(&tree));
        // A new link stays out of a conflict: its repository is in the copy.
        let is_new_link = |(path, node): (&Path, &test_tree::Node)| {
            path.last().is_some_and(|name| name == GIT)
                && node.data != Data::Directory
                && base.0.get(path).map(|node| &node.data) != Some(&node.data)
        };
        prop_assume!(!theirs.0.iter().any(is_new_link));
        assert_properties(&base, &ours, &theirs)?;
        let merged = apply(&actions(&base, &ours, &theirs), &ours, &theirs);
        for unit in units(&merged) {
            let found = below(&merged, &unit);
            let is_whole = found == below(&ours, &unit) || found == below(&theirs, &unit);
            prop_assert!(is_whole, "{unit:?} is {found:?}");
        }
    }

    #[test]
    fn a_side_without_changes_gives_the_other_side((base, changed) in edited(tree())) {
        let (base, changed) = (with_units(&base), with_units(&changed));
        let forward = actions(&base, &base, &changed);
        prop_assert_eq!(apply(&forward, &base, &changed), changed.clone());
        prop_assert_eq!(actions(&base, &changed, &base), []);
        prop_assert_eq!(actions(&base, &changed, &changed), []);
    }

    #[test]
    fn a_merge_that_was_cut_off_can_be_repeated(
        (base, ours, theirs) in edited_twice(),
        at in any::<proptest::sample::Index>(),
    ) {
        let [base, ours, theirs] = [base, ours, theirs].map(|tree| with_units(&tree));
        let all = actions(&base, &ours, &theirs);
        let their_entries = theirs.entries();
        prop_assume!(!all.iter().any(|action| is_copy(action, &their_entries)));
        // A unit that comes back by half cannot be told from a changed one: both would be kept.
        let comes_back = |unit: &Path| !ours.0.contains_key(unit) && base.0.contains_key(unit);
        prop_assume!(!units(&theirs).iter().any(comes_back));
        // The same applies to an entry of a unit that is removed to become another type of entry.
        let is_removal = |action: &Action| matches!(action.kind, ActionKind::Remove { .. });
        let becomes_another = |action: &Action| {
            is_removal(action) && all.iter().any(|other| {
                other.path == action.path && !is_removal(other)
            })
        };
        prop_assume!(!all.iter().any(becomes_another));
        let merged = apply(&all, &ours, &theirs);
        prop_assert_eq!(actions(&base, &merged, &theirs), []);
        let part = apply(&all[..at.index(all.len() + 1)], &ours, &theirs);
        let again = apply(&actions(&base, &part, &theirs), &part, &theirs);
        prop_assert_eq!(again, merged);
    }
}

proptest! {
    /// The user has changed nothing: neither does the part of a merge count.
    #[test]
    fn another_merge_follows_one_that_was_cut_off(
        (base, begun, next) in edited_twice(),
        at in any::<proptest::sample::Index>(),
    ) {
        let [base, begun, next] = [base, begun, next].map(|tree| with_units(&tree));
        let all = actions(&base, &base, &begun);
        let ours = apply(&all[..at.index(all.len() + 1)], &base, &begun);
        for next in [begun.clone(), next] {
            let advanced = advanced(&base.entries(), &ours.entries(), &begun.entries()).unwrap();
            let none = Contents::default();
            let (ours_entries, next_entries) = (ours.entries(), next.entries());
            let actions = merge_with(&advanced, &ours_entries, &next_entries, LABEL, &none);
            let merged = apply(&actions, &ours, &next);
            prop_assert_eq!(below(&merged, &Path::new()), below(&next, &Path::new()));
            let modes = |tree: &Tree| -> Vec<u16> {
                tree.0.values().map(|node| node.mode).collect()
            };
            prop_assert_eq!(modes(&merged), modes(&next));
        }
    }
}

#[test]
fn units_are_found_in_trees() {
    let tree = paths(&["g/", "g/.git/", "g/.git/.git/", "x=1"]);
    assert_eq!(units(&tree), [names(b"g/.git")]);
}
