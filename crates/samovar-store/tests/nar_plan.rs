//! From any offset, a plan gives the same bytes as a walk. A tree that differs from its plan gives
//! an error.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use samovar_store::{NarPlan, NarReader, PlanError, Tree, TreeError};
use support::tree::{
    config, listing, make_deep, make_wide, nar, node, open_count, open_count_below, remove_deep,
};

const MEMORY_LEN_MAX: usize = 16 << 20;

fn plan(tree: &Tree) -> Arc<NarPlan> {
    Arc::new(tree.plan(MEMORY_LEN_MAX).unwrap())
}

fn rest(reader: &mut NarReader) -> Result<Vec<u8>, TreeError> {
    let (mut rest, mut buffer) = (Vec::new(), vec![0; 50_000]);
    loop {
        let len = reader.fill(&mut buffer)?;
        if len == 0 {
            return Ok(rest);
        }
        rest.extend_from_slice(&buffer[..len]);
    }
}

/// Compares the NAR by a plan, from each of these offsets on, with the NAR by a walk.
#[track_caller]
fn check(tree: &Tree, offsets: impl IntoIterator<Item = usize>) {
    let whole = nar(tree, 1 << 16);
    let plan = plan(tree);
    assert_eq!(plan.nar_size(), whole.len() as u64);
    let listed = std::io::read_to_string(plan.listing()).unwrap();
    assert!(listed == listing(tree));
    assert_eq!(plan.listing_len().unwrap(), listed.len() as u64);
    for offset in offsets {
        let mut reader = tree.nar_at(&plan, offset as u64).unwrap();
        assert_eq!(reader.position(), offset as u64);
        assert!(
            rest(&mut reader).unwrap() == whole[offset..],
            "from {offset}"
        );
    }
    let past_end = tree.nar_at(&plan, whole.len() as u64 + 1);
    assert!(matches!(past_end, Err(TreeError::NoSuchOffset)));
    assert!(!plan.has_failed());
}

/// Creates 40 directories of 10 files, with different names and sizes.
fn make_tree(root: &Path) {
    for folder in 0..40 {
        let folder_path = root.join(format!("folder-{folder:02}"));
        fs::create_dir_all(folder_path.join("empty")).unwrap();
        for file in 0..10 {
            let content = vec![b'a' + file; usize::from(file) * 37 + folder];
            let path = folder_path.join(format!("file-{file}"));
            fs::write(&path, content).unwrap();
            fs::set_permissions(
                path,
                fs::Permissions::from_mode(0o644 | u32::from(file & 1) << 6),
            )
            .unwrap();
        }
        symlink("file-1", folder_path.join("link")).unwrap();
    }
}

fn scene() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("x");
    make_tree(&root);
    (dir, root)
}

#[test]
fn every_offset_of_a_tree() {
    let (_dir, root) = scene();
    let tree = Tree::of_files(root);
    let end = nar(&tree, 4096).len();
    check(&tree, (0..end).step_by(101).chain([1, 8, 24, end - 1, end]));
}

#[test]
fn roots_that_are_not_directories() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link) = (dir.path().join("file"), dir.path().join("link"));
    fs::write(&file, vec![b'x'; 1000]).unwrap();
    symlink("/nowhere", &link).unwrap();
    for root in [file, link] {
        let tree = Tree::of_files(root);
        let end = nar(&tree, 4096).len();
        check(&tree, 0..=end);
    }
}

#[test]
fn many_checkpoints_between_directories_that_end() {
    let dir = tempfile::tempdir().unwrap();
    make_deep(dir.path());
    let tree = Tree::of_files(dir.path().join("d"));
    let before = open_count();
    let end = nar(&tree, 1 << 16).len();
    check(&tree, (0..=8).map(|part| end / 8 * part));
    // Far fewer than levels. Other tests open files, too.
    assert!(open_count() < before + 500);
    remove_deep(dir.path());
}

/// Files that follow deep directories are found: their parents are reopened as `..`.
#[test]
fn files_after_deep_directories() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("x");
    let mut parent = root.clone();
    for number in 0..120 {
        fs::create_dir(&parent).unwrap();
        for file in 0..5 {
            fs::write(parent.join(format!("z{file}")), number.to_string()).unwrap();
        }
        parent.push("d");
    }
    let tree = Tree::of_files(root);
    let end = nar(&tree, 4096).len();
    check(&tree, (0..=end).step_by(997));
    let plan = plan(&tree);
    let mut reader = tree.nar_at(&plan, end as u64 / 2).unwrap();
    let mut open_count_max = 0;
    while reader.fill(&mut [0; 100]).unwrap() > 0 {
        open_count_max = open_count_max.max(open_count_below(dir.path()));
    }
    // At most 16 directories, and 64 files of read-ahead if the disk is slow.
    assert!((1..100).contains(&open_count_max), "{open_count_max}");
}

#[test]
fn a_directory_of_100000_entries() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("x");
    make_wide(&root);
    let tree = Tree::of_files(root);
    let plan = plan(&tree);
    assert_eq!(plan.file_count(), 100_000);
    // Per entry, the names take five bytes and the rest takes nine.
    assert!(plan.memory_len() < 1_000_000, "{}", plan.memory_len());
    let end = plan.nar_size();
    check(
        &tree,
        [end - 1000, end - 200_000].map(|offset| usize::try_from(offset).unwrap()),
    );
}

#[test]
fn memory_at_the_limit_and_past_it() {
    let (_dir, root) = scene();
    let tree = Tree::of_files(root);
    let len = plan(&tree).memory_len();
    assert_eq!(tree.plan(len).unwrap().memory_len(), len);
    assert!(matches!(tree.plan(len - 1), Err(PlanError::TooLarge)));
    // The tree has 40 directories, 40 empty ones, 40 links and 400 files.
    assert!(len < 520 * 25, "{len}");
}

#[test]
fn a_replaced_root_is_detected() {
    let (dir, root) = scene();
    let tree = Tree::of_files(root.clone());
    let is_changed = |plan: &Arc<NarPlan>| {
        let is_changed = matches!(tree.nar_at(plan, 10_000), Err(TreeError::Changed));
        is_changed && plan.has_failed()
    };
    let planned = plan(&tree);
    assert_eq!(planned.root(), tree.identity().unwrap());
    fs::rename(&root, dir.path().join("old")).unwrap();
    make_tree(&root);
    assert!(is_changed(&planned));
    // An entry of the root is added and removed again.
    let planned = plan(&tree);
    fs::write(root.join("new"), "").unwrap();
    fs::remove_file(root.join("new")).unwrap();
    assert!(is_changed(&planned));
    // The root is replaced by a file.
    let planned = plan(&tree);
    fs::remove_dir_all(&root).unwrap();
    symlink(dir.path().join("old"), &root).unwrap();
    assert!(is_changed(&planned));
    fs::remove_file(&root).unwrap();
    let planned = plan(&Tree::of_files(dir.path().join("old")));
    assert!(matches!(tree.nar_at(&planned, 0), Err(TreeError::Vanished)));
}

/// Changes a file deep in a planned tree, and checks the error of reading it.
#[track_caller]
fn check_fault(change: impl FnOnce(&Path), is_expected: impl Fn(&TreeError) -> bool) {
    let (_dir, root) = scene();
    let tree = Tree::of_files(root.clone());
    let whole = nar(&tree, 4096);
    let plan = plan(&tree);
    change(&root);
    // After the changed file all bytes are right, so the change is not noticed.
    let behind = whole.len() - 2000;
    let mut reader = tree.nar_at(&plan, behind as u64).unwrap();
    assert!(rest(&mut reader).unwrap() == whole[behind..]);
    assert!(!plan.has_failed());
    // Read from the middle, and from the first byte of the changed file.
    let file = whole
        .windows(9)
        .position(|part| part == b"folder-30")
        .unwrap();
    for offset in [whole.len() / 3, file] {
        let error = tree
            .nar_at(&plan, offset as u64)
            .and_then(|mut reader| rest(&mut reader))
            .unwrap_err();
        assert!(is_expected(&error), "{error:?}");
        assert!(error.is_damage());
        assert!(plan.has_failed());
    }
}

const FILE: &str = "folder-30/file-5";

#[test]
fn a_changed_size_or_mode() {
    let is_changed = |error: &TreeError| matches!(error, TreeError::Changed);
    check_fault(
        |root| fs::write(root.join(FILE), "short").unwrap(),
        is_changed,
    );
    check_fault(
        |root| fs::write(root.join(FILE), [b'f'; 1000]).unwrap(),
        is_changed,
    );
    let set_mode = |root: &Path| {
        fs::set_permissions(root.join(FILE), fs::Permissions::from_mode(0o600)).unwrap();
    };
    check_fault(set_mode, is_changed);
}

#[test]
fn links_out_of_the_tree_are_not_followed() {
    let is_changed = |error: &TreeError| matches!(error, TreeError::Changed);
    let replace_file = |root: &Path| {
        let (inside, outside) = (root.join(FILE), root.with_file_name("outside"));
        fs::rename(&inside, &outside).unwrap();
        symlink(outside, inside).unwrap();
    };
    check_fault(replace_file, is_changed);
    let replace_directory = |root: &Path| {
        let (inside, outside) = (root.join("folder-30"), root.with_file_name("outside"));
        // Create the replacement outside of the root, whose change time would otherwise reveal the
        // change.
        fs::create_dir(&outside).unwrap();
        for entry in fs::read_dir(&inside).unwrap() {
            let entry = entry.unwrap();
            fs::rename(entry.path(), outside.join(entry.file_name())).unwrap();
        }
    };
    check_fault(replace_directory, |error| {
        matches!(error, TreeError::Vanished)
    });
}

#[test]
fn a_directory_replaced_by_a_link_to_a_copy() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("x");
    make_tree(&root.join("sub"));
    let tree = Tree::of_files(root.clone());
    let plan = plan(&tree);
    fs::rename(root.join("sub/folder-30"), dir.path().join("twin")).unwrap();
    symlink(dir.path().join("twin"), root.join("sub/folder-30")).unwrap();
    let mut reader = tree.nar_at(&plan, 1000).unwrap();
    assert!(matches!(rest(&mut reader), Err(TreeError::Changed)));
}

#[test]
fn a_file_replaced_by_another_type_or_removed() {
    let replace_by_directory = |root: &Path| {
        fs::remove_file(root.join(FILE)).unwrap();
        fs::create_dir(root.join(FILE)).unwrap();
    };
    check_fault(replace_by_directory, |error| {
        matches!(error, TreeError::Changed)
    });
    let replace_by_fifo = |root: &Path| {
        fs::remove_file(root.join(FILE)).unwrap();
        let status = std::process::Command::new("mkfifo")
            .arg(root.join(FILE))
            .status();
        assert!(status.unwrap().success());
    };
    check_fault(replace_by_fifo, |error| {
        matches!(error, TreeError::UnsupportedType)
    });
    let remove = |root: &Path| fs::remove_file(root.join(FILE)).unwrap();
    check_fault(remove, |error| matches!(error, TreeError::Vanished));
}

#[test]
fn a_file_truncated_during_reading() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("x");
    fs::create_dir(&root).unwrap();
    fs::write(root.join("file"), vec![b'x'; 100_000]).unwrap();
    let tree = Tree::of_files(root.clone());
    let plan = plan(&tree);
    let mut reader = tree.nar_at(&plan, 1000).unwrap();
    reader.fill(&mut [0; 500]).unwrap();
    let file = fs::File::options()
        .write(true)
        .open(root.join("file"))
        .unwrap();
    file.set_len(50_000).unwrap();
    let error = rest(&mut reader).unwrap_err();
    assert!(matches!(error, TreeError::Short { .. }), "{error:?}");
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_tree_any_offset(node in node(), parts in prop::collection::vec(any::<prop::sample::Index>(), 8)) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("x");
        node.write_tree(&root).unwrap();
        let tree = Tree::of_files(root);
        let end = nar(&tree, 4096).len();
        check(&tree, parts.iter().map(|part| part.index(end + 1)));
        let plan = plan(&tree);
        let mut reader = tree.nar_at(&plan, 0).unwrap();
        let mut whole = Vec::new();
        reader.read_to_end(&mut whole).unwrap();
        prop_assert!(whole == nar(&tree, 4096));
    }
}
