//! Reading a tree that changes meanwhile ends with a precise error, never with a padded or short
//! NAR.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use samovar_store::{NarReader, Tree, TreeError};

/// Creates a tree of files `00` to `63` of 1,000 bytes each, in two directories.
fn tree() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("x");
    for part in ["a", "b"] {
        fs::create_dir_all(root.join(part)).unwrap();
        for number in 0..64 {
            fs::write(root.join(part).join(format!("{number:02}")), [b'x'; 1000]).unwrap();
        }
    }
    (dir, root)
}

fn read_to_end(reader: &mut NarReader) -> Result<u64, TreeError> {
    let mut buffer = [0; 500];
    while reader.fill(&mut buffer)? > 0 {}
    Ok(reader.position())
}

fn begun(root: &std::path::Path) -> NarReader {
    let mut reader = Tree::of_files(root.to_owned()).nar().unwrap();
    reader.fill(&mut [0; 500]).unwrap();
    reader
}

#[test]
fn a_missing_root() {
    let error = Tree::of_files("/nonexistent/x".into()).nar().unwrap_err();
    assert!(matches!(error, TreeError::Vanished));
    let error: std::io::Error = error.into();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn a_removed_file() {
    let (_dir, root) = tree();
    let mut reader = begun(&root);
    fs::remove_file(root.join("b/40")).unwrap();
    // The walk lists the directory when it gets there, so remove a file between listing and
    // opening.
    let whole = read_to_end(&mut reader).unwrap();
    let mut reader = begun(&root);
    fs::remove_file(root.join("a/40")).unwrap();
    assert!(matches!(read_to_end(&mut reader), Err(TreeError::Vanished)));
    assert!(reader.position() < whole);
    assert!(reader.fill(&mut [0; 10]).is_err(), "an error is final");
}

#[test]
fn a_removed_tree() {
    let (_dir, root) = tree();
    let mut reader = begun(&root);
    fs::remove_dir_all(&root).unwrap();
    assert!(matches!(read_to_end(&mut reader), Err(TreeError::Vanished)));
}

#[test]
fn a_file_truncated_during_reading() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("x");
    fs::write(&root, vec![b'x'; 100_000]).unwrap();
    let mut reader = begun(&root);
    fs::File::options()
        .write(true)
        .open(&root)
        .unwrap()
        .set_len(50_000)
        .unwrap();
    let error = read_to_end(&mut reader).unwrap_err();
    assert!(
        matches!(
            error,
            TreeError::Short {
                announced: 100_000,
                found: 50_000
            }
        ),
        "{error:?}"
    );
}

#[test]
fn a_growing_file_ends_at_the_announced_size() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("x");
    fs::write(&root, vec![b'x'; 1000]).unwrap();
    let size = Tree::of_files(root.clone()).plan(4096).unwrap().nar_size();
    let mut reader = begun(&root);
    fs::write(&root, vec![b'x'; 5000]).unwrap();
    assert_eq!(read_to_end(&mut reader).unwrap(), size);
}

#[test]
fn unsupported_file_types() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("x");
    fs::create_dir(&root).unwrap();
    let _listener = UnixListener::bind(root.join("socket")).unwrap();
    let error = read_to_end(&mut Tree::of_files(root.clone()).nar().unwrap()).unwrap_err();
    assert!(matches!(error, TreeError::UnsupportedType));
    let mut listing = Tree::of_files(root).listing();
    let error = listing.fill(&mut [0; 100]).unwrap_err();
    assert!(matches!(error, TreeError::UnsupportedType));
    assert!(listing.fill(&mut [0; 100]).is_err(), "an error is final");
}

#[test]
fn a_file_replaced_by_a_fifo_does_not_block() {
    let (_dir, root) = tree();
    let mut reader = begun(&root);
    let path = root.join("a/50");
    fs::remove_file(&path).unwrap();
    let status = std::process::Command::new("mkfifo")
        .arg(&path)
        .status()
        .unwrap();
    assert!(status.success());
    assert!(matches!(
        read_to_end(&mut reader),
        Err(TreeError::UnsupportedType)
    ));
}

#[test]
fn a_file_replaced_by_a_link_is_not_followed() {
    let (_dir, root) = tree();
    let mut reader = begun(&root);
    let path = root.join("a/50");
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
    assert!(matches!(read_to_end(&mut reader), Err(TreeError::Changed)));
}

#[test]
fn a_directory_moved_out_of_a_deep_tree_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("x");
    let deep: PathBuf = std::iter::repeat_n("d", 40).collect();
    fs::create_dir_all(root.join(&deep)).unwrap();
    fs::write(root.join(&deep).join("file"), vec![b'x'; 100_000]).unwrap();
    let mut reader = Tree::of_files(root.clone()).nar().unwrap();
    let mut buffer = [0; 20_000];
    reader.fill(&mut buffer).unwrap();
    // The descriptors of their parents are closed by now, and `..` leads to another directory.
    fs::rename(root.join("d/d/d/d/d/d"), dir.path().join("elsewhere")).unwrap();
    assert!(matches!(read_to_end(&mut reader), Err(TreeError::Changed)));
}

#[test]
fn a_file_removed_during_a_skip() {
    let (_dir, root) = tree();
    let mut reader = begun(&root);
    fs::remove_file(root.join("a/40")).unwrap();
    assert!(matches!(reader.skip_to(100_000), Err(TreeError::Vanished)));
}
