use proptest::prelude::*;

use super::*;
use crate::entries::{Builder, Mtime};
use crate::test_tree::{Path, Tree, edited, names, paths, tree};

/// Returns the changes as texts, such as `Modified a/b`.
fn changes(base: &Tree, new: &Tree) -> Vec<String> {
    let (base, new) = (base.entries(), new.entries());
    let text = |change: Change| {
        let path = String::from_utf8(change.path).unwrap();
        match (change.kind, change.old) {
            (ChangeKind::Renamed, Some(old)) => {
                let old = String::from_utf8(base.path(old)).unwrap();
                format!("Renamed {old} {path}")
            }
            (kind, _) => format!("{kind:?} {path}"),
        }
    };
    diff(&base, &new).into_iter().map(text).collect()
}

#[test]
fn each_kind_of_change_is_found() {
    let base = paths(&[
        "a=1", "b=2", "c=3", "d/", "d/x=4", "e=5", "f -> a", "g=6", "h=7",
    ]);
    let mut new = paths(&[
        "a=1", "b=new", "c -> a", "d=4", "e=5", "f -> b", "g=6", "i=9",
    ]);
    new.0.get_mut(&vec![b"e".to_vec()]).unwrap().mode = 0o600;
    new.0.get_mut(&vec![b"g".to_vec()]).unwrap().mtime = 5;
    new.0.get_mut(&Path::new()).unwrap().mtime = 5;
    let expected = [
        "Touched ",
        "Modified b",
        "TypeChanged c",
        "TypeChanged d",
        "Removed d/x",
        "ModeChanged e",
        "Modified f",
        "Touched g",
        "Removed h",
        "Added i",
    ];
    assert_eq!(changes(&base, &new), expected);
    let (base, new) = (base.entries(), new.entries());
    let summary = Summary {
        added: 1,
        removed: 2,
        modified: 2,
        type_changed: 2,
        mode_changed: 1,
        touched: 2,
        renamed: 0,
        old_bytes: 4,
        new_bytes: 5,
    };
    assert_eq!(Summary::new(&diff(&base, &new), &base, &new), summary);
}

#[test]
fn a_file_without_a_digest_is_modified() {
    let mut tree = Builder::new(0o755, Mtime::default());
    tree.file(b"x", 0o644, Mtime::default(), 5, None).unwrap();
    tree.leave().unwrap();
    let tree = tree.finish().unwrap();
    let changes = diff(&tree, &tree);
    assert_eq!(changes.len(), 1);
    assert_eq!(changes[0].kind, ChangeKind::Modified);
}

#[test]
fn a_renamed_directory_is_one_change() {
    let base = paths(&["a/", "a/b/", "a/b/x=1", "a/y=2", "z=3"]);
    let new = paths(&["c/", "c/b/", "c/b/x=1", "c/y=2", "z=3"]);
    assert_eq!(changes(&base, &new), ["Renamed a c"]);
    let summary = Summary {
        renamed: 1,
        ..Summary::default()
    };
    let (base, new) = (base.entries(), new.entries());
    assert_eq!(Summary::new(&diff(&base, &new), &base, &new), summary);
}

#[test]
fn a_directory_that_moves_into_a_new_one_is_renamed() {
    let base = paths(&["a/", "a/x=1"]);
    let new = paths(&["b/", "b/c/", "b/c/x=1", "b/y=2"]);
    assert_eq!(
        changes(&base, &new),
        ["Added b", "Renamed a b/c", "Added b/y"]
    );
    assert_eq!(
        changes(&new, &base),
        ["Renamed b/c a", "Removed b", "Removed b/y"]
    );
}

#[test]
fn directories_with_other_entries_are_not_renamed() {
    let base = paths(&["a/", "a/b/", "a/b/x=1"]);
    for new in [
        paths(&["c/", "c/b/", "c/b/x=2"]),
        paths(&["c/", "c/b/", "c/b/y=1"]),
        paths(&["c/", "c/b/", "c/b/x -> 1"]),
    ] {
        let expected = [
            "Removed a",
            "Removed a/b",
            "Removed a/b/x",
            "Added c",
            "Added c/b",
        ];
        let found = changes(&base, &new);
        assert_eq!(found[..5], expected);
        assert_eq!(found.len(), 6);
    }
    assert_eq!(
        changes(&paths(&["a/"]), &paths(&["b/"])),
        ["Removed a", "Added b"]
    );
}

#[test]
fn a_directory_is_renamed_once() {
    let base = paths(&["a/", "a/x=1"]);
    let new = paths(&["b/", "b/x=1", "c/", "c/x=1"]);
    assert_eq!(
        changes(&base, &new),
        ["Renamed a b", "Added c", "Added c/x"]
    );
    assert_eq!(
        changes(&new, &base),
        ["Renamed b a", "Removed c", "Removed c/x"]
    );
}

proptest! {
    #[test]
    fn a_tree_does_not_differ_from_itself(tree in tree()) {
        prop_assert_eq!(diff(&tree.entries(), &tree.entries()), []);
    }

    #[test]
    fn the_changes_turn_the_base_into_the_new_tree((base, new) in edited(tree())) {
        let (old_entries, new_entries) = (base.entries(), new.entries());
        let path = |change: &Change, index: Option<usize>, tree: &Tree| {
            index.map_or(change.path.clone(), |index| {
                tree.0.keys().nth(index).unwrap().join(&b'/')
            })
        };
        let mut tree = base.clone();
        let changes = diff(&old_entries, &new_entries);
        let mut sorted: Vec<_> = changes.iter().map(|change| names(&change.path)).collect();
        sorted.sort();
        let order: Vec<_> = changes.iter().map(|change| names(&change.path)).collect();
        prop_assert_eq!(order, sorted);
        for change in &changes {
            let from = names(&path(change, change.old, &base));
            prop_assert_eq!(path(change, change.new, &new), change.path.clone());
            match change.kind {
                ChangeKind::Removed | ChangeKind::TypeChanged => { tree.0.remove(&from); }
                ChangeKind::Renamed => tree.remove(&from),
                _ => {}
            }
        }
        for change in &changes {
            let to = names(&change.path);
            let copied = match change.kind {
                ChangeKind::Removed => continue,
                ChangeKind::Renamed => {
                    let below = |path: &&Path| path.starts_with(&to);
                    new.0.keys().filter(below).cloned().collect()
                }
                _ => vec![to],
            };
            for path in copied {
                let node = new.0[&path].clone();
                tree.0.insert(path, node);
            }
        }
        prop_assert_eq!(tree, new);
    }
}
