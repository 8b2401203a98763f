//! Tests of [`Root`].

use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use rustix::fs::{Mode, OFlags};

use super::{Attributes, Root, is_temporary};
use crate::entries::Mtime;

const ATTRIBUTES: Attributes = Attributes {
    mode: 0o640,
    mtime: Some(Mtime {
        seconds: 1_000_000_000,
        nanoseconds: 5,
    }),
};

fn root() -> (tempfile::TempDir, Root) {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::open(dir.path()).unwrap();
    (dir, root)
}

fn count(directory: &std::path::Path) -> usize {
    fs::read_dir(directory).unwrap().count()
}

#[test]
fn a_file_is_replaced_with_exact_attributes() {
    let (dir, root) = root();
    root.create_directory(b"d", 0o755).unwrap();
    let path = dir.path().join("d/f");
    for content in ["first", "second", ""] {
        let written = root.write_file(b"d/f", &mut content.as_bytes(), ATTRIBUTES);
        assert_eq!(written.unwrap(), content.len() as u64);
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
    }
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o640);
    assert_eq!(
        (metadata.mtime(), metadata.mtime_nsec()),
        (1_000_000_000, 5)
    );
    root.write_symlink(b"d/f", b"target", ATTRIBUTES.mtime)
        .unwrap();
    assert_eq!(
        fs::read_link(&path).unwrap().as_os_str().as_bytes(),
        b"target"
    );
    assert_eq!(fs::symlink_metadata(&path).unwrap().mtime(), 1_000_000_000);
    root.write_file(b"d/f", &mut &b"file"[..], ATTRIBUTES)
        .unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "file");
    assert_eq!(count(&dir.path().join("d")), 1);
}

#[test]
fn a_replacement_that_is_not_committed_leaves_the_old_file() {
    let (dir, root) = root();
    fs::write(dir.path().join("f"), "old").unwrap();
    let mut replacement = root.replace_file(b"f").unwrap();
    replacement.write_all(b"new").unwrap();
    let names = crate::root::read_names(&root).unwrap();
    assert_eq!(
        names.iter().filter(|(name, _)| is_temporary(name)).count(),
        1
    );
    drop(replacement);
    assert_eq!(fs::read_to_string(dir.path().join("f")).unwrap(), "old");
    fs::create_dir(dir.path().join("d")).unwrap();
    assert!(root.write_file(b"d", &mut &b""[..], ATTRIBUTES).is_err());
    assert!(root.write_symlink(b"d", b"target", None).is_err());
    assert_eq!(count(dir.path()), 2);
}

#[test]
fn temporary_names_are_recognized() {
    for name in [
        ".samovar-tmp-0123456789abcdef",
        ".app.samovar-0123456789abcdef",
    ] {
        assert!(is_temporary(name.as_bytes()), "{name}");
        assert!(!is_temporary(&name.as_bytes()[1..]), "{name}");
        assert!(!is_temporary(&name.as_bytes()[..name.len() - 1]), "{name}");
        assert!(!is_temporary(format!("{name}0").as_bytes()), "{name}");
        assert!(!is_temporary(name.replace('f', "g").as_bytes()), "{name}");
    }
    for name in ["", ".samovar", ".samovar-tmp-"] {
        assert!(!is_temporary(name.as_bytes()), "{name}");
    }
}

#[test]
fn paths_with_invalid_names_are_refused() {
    let (_dir, root) = root();
    let long = vec![b'x'; 256];
    let paths: [&[u8]; 10] = [
        b"", b".", b"..", b"/", b"/etc", b"a/", b"a//b", b"a/../b", b"a\0b", &long,
    ];
    for path in paths {
        let refused = root.create_file(path, 0o644).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput, "{path:?}");
        assert!(root.create_directory(path, 0o755).is_err(), "{path:?}");
        assert!(root.remove_all(path).is_err(), "{path:?}");
        assert!(root.stat(path).is_err(), "{path:?}");
    }
    root.create_file(&long[..255], 0o644).unwrap();
}

/// Every operation, with a symbolic link to another directory in the middle and at the end.
#[test]
fn symbolic_links_are_never_followed() {
    let (dir, root) = root();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("f"), "outside").unwrap();
    fs::set_permissions(outside.path().join("f"), fs::Permissions::from_mode(0o600)).unwrap();
    symlink(outside.path(), dir.path().join("l")).unwrap();
    symlink(outside.path().join("f"), dir.path().join("m")).unwrap();
    for path in [&b"l/f"[..], b"l/new"] {
        assert!(root.create_file(path, 0o644).is_err());
        assert!(root.create_directory(path, 0o755).is_err());
        assert!(root.create_symlink(path, b"x", None).is_err());
        assert!(root.write_file(path, &mut &b""[..], ATTRIBUTES).is_err());
        assert!(root.write_symlink(path, b"x", None).is_err());
        assert!(root.set_attributes(path, ATTRIBUTES).is_err());
        assert!(root.remove_file(path).is_err());
        assert!(root.remove_all(path).is_err());
        assert!(root.file(path).is_err());
        assert!(root.stat(path).is_err());
    }
    for path in [&b"l"[..], b"m"] {
        assert!(root.create_file(path, 0o644).is_err());
        assert!(root.directory(path).is_err());
        assert!(root.file(path).is_err());
        assert!(root.set_attributes(path, ATTRIBUTES).is_err());
    }
    root.write_file(b"m", &mut &b"inside"[..], ATTRIBUTES)
        .unwrap();
    root.remove_all(b"l").unwrap();
    let mode = fs::metadata(outside.path().join("f"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(
        fs::read_to_string(outside.path().join("f")).unwrap(),
        "outside"
    );
    assert_eq!(count(outside.path()), 1);
}

#[test]
fn walking_by_name_opens_the_same_entries() {
    let (dir, root) = root();
    fs::create_dir_all(dir.path().join("a/b")).unwrap();
    fs::write(dir.path().join("a/b/f"), "x").unwrap();
    symlink("a", dir.path().join("l")).unwrap();
    symlink("f", dir.path().join("a/b/l")).unwrap();
    for (path, is_present) in [
        (&b"a/b/f"[..], true),
        (b"a", true),
        (b"l/b/f", false),
        (b"a/b/l", false),
        (b"a/c/f", false),
        (b"a/b/f/g", false),
    ] {
        let walked = root.walk(path, OFlags::RDONLY, Mode::empty());
        assert_eq!(walked.is_ok(), is_present, "{path:?}");
        assert_eq!(root.open_at(path, OFlags::RDONLY, 0).is_ok(), is_present);
    }
}

#[test]
fn attributes_of_files_and_directories_are_set() {
    let (dir, root) = root();
    root.create_directory(b"d", 0o700).unwrap();
    root.create_file(b"d/f", 0).unwrap();
    for path in ["d/f", "d"] {
        root.set_attributes(path.as_bytes(), ATTRIBUTES).unwrap();
        let metadata = fs::metadata(dir.path().join(path)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o640);
        assert_eq!(
            (metadata.mtime(), metadata.mtime_nsec()),
            (1_000_000_000, 5)
        );
    }
}

#[test]
fn special_bits_are_ignored() {
    let (dir, root) = root();
    let attributes = Attributes {
        mode: 0o7755,
        mtime: None,
    };
    root.write_file(b"f", &mut &b""[..], attributes).unwrap();
    root.create_file(b"g", 0o7755).unwrap();
    root.set_attributes(b"g", attributes).unwrap();
    for name in ["f", "g"] {
        let mode = fs::metadata(dir.path().join(name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o7777, 0o755);
    }
}

#[test]
fn trees_are_removed() {
    let (dir, root) = root();
    let mut path = dir.path().join("tree");
    for depth in 0..20 {
        fs::create_dir(&path).unwrap();
        fs::write(path.join("f"), "x").unwrap();
        fs::create_dir(path.join("empty")).unwrap();
        fs::set_permissions(path.join("empty"), fs::Permissions::from_mode(0o0)).unwrap();
        symlink("/", path.join("link")).unwrap();
        path = path.join(format!("{depth}"));
    }
    root.remove_all(b"tree").unwrap();
    fs::write(dir.path().join("f"), "x").unwrap();
    root.remove_all(b"f").unwrap();
    assert_eq!(count(dir.path()), 0);
    let missing = root.remove_all(b"f").unwrap_err();
    assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
}

/// The files behind a bind mount are elsewhere, too.
#[test]
fn mount_points_are_not_entered() {
    let (dir, root) = root();
    let elsewhere = tempfile::tempdir_in(dir.path()).unwrap();
    fs::write(elsewhere.path().join("f"), "x").unwrap();
    let on = dir.path().join("a/b");
    fs::create_dir_all(&on).unwrap();
    if let Err(error) = rustix::mount::mount_bind(elsewhere.path(), &on) {
        eprintln!("SKIPPED: no directory can be mounted here: {error}");
        return;
    }
    let removed = root.remove_all(b"a").map_err(|error| error.kind());
    let opened = root.file(b"a/b/f").map_err(|error| error.kind());
    let walked = root.walk(b"a/b/f", OFlags::RDONLY, Mode::empty());
    rustix::mount::unmount(&on, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(removed, Err(std::io::ErrorKind::CrossesDevices));
    assert_eq!(opened.unwrap_err(), std::io::ErrorKind::CrossesDevices);
    assert_eq!(
        walked.unwrap_err().kind(),
        std::io::ErrorKind::CrossesDevices
    );
    assert_eq!(count(elsewhere.path()), 1);
}
